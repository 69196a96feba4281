# SPDX-License-Identifier: Apache-2.0
"""Multi-dimensional recurrent networks: one hidden vector a position, which sees its neighbour along every axis.

    MD-RNN    h_p = phi(W x_p + sum_k U_k h_{p-k} + b)
    MD-LSTM   c_p = i g + sum_k f_k c_{p-k},   h_p = o tanh(c_p)          a forget gate for every axis

Paper   Graves, Fernandez, Schmidhuber, Multi-Dimensional Recurrent Neural Networks, ICANN 2007, arXiv:0705.2011.
Facts   cost n ((3 + K) h (d + K h)) a direction; `sum(T_k) - K + 1` steps. One direction sees what lies before it
        along all axes; all `2^K` together see everything.
Differs gates without peepholes. c can grow with the number of paths to a cell, since the forget gates of several
        axes add; they start at a bias that makes them sum to about 1.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive, unknown
from widefield.sequence.init import orthogonal_blocks_, xavier_blocks_
from widefield.sequence.wavefront import Diagonal, flipped_axes, sweep, to_cells, to_map


class _MultiDimensional(nn.Module):
    """Weights of all directions and the sweep; a form says what a cell makes of its sums."""

    kinds = 1

    def __init__(self, channels: int, hidden_size: int, dims: int, directions: str, blocks: int) -> None:
        super().__init__()
        name = type(self).__name__
        require_positive(name, channels=channels, hidden_size=hidden_size, dims=dims)
        if dims > 3:
            raise ValueError(f"{name} takes one to three dimensions, got {dims}")
        if directions not in ("one", "all"):
            raise unknown("choice of directions", directions, ("one", "all"))
        self.channels, self.hidden_size, self.dims = channels, hidden_size, dims
        self.flips = flipped_axes(dims) if directions == "all" else [()]
        count, rows = len(self.flips), blocks * hidden_size
        self.input = nn.Parameter(torch.empty(count, rows, channels))
        self.hidden = nn.Parameter(torch.empty(count, rows, dims * hidden_size))
        self.bias = nn.Parameter(torch.zeros(count, rows))
        with torch.no_grad():
            for direction in range(count):
                xavier_blocks_(self.input[direction], blocks)
                for axis in range(dims):
                    block = orthogonal_blocks_(torch.empty(rows, hidden_size), 1 / dims)
                    self.hidden[direction, :, axis * hidden_size : (axis + 1) * hidden_size] = block

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != self.dims + 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"{type(self).__name__} was built for (b, {self.channels}, *space) with {self.dims} dimensions, "
                f"got the shape {tuple(x.shape)}"
            )
        cells, space = to_cells(torch.cat([x.flip(axes) for axes in self.flips]))
        cells = cells.unflatten(1, (len(self.flips), -1)).transpose(0, 1)  # (g, n, b, c)
        entering = cells @ self.input[:, None].mT + self.bias[:, None, None]
        none = [[None] * self.dims] * self.kinds
        hidden = sweep(entering, space, self.step, [self.hidden_size] * self.kinds, none)[0][:, :, :, 0]
        maps = [to_map(part, space).flip(axes) for part, axes in zip(hidden, self.flips, strict=True)]
        return torch.cat(maps, 1)

    def sums(self, entering: Tensor, hidden: list[Tensor]) -> Tensor:
        """`W x + sum_k U_k h_k + b`, `(g, p, b, rows)`."""
        both = torch.cat(hidden, -1)
        flat = torch.baddbmm(entering.flatten(1, 2), both.flatten(1, 2), self.hidden.mT)
        return flat.unflatten(1, both.shape[1:3])

    def step(self, diagonal: Diagonal, entering: Tensor, arrived: list[list[Tensor]]) -> tuple[Tensor, ...]:
        raise NotImplementedError


class MDRNN(_MultiDimensional):
    """The plain form.

    Shape: `(b, channels, *space) -> (b, directions * hidden_size, *space)`.

    Args:
        channels, hidden_size: widths.
        dims: 1, 2 or 3.
        directions: "all" `2^dims` side by side, or "one", from the first position to the last.
        nonlinearity: "tanh" or "relu".
    """

    def __init__(
        self,
        channels: int,
        hidden_size: int,
        *,
        dims: int = 2,
        directions: Literal["one", "all"] = "all",
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, hidden_size, dims, directions, 1)
        if nonlinearity not in ("tanh", "relu"):
            raise unknown("nonlinearity", nonlinearity, ("tanh", "relu"))
        self.squash = torch.tanh if nonlinearity == "tanh" else torch.relu
        self.to(device=device, dtype=dtype)

    def step(self, diagonal: Diagonal, entering: Tensor, arrived: list[list[Tensor]]) -> tuple[Tensor, ...]:
        return (self.squash(self.sums(entering, arrived[0]))[:, :, :, None],)


class MDLSTM(_MultiDimensional):
    """The gated form.

    Shape: `(b, channels, *space) -> (b, directions * hidden_size, *space)`.

    Args:
        channels, hidden_size: widths.
        dims: 1, 2 or 3.
        directions: "all" `2^dims` side by side, or "one", from the first position to the last.
        forget_bias: of the forget gates; None makes each of the K start at about 0.73 / K, which is the forget
            gate of bias 1 shared by the axes.
    """

    kinds = 2

    def __init__(
        self,
        channels: int,
        hidden_size: int,
        *,
        dims: int = 2,
        directions: Literal["one", "all"] = "all",
        forget_bias: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, hidden_size, dims, directions, 3 + dims)  # i o f_1 ... f_K g
        share = 1 / (1 + math.exp(-1)) / dims
        with torch.no_grad():
            forget = self.bias[:, 2 * hidden_size : (2 + dims) * hidden_size]
            forget.fill_(math.log(share / (1 - share)) if forget_bias is None else forget_bias)
        self.to(device=device, dtype=dtype)

    def step(self, diagonal: Diagonal, entering: Tensor, arrived: list[list[Tensor]]) -> tuple[Tensor, ...]:
        sums = self.sums(entering, arrived[0])
        gates = torch.sigmoid(sums[..., : -self.hidden_size]).split(self.hidden_size, -1)
        c = gates[0] * torch.tanh(sums[..., -self.hidden_size :])
        for forget, before in zip(gates[2:], arrived[1], strict=True):
            c = c + forget * before
        return (gates[1] * torch.tanh(c))[:, :, :, None], c[:, :, :, None]
