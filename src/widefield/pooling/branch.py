# SPDX-License-Identifier: Apache-2.0
"""Convolution, norm, ReLU: the branch that pyramids are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.norm import NormName, make_norm
from widefield.core.pointwise import Pointwise

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def taps(rate: int, size: int) -> int:
    """Taps of a 3-tap convolution that can see a map of that size along an axis."""
    return 3 if rate < size else 1


class PointwiseBranch(nn.Module):
    """`ReLU(norm(W x))` with a bias-free 1x1 W. Shape: `(b, in, *space) -> (b, out, *space)`."""

    def __init__(self, in_channels: int, out_channels: int, *, norm: NormName = "batch") -> None:
        super().__init__()
        self.project = Pointwise(in_channels, out_channels, bias=False)
        self.norm = make_norm(norm, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.project(x)))


class DilatedBranch(nn.Module):
    """`ReLU(norm(conv(x)))` with a bias-free 3^dims convolution of a rate.

    Where the rate reaches past the map, the outer taps see padding only and are left out: the same numbers, at
    a ninth of the cost in two dimensions.

    Shape: `(b, in, *space) -> (b, out, *space)`, with `dims` spatial dimensions.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, rate: int, dims: int = 2, norm: NormName = "batch"
    ) -> None:
        super().__init__()
        self.rate = rate
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *(3,) * dims))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.norm = make_norm(norm, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        weight, padding = self.weight.to(x.dtype), [self.rate] * (x.dim() - 2)
        if not torch.compiler.is_compiling():
            for axis in range(2, x.dim()):
                if taps(self.rate, x.shape[axis]) == 1:
                    weight, padding[axis - 2] = weight.narrow(axis, 1, 1), 0
        convolve = _CONVOLUTIONS[x.dim() - 2]
        return torch.relu(self.norm(convolve(x, weight, padding=padding, dilation=self.rate)))
