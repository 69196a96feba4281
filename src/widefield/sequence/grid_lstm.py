# SPDX-License-Identifier: Apache-2.0
"""Grid LSTM: an LSTM along every axis of a grid; depth can be one of the axes.

    H = [h_1; ...; h_K]                     the hidden vectors that arrive along the K axes
    (h'_k, m'_k) = LSTM_k(x, H, m_k)        one cell and one memory an axis, gates i f g o
    plain axis   h'_k = tanh(V_k H)

Paper   Grid Long Short-Term Memory, ICLR 2016, arXiv:1507.01526.
Facts   weights 4 h (d + K h) an axis; `sum(T_k) - K + 1` steps for a grid of `prod(T_k)` cells.
Differs `GridLSTM` gives x to every cell, as kkleidal/GridLSTM-PyTorch, whose states load; in `DepthGridLSTM` x
        enters at the border, as in the paper. Forget bias 1, orthogonal recurrent blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.sequence.init import orthogonal_blocks_, xavier_blocks_
from widefield.sequence.layer import SequenceLayer, State, step_masks, zero_padding
from widefield.sequence.wavefront import Diagonal, sweep, to_cells, to_map

Product = Callable[[Tensor, Tensor], Tensor]


def lstm(gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """`(..., 4 h)` in the order i f g o and `(..., h)` to the hidden vector and the memory."""
    i, f, g, o = gates.chunk(4, -1)
    memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


class GridCell(nn.Module):
    """The weights of one grid, or of `levels` of them, and one step of it.

    Args:
        input_size: of x; 0 where nothing enters but at the border.
        hidden_size: h.
        axes: K.
        plain: axes without a memory.
        priority: axes computed last, which see the new hidden vectors of the others.
        levels: independent sets of weights, picked by the last coordinate of a cell; 1 for the same everywhere.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        axes: int,
        plain: Sequence[int],
        priority: Sequence[int],
        levels: int = 1,
    ) -> None:
        super().__init__()
        for option, chosen in (("plain", plain), ("priority", priority)):
            if any(not 0 <= axis < axes for axis in chosen):
                raise ValueError(f"{option} axes must lie in 0 .. {axes - 1}, got {tuple(chosen)}")
        self.hidden_size, self.axes, self.levels = hidden_size, axes, levels
        self.plain = tuple(sorted(set(plain)))
        first = tuple(axis for axis in range(axes) if axis not in priority)
        self.rounds = tuple(r for r in (first, tuple(sorted(set(priority)))) if r)
        h = hidden_size
        self.input = nn.ParameterDict()
        self.hidden = nn.ParameterDict()
        # As torch's cells: two biases, of which only the sum counts.
        self.bias = nn.ParameterDict()
        self.hidden_bias = nn.ParameterDict()
        for axis in range(axes):
            rows = h if axis in self.plain else 4 * h
            hidden = torch.empty(levels, rows, axes * h)
            for block in hidden.unflatten(2, (axes, h)).unbind(2):
                for level in block:
                    level.copy_(orthogonal_blocks_(torch.empty(rows, h), axes**-0.5))
            self.hidden[str(axis)] = nn.Parameter(hidden)
            if axis not in self.plain:
                bias = torch.zeros(levels, rows)
                bias[:, h : 2 * h] = 1.0
                self.bias[str(axis)] = nn.Parameter(bias)
                self.hidden_bias[str(axis)] = nn.Parameter(torch.zeros_like(bias))
                if input_size:
                    self.input[str(axis)] = nn.Parameter(xavier_blocks_(torch.empty(rows, input_size), 4))

    def project(self, x: Tensor) -> Tensor:
        """What x gives to all gates of all axes with a memory, biases included: `(..., d) -> (..., K' 4h)`."""
        names = [str(axis) for axis in range(self.axes) if axis not in self.plain]
        if not names:
            return x[..., :0]
        return x @ torch.cat([self.input[a] for a in names]).mT + torch.cat(
            [self.both_biases(a)[0] for a in names]
        )

    def step(self, diagonal: Diagonal, entering: Tensor, arrived: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
        """See `wavefront.sweep`; `entering` may be empty along its last axis."""
        hidden, memories = list(arrived[0]), arrived[1]
        new_hidden: list[Tensor | None] = [None] * self.axes
        new_memory = list(memories)
        given = entering.split(4 * self.hidden_size, -1) if entering.shape[-1] else ()
        slot = {axis: i for i, axis in enumerate(a for a in range(self.axes) if a not in self.plain)}
        for axes in self.rounds:
            both = torch.cat(hidden, -1)
            weights = torch.cat([self.hidden[str(axis)] for axis in axes], 1)
            sums = self.product(both, weights, diagonal)
            parts = sums.split([self.hidden[str(axis)].shape[1] for axis in axes], -1)
            for axis, part in zip(axes, parts, strict=True):
                if axis in self.plain:
                    new_hidden[axis] = torch.tanh(part)
                    continue
                part = part + (
                    given[slot[axis]] if given else self.of_level(self.both_biases(str(axis)), diagonal)
                )
                new_hidden[axis], new_memory[axis] = lstm(part, memories[axis])
            hidden = [old if new is None else new for old, new in zip(arrived[0], new_hidden, strict=True)]
        return torch.stack(hidden, 3), torch.stack(new_memory, 3)

    def product(self, both: Tensor, weights: Tensor, diagonal: Diagonal) -> Tensor:
        """`(1, p, b, K h)` times `(levels, rows, K h)`, every cell with the weights of its level."""
        if self.levels == 1:
            return both @ weights[0].mT
        # Cells of a diagonal stand sorted by level.
        parts, start = [], 0
        if len(set(diagonal.last)) == diagonal.count:  # one cell a level: one batched product
            chosen = weights[diagonal.last[0] : diagonal.last[-1] + 1]
            return torch.bmm(both[0], chosen.mT)[None]
        for level in sorted(set(diagonal.last)):
            count = diagonal.last.count(level)
            parts.append(both[:, start : start + count] @ weights[level].mT)
            start += count
        return torch.cat(parts, 1)

    def both_biases(self, axis: str) -> Tensor:
        """`(levels, rows)`."""
        return self.bias[axis] + self.hidden_bias[axis]

    def of_level(self, bias: Tensor, diagonal: Diagonal) -> Tensor:
        if self.levels == 1:
            return bias[0]
        return bias[list(diagonal.last)][None, :, None]


class GridLSTM(nn.Module):
    """A grid over a sequence, an image or a volume, every cell given its input.

    Shape: `(b, channels, *space) -> (b, dims * hidden_size, *space)`: the hidden vectors sent along all axes.

    Args:
        channels: of the input.
        hidden_size: of every axis.
        dims: 1, 2 or 3.
        plain: axes without a memory.
        priority: axes computed last.
        backwards: from the end of every axis.
    """

    def __init__(
        self,
        channels: int,
        hidden_size: int,
        *,
        dims: int = 2,
        plain: Sequence[int] = (),
        priority: Sequence[int] = (),
        backwards: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("GridLSTM", channels=channels, hidden_size=hidden_size, dims=dims)
        if dims > 3:
            raise ValueError(f"GridLSTM takes one to three dimensions, got {dims}")
        self.channels, self.hidden_size, self.dims, self.backwards = channels, hidden_size, dims, backwards
        self.cell = GridCell(channels, hidden_size, dims, plain, priority)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != self.dims + 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"GridLSTM was built for (b, {self.channels}, *space) with {self.dims} dimensions, got the shape "
                f"{tuple(x.shape)}"
            )
        axes = tuple(range(2, x.dim()))
        cells, space = to_cells(x.flip(axes) if self.backwards else x)
        none = [[None] * self.dims] * 2
        hidden, _ = sweep(self.cell.project(cells)[None], space, self.cell.step, [self.hidden_size] * 2, none)
        y = to_map(hidden[0].flatten(2), space)
        return y.flip(axes) if self.backwards else y


class DepthGridLSTM(SequenceLayer):
    """A grid over time and depth: LSTM memories upwards too, so that deep stacks train.

    The input enters at the foot of the depth axis, as its first hidden vector and memory.

    Shape: `(b, t, input_size) -> (b, t, hidden_size)`, the hidden vectors that leave at the top. State `(h, m)`,
    each `(b, depth, hidden_size)`, of the time axis.

    Args:
        input_size, hidden_size: widths.
        depth: levels.
        tied: the same weights on every level.
        priority: depth sees the new hidden vector of time, as in the paper's language and translation models.
        plain: depth without a memory, `h' = tanh(V H)`: with it, this is a stacked LSTM.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        depth: int = 3,
        tied: bool = False,
        priority: bool = True,
        plain: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        require_positive("DepthGridLSTM", depth=depth)
        self.hidden_size, self.depth, self.tied = hidden_size, depth, tied
        self.enter = nn.Linear(input_size, 2 * hidden_size)
        self.cell = GridCell(
            0, hidden_size, 2, (1,) if plain else (), (1,) if priority else (), 1 if tied else depth
        )
        self.to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> State:
        return tuple(like.new_zeros(batch, self.depth, self.hidden_size) for _ in range(2))

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        given = self.start(x, state)
        step_masks(lengths, x)  # says what is wrong with lengths before any work
        before = [part.transpose(0, 1)[None] for part in given]  # (1, depth, b, h)
        foot = [part.transpose(0, 1)[None] for part in self.enter(x).chunk(2, -1)]  # (1, t, b, h)
        b, t, _ = x.shape
        borders = [[before[kind], foot[kind]] for kind in range(2)]
        nothing = x.new_zeros(1, t * self.depth, b, 0)
        states = sweep(nothing, (t, self.depth), self.cell.step, [self.hidden_size] * 2, borders)
        grids = [part[0].unflatten(0, (t, self.depth)) for part in states]  # (t, depth, b, axis, h)
        y = grids[0][:, -1, :, 1].transpose(0, 1)
        if lengths is None:
            return y, tuple(grid[-1, :, :, 0].transpose(0, 1) for grid in grids)
        y = zero_padding(y, lengths)
        index = (lengths.to(x.device) - 1).clamp(min=0)
        rows = torch.arange(b, device=x.device)
        last = (grid[index, :, rows, 0] for grid in grids)
        some = (lengths.to(x.device) > 0)[:, None, None]
        return y, tuple(torch.where(some, a, o) for a, o in zip(last, given, strict=True))
