# SPDX-License-Identifier: Apache-2.0
"""A recurrent network that attends over its own past (intra-attention, LSTMN).

    a_i = v . tanh(W_h h_i + W_x x_t + W_~ h~_{t-1})            i < t, softmax
    h~_t = sum_i a_i h_i,   c~_t = sum_i a_i c_i
    h_t, c_t = LSTM(x_t, (h~_t, c~_t))

Paper   Long Short-Term Memory-Networks for Machine Reading, EMNLP 2016, arXiv:1601.06733.
Facts   cost and memory O(t^2); with a window of w steps O(t w).
Differs at the first step there is nothing to attend to: h~ and c~ are the state given, or zero. `window` bounds the
        past. No implementation was run for comparison; the tests hold it to the written-out equations.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.sequence.init import orthogonal_blocks_, xavier_blocks_
from widefield.sequence.layer import SequenceLayer, State, padding_mask, zero_padding


class HistoryLSTM(SequenceLayer):
    """An LSTM whose previous state is a weighted mean of all its states so far.

    Shape: `(b, t, input_size) -> (b, t, hidden_size)`. State: the past it may attend to, `hs`, `cs`, each
    `(b, s, hidden_size)` with any s, and `h~`, `(b, hidden_size)`.

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
        return like.new_zeros(batch, 0, h), like.new_zeros(batch, 0, h), like.new_zeros(batch, h)

    def start(self, x: Tensor, state: State | None) -> State:  # type: ignore[override]
        fresh = super().start(x, None)
        if state is None:
            return fresh
        b, h = x.shape[0], self.hidden_size
        shapes = [tuple(s.shape) for s in state]
        if len(shapes) != 3 or shapes[0] != shapes[1] or len(shapes[0]) != 3 or shapes[2] != (b, h):
            raise ValueError(f"HistoryLSTM takes a state of ({b}, s, {h}) twice and ({b}, {h}), got {shapes}")
        return tuple(state)

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        hs, cs, summary = self.start(x, state)
        before = hs.shape[1]
        keys = self.of_past(hs)
        told = self.of_input(x)
        alive = None if lengths is None else padding_mask(lengths.to(x.device), x.shape[1])
        if lengths is not None and before + 1 > 1 and bool((lengths != x.shape[1]).any()):
            raise ValueError(
                "HistoryLSTM cannot go on from a state with unequal lengths, since the pasts would be of unequal "
                "length; give one sequence at a time"
            )
        h_past, c_past, k_past = list(hs.unbind(1)), list(cs.unbind(1)), list(keys.unbind(1))
        for t in range(x.shape[1]):
            first = 0 if self.window is None else max(0, len(h_past) - self.window)
            if h_past[first:]:
                past = torch.stack(h_past[first:], 1)
                query = told[:, t] + self.of_summary(summary)
                a = self.score(torch.tanh(torch.stack(k_past[first:], 1) + query[:, None])).softmax(1).mT  # (b, 1, s)
                summary = (a @ past)[:, 0]
                memory = (a @ torch.stack(c_past[first:], 1))[:, 0]
            else:
                memory = torch.zeros_like(summary)
            h, c = self.cell(x[:, t], (summary, memory))
            h_past.append(h)
            c_past.append(c)
            k_past.append(self.of_past(h))
        y = torch.stack(h_past[before:], 1)
        last = (torch.stack(h_past, 1), torch.stack(c_past, 1), summary)
        if self.window is not None:
            last = (last[0][:, -self.window :], last[1][:, -self.window :], summary)
        if alive is not None:
            y = zero_padding(y, lengths)
        return y, last
