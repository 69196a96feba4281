# SPDX-License-Identifier: Apache-2.0
"""Multi-dimensional (feature-wise) attention and the directional self-attention network (DiSAN).

    source to token   s = sum_i softmax_i(W f(W1 x_i + b1) + b) * x_i          a weight for every feature
    token to token    h = f(W_h x + b_h)
                      a_ij = c tanh((W1 h_i + W2 h_j + b) / c),  c = 5          i before j, or after it
                      s_j = sum_i softmax_i(a_ij) * h_i
                      u = F * h + (1 - F) * s,   F = sigmoid(W_f1 s + W_f2 h + b_f)

Paper   DiSAN: Directional Self-Attention Network for RNN/CNN-Free Language Understanding, AAAI 2018,
        arXiv:1709.04696.
Facts   cost and memory b t^2 d: d times those of dot-product attention. f = ELU.
Differs as the authors' code: the gate F multiplies h; a token with nothing to attend to has s = 0; rows of padding
        are zero; the gate has three biases, of which only the sum counts. A sequence that is all padding pools to
        zero, not to the mean of the padding. The authors' dropout before each map and their batch norm, off there,
        are left out.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive, unknown
from widefield.sequence.scores import masked_softmax

SCALE = 5.0
DIRECTIONS = ("forward", "backward", "both")


def directional_mask(steps: int, direction: str, device: torch.device | None = None) -> Tensor:
    """`(t, t)`, row i (attended to), column j (attending): True where j may see i; never itself."""
    ones = torch.ones(steps, steps, dtype=torch.bool, device=device)
    if direction == "forward":
        return ones.triu(1)
    return ones.tril(-1) if direction == "backward" else ones.triu(1) | ones.tril(-1)


class MultiDimensionalAttention(nn.Module):
    """Feature-wise attention of one query over a sequence, or, without a query, of the sequence over itself
    (pooling).

    Shape: x `(b, t, size)`, query `(b, query_size)`, mask `(b, t)` -> `(b, size)`.

    Args:
        size: width of x.
        query_size: None for source-to-token pooling.
    """

    def __init__(
        self,
        size: int,
        *,
        query_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("MultiDimensionalAttention", size=size, query_size=query_size)
        self.hidden = nn.Linear(size, size)
        self.of_query = None if query_size is None else nn.Linear(query_size, size, bias=False)
        self.score = nn.Linear(size, size)
        for layer in (self.hidden, self.score):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        if (query is None) != (self.of_query is None):
            raise ValueError(
                "MultiDimensionalAttention takes a query exactly where it was built with a query_size"
            )
        return (self.weights(x, query, mask) * x).sum(1)

    def weights(self, x: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """`(b, t, size)`: over t a distribution for every feature."""
        hidden = self.hidden(x)
        if self.of_query is not None and query is not None:
            hidden = hidden + self.of_query(query)[:, None]
        return masked_softmax(self.score(F.elu(hidden)), None if mask is None else mask[..., None], 1)


class DiSABlock(nn.Module):
    """Directional self-attention with its fusion gate.

    Shape: x `(b, t, input_size)`, mask `(b, t)` -> `(b, t, size)`.

    Args:
        input_size: width of x.
        size: width inside and out; None for that of x.
        direction: tokens see those before ("forward"), after ("backward"), or all but themselves ("both").
    """

    def __init__(
        self,
        input_size: int,
        *,
        size: int | None = None,
        direction: Literal["forward", "backward", "both"] = "forward",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("DiSABlock", input_size=input_size, size=size)
        if direction not in DIRECTIONS:
            raise unknown("direction", direction, DIRECTIONS)
        size = input_size if size is None else size
        self.direction = direction
        self.dense = nn.Linear(input_size, size)
        self.source, self.target = (nn.Linear(size, size, bias=False) for _ in range(2))  # W1 of i, W2 of j
        self.score_bias = nn.Parameter(torch.zeros(size))
        self.gate_attended, self.gate_dense = (nn.Linear(size, size) for _ in range(2))
        self.gate_bias = nn.Parameter(torch.zeros(size))
        for layer in (self.dense, self.source, self.target, self.gate_attended, self.gate_dense):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = F.elu(self.dense(x))
        s = self.attend(h, mask)
        gate = torch.sigmoid(self.gate_attended(s) + self.gate_dense(h) + self.gate_bias)
        u = gate * h + (1 - gate) * s
        return u if mask is None else torch.where(mask[..., None], u, 0.0)

    def attend(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """s, `(b, t, size)`."""
        told, asking = self.source(h)[:, :, None], self.target(h)[:, None] + self.score_bias
        scores = SCALE * torch.tanh((told + asking) / SCALE)  # (b, i, j, size)
        allowed = directional_mask(h.shape[1], self.direction, h.device)[None]
        if mask is not None:
            allowed = allowed & mask[:, :, None] & mask[:, None]
        weights = masked_softmax(scores, allowed[..., None], 1)
        return torch.einsum("bijd,bid->bjd", weights, h)


class DiSAN(nn.Module):
    """Forward and backward blocks side by side, then source-to-token pooling: a sentence as one vector.

    Shape: x `(b, t, input_size)`, mask `(b, t)` -> `(b, 2 size)`.

    Args:
        input_size: width of x.
        size: of each direction; None for that of x.
    """

    def __init__(
        self,
        input_size: int,
        *,
        size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = input_size if size is None else size
        self.ahead = DiSABlock(input_size, size=size, direction="forward")
        self.back = DiSABlock(input_size, size=size, direction="backward")
        self.pool = MultiDimensionalAttention(2 * size)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.pool(torch.cat([self.ahead(x, mask), self.back(x, mask)], -1), mask=mask)
