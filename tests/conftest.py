# SPDX-License-Identifier: Apache-2.0
"""Two threads at most, and the same numbers everywhere."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch
from hypothesis import settings

torch.set_num_threads(min(2, torch.get_num_threads()))

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
