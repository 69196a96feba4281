# SPDX-License-Identifier: Apache-2.0
"""The plain recurrent network (Elman; "simple", "vanilla"), and its identity-matrix form, the IRNN.

    h_t = phi(W x_t + b + U h_{t-1} + b')        phi = tanh or ReLU

Paper   Elman, Finding Structure in Time, 1990; orthogonal U: Saxe et al., arXiv:1312.6120, Henaff et al.,
        arXiv:1602.06662; identity U with ReLU: Le, Jaitly, Hinton, arXiv:1504.00941.
Facts   cost t (h d + h^2), strictly sequential. dh_t/dh_{t-k} is a product of k matrices diag(phi') U: it vanishes
        where the largest singular value of U times the largest |phi'| is below 1; above 1 it may explode.
Differs runs on torch's fused kernel, which has two biases of which only the sum counts.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from widefield.core.errors import unknown
from widefield.sequence.fused import FusedLayer, zero_biases_
from widefield.sequence.init import recurrent_, uniform_, xavier_blocks_

IDENTITY_INPUT_DEVIATION = 1e-3


class RNN(FusedLayer):
    """`h_t = phi(W x_t + U h_{t-1} + b)`.

    Shape: `(b, t, input_size) -> (b, t, directions * hidden_size)`; state `(h,)`, `(b, layers * directions, h)`.

    Args:
        input_size, hidden_size: widths.
        nonlinearity: "tanh" or "relu".
        recurrent: start of U. "orthogonal" (times `gain`; W by Glorot, no bias), "identity" (times `gain`; W
            normal with deviation 0.001, no bias, as in the IRNN) or "uniform" (all parameters in +- 1 / sqrt(h),
            as torch).
        gain: of an orthogonal or identity U.
        layers: one above the other.
        bidirectional: a second network from the end to the start, side by side.
        dropout: between layers, in training.

    Raises:
        UnknownName: a nonlinearity or start that does not exist.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        recurrent: Literal["uniform", "orthogonal", "identity"] = "orthogonal",
        gain: float = 1.0,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise unknown("nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(
            nn.RNN, input_size, hidden_size, layers, bidirectional, dropout, nonlinearity=nonlinearity
        )
        self.nonlinearity, self.recurrent = nonlinearity, recurrent
        for weight in self.parameters_of("weight_hh"):
            recurrent_(weight, recurrent, gain)
        for weight in self.parameters_of("weight_ih"):
            if recurrent == "uniform":
                uniform_(weight, hidden_size)
            elif recurrent == "identity":
                nn.init.normal_(weight, std=IDENTITY_INPUT_DEVIATION)
            else:
                xavier_blocks_(weight, 1)
        if recurrent != "uniform":
            zero_biases_(self)
        self.to(device=device, dtype=dtype)
