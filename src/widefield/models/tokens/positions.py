# SPDX-License-Identifier: Apache-2.0
"""Learned positions of tokens, that know the grid they belong to and are interpolated on any other."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def at(positions: Tensor, space: Sequence[int]) -> Tensor:
    """`(1, d, h, w)` on another grid, bilinear, corners not aligned (as the feed-forward-only code; ViT's is
    bicubic, and users report no difference)."""
    if tuple(positions.shape[2:]) == tuple(space):
        return positions
    return F.interpolate(positions, size=tuple(space), mode="bilinear", align_corners=False)


class PositionTable(nn.Module):
    """A vector a token, prefix tokens first.

    Args:
        width: d.
        grid: (height, width) in patches.
        prefix: tokens in front of the patches.
    """

    def __init__(self, width: int, grid: tuple[int, int], prefix: int) -> None:
        super().__init__()
        self.grid, self.prefix = grid, prefix
        self.table = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, space: tuple[int, int]) -> Tensor:
        """`(1, prefix + n, d)` for a grid of n patches."""
        if space == self.grid:
            return self.table
        patches = self.table[:, self.prefix :].mT.unflatten(2, self.grid)
        return torch.cat([self.table[:, : self.prefix], at(patches, space).flatten(2).mT], 1)

    @torch.no_grad()
    def resize(self, grid: tuple[int, int]) -> Self:
        """A copy for another grid."""
        copy = deepcopy(self)
        copy.table, copy.grid = nn.Parameter(self(grid).clone()), grid
        return copy


class PositionMap(nn.Module):
    """A map `(1, d, h, w)`, interpolated where the grid is another, and a vector a prefix token."""

    def __init__(self, width: int, grid: tuple[int, int], prefix: int) -> None:
        super().__init__()
        self.grid = grid
        self.map = nn.Parameter(torch.empty(1, width, *grid))
        self.prefix = nn.Parameter(torch.empty(1, prefix, width)) if prefix else None
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, space: tuple[int, int]) -> Tensor:
        """`(1, prefix + n, d)` for a grid of n patches."""
        patches = at(self.map, space).flatten(2).mT
        return patches if self.prefix is None else torch.cat([self.prefix, patches], 1)

    @torch.no_grad()
    def resize(self, grid: tuple[int, int]) -> Self:
        """A copy for another grid."""
        copy = deepcopy(self)
        copy.map, copy.grid = nn.Parameter(at(self.map, grid).clone()), grid
        return copy
