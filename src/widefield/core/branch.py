# SPDX-License-Identifier: Apache-2.0
"""Convolution, norm, activation: the branch that pyramids and heads are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.norm import BatchNorm, GroupNorm, NormName, make_norm
from widefield.core.pointwise import Pointwise

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def taps(rate: int, size: int) -> int:
    """Taps of a 3-tap convolution that can see a map of that size along an axis."""
    return 3 if rate < size else 1


def rectify(x: Tensor, slope: float) -> Tensor:
    """`max(x, slope x)` for a slope from 0 (ReLU) to 1 (x itself)."""
    if slope == 0:
        return torch.relu(x)
    return x if slope == 1 else F.leaky_relu(x, slope)


def normalise_and_rectify(x: Tensor, norm: nn.Module, slope: float) -> Tensor:
    """`a(norm(x))`; after a norm of this library in place, which leaves one map for backward and not two."""
    if torch.compiler.is_compiling() or not isinstance(norm, BatchNorm | GroupNorm):
        return rectify(norm(x), slope)
    # To write into a view, such as a norm may return of a map, would cost more than it saves.
    y = norm(x.flatten(2))
    if slope == 1 or y._is_view():
        y = rectify(y, slope)
    else:
        y = F.leaky_relu_(y, slope) if slope else torch.relu_(y)
    return y.unflatten(2, x.shape[2:])


class PointwiseBranch(nn.Module):
    """`a(norm(W x))`, W a 1x1 convolution. Shape: `(b, in, *space) -> (b, out, *space)`.

    Several inputs are taken as if concatenated along the channels (see `Pointwise`).

    Args:
        in_channels, out_channels: of W.
        bias: of W; a norm follows, so by default there is none.
        norm: a name or a callable, see `make_norm`.
        slope: of the activation below zero: 0 is ReLU, 0.01 the leaky ReLU of in-place ABN, 1 none.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        bias: bool = False,
        norm: NormName = "batch",
        slope: float = 0.0,
    ) -> None:
        super().__init__()
        self.project = Pointwise(in_channels, out_channels, bias=bias)
        self.norm = make_norm(norm, out_channels)
        self.slope = slope

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return normalise_and_rectify(self.project(x, *more), self.norm, self.slope)


class DilatedBranch(nn.Module):
    """`a(norm(conv(x)))` with a 3^dims convolution of a rate.

    Where the rate reaches past the map, the outer taps see padding only and are left out: the same numbers, at
    a ninth of the cost in two dimensions.

    Shape: `(b, in, *space) -> (b, out, *space)`, with `dims` spatial dimensions.

    Args:
        in_channels, out_channels: of the convolution.
        rate: its dilation.
        dims: spatial dimensions.
        bias, norm, slope: as `PointwiseBranch`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        rate: int = 1,
        dims: int = 2,
        bias: bool = False,
        norm: NormName = "batch",
        slope: float = 0.0,
    ) -> None:
        super().__init__()
        self.rate, self.slope = rate, slope
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *(3,) * dims))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.norm = make_norm(norm, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        weight, padding = self.weight.to(x.dtype), [self.rate] * (x.dim() - 2)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if not torch.compiler.is_compiling():
            for axis in range(2, x.dim()):
                if taps(self.rate, x.shape[axis]) == 1:
                    weight, padding[axis - 2] = weight.narrow(axis, 1, 1), 0
        convolve = _CONVOLUTIONS[x.dim() - 2]
        y = convolve(x, weight, bias, padding=padding, dilation=self.rate)
        return normalise_and_rectify(y, self.norm, self.slope)
