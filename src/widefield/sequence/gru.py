# SPDX-License-Identifier: Apache-2.0
"""Gated recurrent unit: an LSTM without a cell state of its own.

    r, z = sigmoid(W x_t + b + U h_{t-1} + b')
    n    = tanh(W_n x_t + b_n + r * (U_n h_{t-1} + b'_n))
    h_t  = (1 - z) * n + z * h_{t-1}

Paper   Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, arXiv:1406.1078.
Facts   cost 3 t (h d + h^2).
Differs runs on torch's fused kernel (gate order r z n), where the reset gate multiplies the product U_n h; the
        paper resets h before the product. z keeps, as torch has it; in the paper 1 - z does in one version.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from widefield.sequence.fused import FusedLayer, zero_biases_
from widefield.sequence.init import recurrent_, uniform_, xavier_blocks_


class GRU(FusedLayer):
    """The gated unit on torch's kernel.

    Shape: `(b, t, input_size) -> (b, t, directions * hidden_size)`; state `(h,)`, `(b, layers * directions, h)`.

    Args:
        input_size, hidden_size: widths.
        forget_bias: of z, the gate that keeps; 1 or 2 make a new unit remember, 0 is customary; None leaves the
            start of the other biases.
        recurrent: start of U, gate by gate: "orthogonal", "identity" or "uniform", as in `RNN`.
        gain: of an orthogonal or identity U.
        layers, bidirectional, dropout: as in `RNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float | None = None,
        recurrent: Literal["uniform", "orthogonal", "identity"] = "orthogonal",
        gain: float = 1.0,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(nn.GRU, input_size, hidden_size, layers, bidirectional, dropout)
        for weight in self.parameters_of("weight_hh"):
            recurrent_(weight, recurrent, gain)
        for weight in self.parameters_of("weight_ih"):
            uniform_(weight, hidden_size) if recurrent == "uniform" else xavier_blocks_(weight, 3)
        if recurrent != "uniform":
            zero_biases_(self)
        if forget_bias is not None:
            with torch.no_grad():
                for inner, outer in zip(self.parameters_of("bias_ih"), self.parameters_of("bias_hh"), strict=True):
                    inner.view(3, hidden_size)[1].fill_(forget_bias)
                    outer.view(3, hidden_size)[1].zero_()
        self.to(device=device, dtype=dtype)
