# SPDX-License-Identifier: Apache-2.0
"""A map cut into blocks, and its positions grouped: those of a block, or those at the same place of every block.

Maps have the channel last here, so that regrouping copies whole vectors; any number of spatial axes. A map that
the blocks do not divide is padded on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.core.layout import Space


def blocks_of(space: Space, block: Space) -> Space:
    """How many blocks cover the map along each axis."""
    return tuple((size + step - 1) // step for size, step in zip(space, block, strict=True))


def covered(space: Space, block: Space) -> Space:
    """The size of the map when padding has made whole blocks of it."""
    return tuple(count * step for count, step in zip(blocks_of(space, block), block, strict=True))


def padding_of(space: Space, block: Space) -> list[tuple[int, int]]:
    """Positions to add before and after each axis for whole blocks; half of them, rounded down, before."""
    befores = [(full - size) // 2 for full, size in zip(covered(space, block), space, strict=True)]
    return [
        (before, full - size - before)
        for before, full, size in zip(befores, covered(space, block), space, strict=True)
    ]


def pad(x: Tensor, amounts: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """Pads the spatial axes of `(b, *space, c)`."""
    return F.pad(x, (0, 0, *(amount for pair in reversed(amounts) for amount in pair)), value=value)


def crop(x: Tensor, space: Space, amounts: Sequence[tuple[int, int]]) -> Tensor:
    """Takes the padding off `(b, *space, c)` again."""
    for axis, (size, (before, _)) in enumerate(zip(space, amounts, strict=True), start=1):
        x = x.narrow(axis, before, size)
    return x


def grouping(space: Space, block: Space, *, distant: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which position stands where in the groups, and where in the groups each position stands.

    Returns:
        `(groups, members)` positions, -1 where there is padding, and `(n,)` places in the flattened groups.
    """
    counts = blocks_of(space, block)
    # A traced graph serves all sizes if no size in it can become 1; one more block of padding sees to that.
    counts = tuple(count + 1 for count in counts) if torch.compiler.is_compiling() else counts
    outer, inner = (block, counts) if distant else (counts, block)
    befores = [before for before, _ in padding_of(space, block)]
    position = torch.zeros(1, 1, dtype=torch.long, device=device)
    real = torch.ones_like(position, dtype=torch.bool)
    group, member = (
        torch.zeros(1, dtype=torch.long, device=device),
        torch.zeros(1, dtype=torch.long, device=device),
    )
    for size, step, before, groups, members in zip(space, block, befores, outer, inner, strict=True):
        g = torch.arange(groups, device=device)[:, None]
        m = torch.arange(members, device=device)
        place = (m * step + g if distant else g * step + m) - before
        position = (position[:, None, :, None] * size + place[:, None]).flatten(2).flatten(0, 1)
        real = (real[:, None, :, None] & ((place >= 0) & (place < size))[:, None]).flatten(2).flatten(0, 1)
        i = torch.arange(size, device=device) + before
        first, second = (i % step, i // step) if distant else (i // step, i % step)
        group = (group[:, None] * groups + first).flatten()
        member = (member[:, None] * members + second).flatten()
    return torch.where(real, position, -1), group * math.prod(inner) + member


def to_groups(x: Tensor, block: Space, *, distant: bool) -> Tensor:
    """`(b, *space, c)`, divided by the block, to `(b, groups, members, c)`.

    Args:
        x: channels last.
        block: its size along each axis.
        distant: members share their place in the block; else they share the block.
    """
    dims, counts = len(block), blocks_of(tuple(x.shape[1:-1]), block)
    for axis in range(dims, 0, -1):
        x = x.unflatten(axis, (counts[axis - 1], block[axis - 1]))
    blocks, places = range(1, 2 * dims, 2), range(2, 2 * dims + 1, 2)
    order = (*places, *blocks) if distant else (*blocks, *places)
    return x.permute(0, *order, -1).flatten(1, dims).flatten(2, -2)


def from_groups(x: Tensor, space: Space, block: Space, *, distant: bool) -> Tensor:
    """The inverse of `to_groups`: `(b, groups, members, c) -> (b, *space, c)`."""
    dims, counts = len(block), blocks_of(space, block)
    outer, inner = (block, counts) if distant else (counts, block)
    x = x.unflatten(2, inner).unflatten(1, outer)
    first, second = (1 + dims, 1) if distant else (1, 1 + dims)
    order = [axis + i for i in range(dims) for axis in (first, second)]
    x = x.permute(0, *order, -1)
    for axis in range(1, dims + 1):
        x = x.flatten(axis, axis + 1)
    return x
