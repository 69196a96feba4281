# SPDX-License-Identifier: Apache-2.0
"""A recurrent network that attends over its own past (intra-attention, LSTMN).

    a_i = v . tanh(W_h h_i + W_x x_t + W_~ h~_{t-1})            i < t, softmax
    h~_t = sum_i a_i h_i,   c~_t = sum_i a_i c_i
    h_t, c_t = LSTM(x_t, (h~_t, c~_t))

Paper   Long Short-Term Memory-Networks for Machine Reading, EMNLP 2016, arXiv:1601.06733.
Facts   cost and memory O(t^2); with a window of w steps O(t w).
Differs at the first step there is nothing to attend to: h~ and c~ are the state given, or zero. `window` bounds
        the past. No implementation was run for comparison; the tests hold it to the written-out equations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.sequence.init import orthogonal_blocks_, xavier_blocks_
from widefield.sequence.layer import SequenceLayer, State, masked, step_masks, zero_padding
from widefield.sequence.scores import masked_softmax


class HistoryLSTM(SequenceLayer):
    """An LSTM whose previous state is a weighted mean of all its states so far.

    Shape: `(b, t, input_size) -> (b, t, hidden_size)`. State: the past it may attend to, `hs`, `cs`, each
    `(b, s, hidden_size)` with any s, `(b, s)` ones where a step of it counts, and `h~`, `(b, hidden_size)`.

    Args:
        input_size, hidden_size: widths.
        window: steps back that are seen; None for all.
        forget_bias: of the forget gate.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        window: int | None = None,
        forget_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        require_positive("HistoryLSTM", window=window)
        self.hidden_size, self.window = hidden_size, window
        self.cell = nn.LSTMCell(input_size, hidden_size)
        orthogonal_blocks_(self.cell.weight_hh)
        xavier_blocks_(self.cell.weight_ih, 4)
        nn.init.zeros_(self.cell.bias_hh)
        nn.init.zeros_(self.cell.bias_ih)
        with torch.no_grad():
            self.cell.bias_ih.view(4, hidden_size)[1].fill_(forget_bias)
        self.of_past = nn.Linear(hidden_size, hidden_size, bias=False)
        self.of_input = nn.Linear(input_size, hidden_size)
        self.of_summary = nn.Linear(hidden_size, hidden_size, bias=False)
        self.score = nn.Linear(hidden_size, 1, bias=False)
        self.to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> State:
        h = self.hidden_size
        past = (like.new_zeros(batch, 0, h), like.new_zeros(batch, 0, h))
        return (*past, like.new_zeros(batch, 0), like.new_zeros(batch, h))

    def start(self, x: Tensor, state: Sequence[Tensor] | None) -> State:
        fresh = super().start(x, None)
        if state is None:
            return fresh
        b, h, shapes = x.shape[0], self.hidden_size, [tuple(s.shape) for s in state]
        steps = shapes[0][1] if shapes and len(shapes[0]) == 3 else 0
        wanted = [(b, steps, h), (b, steps, h), (b, steps), (b, h)]
        if shapes != wanted:
            raise ValueError(f"HistoryLSTM takes a state of the shapes {wanted} with any {steps}, got {shapes}")
        return tuple(state)

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        past, memories, counts, summary = self.start(x, state)
        before, told = past.shape[1], self.of_input(x)
        hs, cs = list(past.unbind(1)), list(memories.unbind(1))
        ks, valid = list(self.of_past(past).unbind(1)), list(counts.unbind(1))
        steps = zip(x.unbind(1), told.unbind(1), step_masks(lengths, x), strict=True)
        for entering, asking, alive in steps:
            first = 0 if self.window is None else max(0, len(hs) - self.window)
            attended, memory = summary, torch.zeros_like(summary)
            if hs[first:]:
                # (b, 1, s): v . tanh(W_h h_i + W_x x_t + W_~ h~)
                query = asking + self.of_summary(summary)
                scores = self.score(torch.tanh(torch.stack(ks[first:], 1) + query[:, None])).mT
                weights = masked_softmax(scores, torch.stack(valid[first:], 1)[:, None] > 0)
                attended = (weights @ torch.stack(hs[first:], 1))[:, 0]
                memory = (weights @ torch.stack(cs[first:], 1))[:, 0]
            h, c = self.cell(entering, (attended, memory))
            (summary,) = masked(alive, (attended,), (summary,))
            hs.append(h)
            cs.append(c)
            ks.append(self.of_past(h))
            valid.append(torch.ones_like(h[:, 0]) if alive is None else alive.to(h.dtype))
        y = zero_padding(torch.stack(hs[before:], 1), lengths)
        kept = slice(0, None) if self.window is None or lengths is not None else slice(-self.window, None)
        last = (torch.stack(part[kept], 1) for part in (hs, cs, valid))
        return y, (*last, summary)
