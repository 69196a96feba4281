# SPDX-License-Identifier: Apache-2.0
"""Layers on torch's own fused kernels, with lengths and the batch first in the state too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from widefield.core.errors import require_positive
from widefield.core.numerics import float32_island
from widefield.sequence.layer import SequenceLayer, State


class FusedLayer(SequenceLayer):
    """Holds a `torch.nn.RNN`, `LSTM` or `GRU` as `core`.

    A state is `(h,)` or `(h, c)`, each `(b, layers * directions, hidden_size)`.
    """

    core: nn.RNNBase
    states: int = 1

    def __init__(
        self,
        kind: Any,
        input_size: int,
        hidden_size: int,
        layers: int,
        bidirectional: bool,
        dropout: float,
        **more: Any,
    ) -> None:
        require_positive(type(self).__name__, hidden_size=hidden_size, layers=layers)
        super().__init__(input_size, hidden_size * (2 if bidirectional else 1))
        if not 0 <= dropout < 1:
            raise ValueError(f"{type(self).__name__}: dropout must lie in 0 .. 1, got {dropout}")
        self.hidden_size, self.layers, self.directions = hidden_size, layers, 2 if bidirectional else 1
        dropout = dropout if layers > 1 else 0.0  # torch's stands between layers only
        self.core = kind(
            input_size, hidden_size, layers, batch_first=True, bidirectional=bidirectional, dropout=dropout, **more
        )

    def parameters_of(self, kind: str) -> Iterator[Tensor]:
        """All layers' and directions' `weight_ih`, `weight_hh`, `bias_ih` or `bias_hh`."""
        for name, parameter in self.core.named_parameters():
            if name.startswith(f"{kind}_l"):
                yield parameter

    def initial_state(self, batch: int, like: Tensor) -> State:
        return tuple(
            like.new_zeros(batch, self.layers * self.directions, self.hidden_size) for _ in range(self.states)
        )

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        start = tuple(s.transpose(0, 1).contiguous() for s in self.start(x, state))
        given: Any = start if self.states > 1 else start[0]
        # Many CPUs have no half-precision kernel for these.
        with float32_island(x) if x.device.type == "cpu" else nullcontext():
            return self.run(x, given, lengths)

    def run(self, x: Tensor, given: Any, lengths: Tensor | None) -> tuple[Tensor, State]:
        """torch's kernel, padding passed over."""
        if lengths is None:
            y, last = self.core(x, given)
        else:
            if lengths.shape != x.shape[:1] or int(lengths.min()) < 1 or int(lengths.max()) > x.shape[1]:
                raise ValueError(
                    f"lengths must be {x.shape[0]} numbers from 1 to {x.shape[1]}, got {lengths.tolist()}"
                )
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            packed, last = self.core(packed, given)
            y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        last = last if isinstance(last, tuple) else (last,)
        return y, tuple(s.transpose(0, 1) for s in last)


def zero_biases_(layer: FusedLayer) -> None:
    """Both biases of every layer and direction."""
    with torch.no_grad():
        for kind in ("bias_ih", "bias_hh"):
            for bias in layer.parameters_of(kind):
                bias.zero_()
