# SPDX-License-Identifier: Apache-2.0
"""Long short-term memory: a cell state that is added to, and gates that say when.

    i, f, o = sigmoid(W x_t + U h_{t-1} + b)        g = tanh(...)
    c_t = f * c_{t-1} + i * g                       h_t = o * tanh(c_t)

Paper   Hochreiter & Schmidhuber, 1997; the forget gate: Gers et al., 2000; its bias of 1: Jozefowicz et al., 2015.
Facts   cost 4 t (h d + h^2). Along the cell state the gradient is multiplied by f alone.
Differs runs on torch's fused kernel (gate order i f g o, two biases). torch draws everything uniformly and has no
        forget bias; here U is orthogonal gate by gate, W by Glorot, the biases zero and the forget gate's 1, on
        one of the two, in every layer and direction. `recurrent="uniform", forget_bias=None` is torch's start.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from widefield.sequence.fused import FusedLayer, zero_biases_
from widefield.sequence.init import chrono_, recurrent_, uniform_, xavier_blocks_


class LSTM(FusedLayer):
    """The gated cell on torch's kernel, with a start that lets it remember.

    Shape: `(b, t, input_size) -> (b, t, directions * hidden_size)`; state `(h, c)`, each
    `(b, layers * directions, hidden_size)`.

    Args:
        input_size, hidden_size: widths.
        forget_bias: of the forget gates, all layers and directions; None leaves the start of the other biases.
        horizon: takes the place of `forget_bias`: biases drawn for dependencies of up to so many steps (chrono).
        recurrent: start of U, gate by gate: "orthogonal", "identity" or "uniform", as in `RNN`.
        gain: of an orthogonal or identity U.
        layers, bidirectional, dropout: as in `RNN`.
    """

    states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float | None = 1.0,
        horizon: int | None = None,
        recurrent: Literal["uniform", "orthogonal", "identity"] = "orthogonal",
        gain: float = 1.0,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(nn.LSTM, input_size, hidden_size, layers, bidirectional, dropout)
        for weight in self.parameters_of("weight_hh"):
            recurrent_(weight, recurrent, gain)
        for weight in self.parameters_of("weight_ih"):
            uniform_(weight, hidden_size) if recurrent == "uniform" else xavier_blocks_(weight, 4)
        if recurrent != "uniform":
            zero_biases_(self)
        with torch.no_grad():
            for inner, outer in zip(self.parameters_of("bias_ih"), self.parameters_of("bias_hh"), strict=True):
                gates = inner.view(4, hidden_size)
                if horizon is not None:
                    outer.view(4, hidden_size)[:2].zero_()
                    chrono_(gates[1], gates[0], horizon)
                elif forget_bias is not None:
                    gates[1].fill_(forget_bias)
                    outer.view(4, hidden_size)[1].zero_()
        self.to(device=device, dtype=dtype)
