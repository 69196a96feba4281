# SPDX-License-Identifier: Apache-2.0
"""Recurrence over a grid by diagonals: all cells whose coordinates have one sum are computed at once.

A cell needs its predecessors along every axis, which all lie on the diagonal before. So a grid of `T_1 x ... x
T_K` cells takes `sum(T_k) - K + 1` steps in place of their product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# Arrived: for each kind of state a list over axes of (g, p, b, width); to the emitted states, (g, p, b, e, width).
Step = Callable[["Diagonal", Tensor, list[list[Tensor]]], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Diagonal:
    """One diagonal: `count` cells, from `start` in the order of the sweep.

    Attributes:
        start, count: its cells.
        sources: for each axis the rows of the table that arrive: cells of the diagonal before, then its borders.
        borders: for each axis the border rows of this diagonal, (None: no cell lies on it).
        last: the coordinate along the last axis of each cell, in order.
    """

    start: int
    count: int
    sources: tuple[Tensor, ...]
    borders: tuple[Tensor | None, ...]
    last: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The order of a sweep over a grid: `order` is the flat index of its cells, `inverse` the way back."""

    space: tuple[int, ...]
    order: Tensor
    inverse: Tensor
    diagonals: tuple[Diagonal, ...]


@lru_cache(maxsize=32)
def plan(space: tuple[int, ...], device: torch.device) -> Plan:
    """The diagonals of a grid; cells of one diagonal stand sorted by their last coordinate."""
    axes = [torch.arange(n) for n in space]
    cells = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(space))
    total = cells.sum(1)
    key = total * max(space) + cells[:, -1]
    order = torch.argsort(key, stable=True)
    inverse = torch.argsort(order)
    strides = [1] * len(space)
    for axis in reversed(range(len(space) - 1)):
        strides[axis] = strides[axis + 1] * space[axis + 1]
    diagonals, start, before = [], 0, 0
    for count in torch.bincount(total).tolist():
        flat = order[start : start + count]
        here = cells[flat]
        sources, borders = [], []
        for axis, stride in enumerate(strides):
            inside = here[:, axis] > 0
            rows = torch.empty(count, dtype=torch.long)
            rows[inside] = inverse[flat[inside] - stride] - before
            outside = here[~inside]
            previous = start - before
            rows[~inside] = previous + torch.arange(len(outside))
            sources.append(rows.to(device))
            if len(outside):
                # Position on the border: the cell's place among the cells with coordinate 0 along this axis.
                rest = [i for i in range(len(space)) if i != axis]
                place = torch.zeros(len(outside), dtype=torch.long)
                for i in rest:
                    place = place * space[i] + outside[:, i]
                borders.append(place.to(device))
            else:
                borders.append(None)
        diagonals.append(Diagonal(start, count, tuple(sources), tuple(borders), tuple(here[:, -1].tolist())))
        before, start = start, start + count
    return Plan(space, order.to(device), inverse.to(device), tuple(diagonals))


def sweep(
    entering: Tensor,
    space: Sequence[int],
    step: Step,
    widths: Sequence[int],
    borders: Sequence[Sequence[Tensor | None]],
) -> tuple[Tensor, ...]:
    """Runs a recurrence over a grid.

    Args:
        entering: `(g, n, b, d)`, what every cell is given from outside; g independent sweeps, n cells in row-major
            order.
        space: the grid.
        step: from a diagonal, its part of `entering` and what arrives to the states that its cells send out,
            `(g, p, b, e, width)`; e is the number of axes, or 1 where every axis gets the same.
        widths: of the kinds of state.
        borders: for each kind and axis `(g, n / T_axis, b, width)`, what arrives from before the grid; None:
            zeros.

    Returns:
        For each kind of state `(g, n, b, e, width)`, row-major.
    """
    order = plan(tuple(space), entering.device)
    ordered = entering.index_select(1, order.order)
    g, _, b, _ = entering.shape
    sent: tuple[Tensor, ...] = ()
    found: list[tuple[Tensor, ...]] = []
    # Not a slice a diagonal: the backward of each would fill the whole grid with zeros.
    parts_in = ordered.split([diagonal.count for diagonal in order.diagonals], 1)
    for diagonal, part_in in zip(order.diagonals, parts_in, strict=True):
        arrived: list[list[Tensor]] = []
        for kind, width in enumerate(widths):
            arrived.append([])
            for axis, (rows, places) in enumerate(zip(diagonal.sources, diagonal.borders, strict=True)):
                parts = [sent[kind][:, :, :, min(axis, sent[kind].shape[3] - 1)]] if sent else []
                if places is not None:
                    border = borders[kind][axis]
                    parts.append(
                        entering.new_zeros(g, len(places), b, width)
                        if border is None
                        else border.index_select(1, places)
                    )
                table = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
                arrived[-1].append(table.index_select(1, rows))
        sent = step(diagonal, part_in, arrived)
        found.append(sent)
    return tuple(torch.cat(parts, 1).index_select(1, order.inverse) for parts in zip(*found, strict=True))


def to_cells(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """`(b, c, *space)` to `(n, b, c)` and the space."""
    return x.flatten(2).permute(2, 0, 1), tuple(x.shape[2:])


def to_map(cells: Tensor, space: Sequence[int]) -> Tensor:
    """`(n, b, c)` to `(b, c, *space)`."""
    return cells.permute(1, 2, 0).unflatten(2, tuple(space))


def flipped_axes(dims: int) -> list[tuple[int, ...]]:
    """The `2^dims` directions of a sweep, as the axes of a map that are reversed."""
    return [tuple(2 + axis for axis in range(dims) if code >> axis & 1) for code in range(2**dims)]
