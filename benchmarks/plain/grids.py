# SPDX-License-Identifier: Apache-2.0
"""Recurrence over grids written out, one cell after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from widefield.sequence import MDLSTM, MDRNN, GridLSTM

Cell = tuple[int, ...]


def cells_of(space: tuple[int, ...]) -> list[Cell]:
    """Row-major: predecessors come first."""
    return list(itertools.product(*map(range, space)))


def before(cell: Cell, axis: int) -> Cell:
    return (*cell[:axis], cell[axis] - 1, *cell[axis + 1 :])


def grid_lstm(layer: GridLSTM, x: Tensor) -> Tensor:
    """`GridLSTM.forward`."""
    axes = tuple(range(2, x.dim()))
    x = x.flip(axes) if layer.backwards else x
    cell, h = layer.cell, layer.hidden_size
    hidden: dict[tuple[Cell, int], Tensor] = {}
    memory: dict[tuple[Cell, int], Tensor] = {}
    nothing = x.new_zeros(x.shape[0], h)
    cells = cells_of(tuple(x.shape[2:]))
    for at in cells:
        entering = x[(slice(None), slice(None), *at)]
        arrived = [hidden.get((before(at, axis), axis), nothing) for axis in range(layer.dims)]
        for axes_now in cell.rounds:
            both, new = torch.cat(arrived, -1), list(arrived)
            for axis in axes_now:
                name = str(axis)
                told = both @ cell.hidden[name][0].mT
                if axis in cell.plain:
                    new[axis] = torch.tanh(told)
                else:
                    told = told + entering @ cell.input[name].mT + cell.bias[name][0] + cell.hidden_bias[name][0]
                    i, f, g, o = told.split(h, -1)
                    m = memory.get((before(at, axis), axis), nothing)
                    m = torch.sigmoid(f) * m + torch.sigmoid(i) * torch.tanh(g)
                    memory[at, axis], new[axis] = m, torch.sigmoid(o) * torch.tanh(m)
                hidden[at, axis] = new[axis]
            arrived = new
    rows = [torch.cat([hidden[at, axis] for axis in range(layer.dims)], -1) for at in cells]
    y = torch.stack(rows, -1).unflatten(-1, tuple(x.shape[2:]))
    return y.flip(axes) if layer.backwards else y


def md_rnn(layer: MDRNN, x: Tensor) -> Tensor:
    """`MDRNN.forward`."""

    def step(told: Tensor, memories: list[Tensor]) -> tuple[Tensor, Tensor]:
        h = layer.squash(told)
        return h, h

    return _multi_dimensional(layer, x, step)


def md_lstm(layer: MDLSTM, x: Tensor) -> Tensor:
    """`MDLSTM.forward`."""

    def step(told: Tensor, memories: list[Tensor]) -> tuple[Tensor, Tensor]:
        i, o, *forget, g = told.split(layer.hidden_size, -1)
        c = torch.sigmoid(i) * torch.tanh(g)
        for f, m in zip(forget, memories, strict=True):
            c = c + torch.sigmoid(f) * m
        return torch.sigmoid(o) * torch.tanh(c), c

    return _multi_dimensional(layer, x, step)


def _multi_dimensional(
    layer: MDRNN | MDLSTM, x: Tensor, step: Callable[[Tensor, list[Tensor]], tuple[Tensor, Tensor]]
) -> Tensor:
    maps = []
    for direction, flipped in enumerate(layer.flips):
        turned = x.flip(flipped)
        states: dict[Cell, tuple[Tensor, Tensor]] = {}
        nothing = x.new_zeros(x.shape[0], layer.hidden_size)
        cells = cells_of(tuple(x.shape[2:]))
        for at in cells:
            arrived = [states.get(before(at, axis), (nothing, nothing)) for axis in range(layer.dims)]
            told = turned[(slice(None), slice(None), *at)] @ layer.input[direction].mT + layer.bias[direction]
            told = told + torch.cat([h for h, _ in arrived], -1) @ layer.hidden[direction].mT
            states[at] = step(told, [m for _, m in arrived])
        y = torch.stack([states[at][0] for at in cells], -1).unflatten(-1, tuple(x.shape[2:]))
        maps.append(y.flip(flipped))
    return torch.cat(maps, 1)
