# SPDX-License-Identifier: Apache-2.0
"""Attention inside the cells of a grid: all cells of one size at once, without cutting the map one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from widefield.attention.sdpa import attention
from widefield.core import layout
from widefield.core.layout import Space

Block = tuple[int, int]  # cells, positions in each

exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.6 has the latter alone


def blocks(size: int, cells: int) -> list[Block]:
    """An axis cut into equal cells, the last of which takes what remains; at least one position each."""
    cells = min(cells, size)
    step = size // cells
    rest = size - (cells - 1) * step
    return [(cells, step)] if rest == step else [(cells - 1, step), (1, rest)]


def attend_in_cells(q: Tensor, k: Tensor, v: Tensor, space: Space, cells: int, *, scale: float = 1.0) -> Tensor:
    """`attention` inside each cell of a grid of `cells` along every axis.

    Args:
        q, k: `(b, d, n)` on a map of that space.
        v: `(b, e, n)`.
        space: of the map.
        cells: along every axis; an axis with fewer positions has as many cells as positions.
        scale: of the logits.

    Returns:
        `(b, e, n)`.
    """
    if cells == 1:
        return attention(q, k, v, scale=scale)
    if exporting():  # a graph for every size cannot cut at places that depend on it
        logits = (q.mT * scale @ k).masked_fill(~same_cell(space, cells, q), -math.inf)
        return v @ logits.softmax(-1).mT
    axes = [blocks(size, cells) for size in space]
    cuts = [[count * width for count, width in axis] for axis in axes]
    found = []
    for region, *maps in zip(itertools.product(*axes), *(_cut(x, space, cuts) for x in (q, k, v)), strict=True):
        queries, values = _to_heads(maps[0], region), _to_heads(maps[2], region)
        keys = queries if k is q else _to_heads(maps[1], region)
        found.append(_from_heads(attention(queries, keys, values, scale=scale), region))
    for axis in range(len(space) - 1, -1, -1):
        m = len(axes[axis])
        found = [torch.cat(found[i : i + m], axis + 2) if m > 1 else found[i] for i in range(0, len(found), m)]
    return found[0].flatten(2)


def same_cell(space: Space, cells: int, like: Tensor) -> Tensor:
    """`(n, n)`, true where two positions share a cell."""
    cell = torch.zeros((), dtype=torch.long, device=like.device)
    for size in space:
        step: Any = torch.sym_max(size // cells, 1)
        along = torch.arange(size, device=like.device).div(step, rounding_mode="floor").clamp(max=cells - 1)
        cell = (cell[..., None] * cells + along).flatten()
    return cell[:, None] == cell


def cells_cost(space: Space, cells: int) -> int:
    """Multiply-adds of `attend_in_cells` for one channel of queries or values: pairs of positions in one cell."""
    return math.prod(sum(count * width**2 for count, width in blocks(size, cells)) for size in space)


def _cut(x: Tensor, space: Space, cuts: list[list[int]]) -> list[Tensor]:
    """The regions of equal cells, as maps, the last axis running fastest."""
    parts = [layout.to_map(x, space)]
    for axis, sizes in enumerate(cuts, start=2):
        parts = [piece for part in parts for piece in part.split(sizes, axis)]
    return parts


def _to_heads(x: Tensor, region: Sequence[Block]) -> Tensor:
    """`(b, c, *space)` of equal cells to `(b, cells, c, positions)`."""
    for axis in range(len(region) - 1, -1, -1):
        x = x.unflatten(axis + 2, region[axis])
    counts, widths = range(2, x.dim(), 2), range(3, x.dim(), 2)
    return x.permute(0, *counts, 1, *widths).flatten(1, len(region)).flatten(3)


def _from_heads(y: Tensor, region: Sequence[Block]) -> Tensor:
    """Back to `(b, c, *space)`."""
    dims = len(region)
    y = y.unflatten(3, [width for _, width in region]).unflatten(1, [count for count, _ in region])
    pairs = [axis for i in range(dims) for axis in (1 + i, dims + 2 + i)]
    y = y.permute(0, dims + 1, *pairs)
    for axis in range(2, dims + 2):
        y = y.flatten(axis, axis + 1)
    return y
