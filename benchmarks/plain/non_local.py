# SPDX-License-Identifier: Apache-2.0
"""Non-local blocks with the n x n map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.plain import plain


@plain("nonlocal")
def non_local(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2)
    query, key, value = m.query(tokens), m.key(tokens), m.value(tokens)
    weights = torch.softmax(m.scale * (query.mT @ key), -1)
    y = (weights @ value.mT).mT
    return x + m.leave(y.unflatten(2, x.shape[2:]))
