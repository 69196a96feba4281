# SPDX-License-Identifier: Apache-2.0
"""Pyramid pooling module: averages over ever finer grids, brought back to the map beside the input.

    y = [x, up(ReLU(norm(W_s pool_s(x)))) for s in bins]

Paper   Pyramid Scene Parsing Network, CVPR 2017, arXiv:1612.01105.
Facts   cost a few n c for the pooling, nothing for the projections; each branch has at most s^dims distinct
        values. Output of channels + branches.
Differs not at all; pooling and interpolation are products with small matrices (`resample.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from widefield.core import layout
from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.registry import register
from widefield.core.resample import pool, pool_cost, upsample, upsample_cost


@register("ppm", family="pooling", title="Pyramid Scene Parsing Network", paper="arXiv:1612.01105", year=2017)
class PyramidPooling(Context):
    """Concatenates the input with pooled, projected and upsampled copies of itself.

    Shape: `(b, channels, *space) -> (b, channels + len(bins) branch_channels, *space)`. A bin of one, in training,
    with a batch of one, has one value a channel: batch norm then uses its running statistics for that branch.

    Args:
        channels: of the input.
        bins: cells along each axis, one branch each; may exceed the map.
        branch_channels: width of each branch (None: channels over the number of bins, at least 1).
        align_corners: of the interpolation; True as the authors, False as mmsegmentation.
        norm: in each branch.
    """

    def __init__(
        self,
        channels: int,
        *,
        bins: Sequence[int] = (1, 2, 3, 6),
        branch_channels: int | None = None,
        align_corners: bool = True,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.bins = tuple(bins)
        if not self.bins or min(self.bins) < 1:
            raise ValueError(f"PyramidPooling: bins must be one or more positive integers, got {bins!r}")
        width = max(1, channels // len(self.bins)) if branch_channels is None else branch_channels
        if width < 1:
            raise ValueError(f"PyramidPooling: branch_channels must be positive, got {branch_channels}")
        super().__init__(channels, out_channels=channels + len(self.bins) * width)
        self.branch_channels = width
        self.align_corners = align_corners
        self.branches = nn.ModuleList(PointwiseBranch(channels, width, norm=norm) for _ in self.bins)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        pooled = pool(layout.to_map(tokens, space), self.bins)
        branches = (
            upsample(branch(level), space, align_corners=self.align_corners)
            for branch, level in zip(self.branches, pooled, strict=True)
        )
        return torch.cat(list(branches), 1).flatten(2)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y.to(x.dtype)], 1)

    def cost(self, shape: tuple[int, ...]) -> Cost:
        space = tuple(shape[2:])
        projections = sum(self.channels * self.branch_channels * s ** len(space) for s in self.bins)
        return Cost(
            shape[0] * (projections + self.mixing_cost(space)),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        up = sum(upsample_cost(space, s) for s in self.bins)
        return self.channels * pool_cost(space, self.bins) + self.branch_channels * up
