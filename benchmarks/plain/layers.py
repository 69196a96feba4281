# SPDX-License-Identifier: Apache-2.0
"""Layers of the modules as everybody writes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F


def conv(projection: Any, x: Tensor) -> Tensor:
    """The 1x1 convolution that a `Pointwise` is, on `(b, c, h, w)`."""
    return F.conv2d(x, projection.weight[:, :, None, None], projection.bias)
