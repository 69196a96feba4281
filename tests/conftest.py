# SPDX-License-Identifier: Apache-2.0
"""Two threads at most, and the same numbers everywhere."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch

torch.set_num_threads(min(2, torch.get_num_threads()))
