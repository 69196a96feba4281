# SPDX-License-Identifier: Apache-2.0
"""Atrous spatial pyramid pooling: one 1x1, dilated 3x3s at several rates, and the image's mean.

    y = ReLU(norm(W [branch(x) for 1x1, rates, mean]))

Paper   Rethinking Atrous Convolution for Semantic Image Segmentation, 2017, arXiv:1706.05587 (DeepLabv3).
Facts   cost n c d (1 + 9 rates) and n d^2 (rates + 2); output of `out_channels`, without residual. The dilated
        branches see far, only the pooled one sees everything.
Differs the mean is broadcast, where torchvision interpolates a 1x1 map. Taps that see padding only are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core import layout
from widefield.core.branch import DilatedBranch, PointwiseBranch, taps
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.registry import register


@register(
    "aspp", family="pooling", title="Rethinking Atrous Convolution for Semantic Image Segmentation",
    paper="arXiv:1706.05587", year=2017,
)  # fmt: skip
class ASPP(Context):
    """Five views of the map side by side, fused by a 1x1.

    Shape: `(b, channels, *space) -> (b, out_channels, *space)`, with `dims` spatial dimensions. In training with a
    batch of one, batch norm in the pooled branch has one value a channel and uses its running statistics.

    Args:
        channels: of the input.
        out_channels: of every branch and of the output.
        rates: dilations; 12, 24, 36 at output stride 8, halved at 16.
        dropout: after the fusion, in training.
        dims: spatial dimensions, fixed by the shape of the kernels.
        norm: after every convolution.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int = 256,
        rates: Sequence[int] = (12, 24, 36),
        dropout: float = 0.5,
        dims: int = 2,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if dims not in (1, 2, 3):
            raise ValueError(f"ASPP: dims must be 1, 2 or 3 spatial dimensions, got {dims!r}")
        if any(rate < 1 for rate in rates):
            raise ValueError(f"ASPP: rates must be positive integers, got {rates!r}")
        if out_channels < 1:
            raise ValueError(f"ASPP: out_channels must be positive, got {out_channels}")
        super().__init__(channels, out_channels=out_channels)
        self.space_dims = (dims,)
        self.rates = tuple(rates)
        self.dropout = dropout
        self.pointwise = PointwiseBranch(channels, out_channels, norm=norm)
        self.dilated = nn.ModuleList(
            DilatedBranch(channels, out_channels, rate=rate, dims=dims, norm=norm) for rate in self.rates
        )
        self.pooled = PointwiseBranch(channels, out_channels, norm=norm)
        self.fuse = PointwiseBranch((len(rates) + 2) * out_channels, out_channels, norm=norm)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        x = layout.to_map(tokens, space)
        mean = self.pooled(tokens.mean(-1).unflatten(-1, (self.channels, *(1,) * len(space))))
        views = [self.pointwise(x), *(branch(x) for branch in self.dilated)]
        return torch.cat([*views, mean.expand_as(views[0])], 1).flatten(2)

    def leave(self, context: Tensor) -> Tensor:
        return F.dropout(self.fuse(context), self.dropout, self.training)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def cost(self, shape: tuple[int, ...]) -> Cost:
        space = tuple(shape[2:])
        n, width = math.prod(space), self.out_channels
        views = len(self.dilated) + 2
        return Cost(
            shape[0] * (self.mixing_cost(space) + n * views * width**2),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        n = math.prod(space)
        seen = sum(math.prod(taps(rate, size) for size in space) for rate in self.rates)
        return self.channels * self.out_channels * (n * (1 + seen) + 1)
