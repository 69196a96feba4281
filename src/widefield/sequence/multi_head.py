# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention over sequences: scaled dot products in several subspaces.

    y = W_o [softmax(Q_g K_g^T / sqrt(d_g)) V_g]_g + b_o

Paper   Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762.
Facts   cost 4 t d^2 + 2 t^2 d; memory O(t) by the fused kernel, O(g t^2) where the weights are asked for.
Differs as torch's `MultiheadAttention` in its state; a mask is True where a key counts, and a query without any
        gets the output bias, not NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.sequence.scores import masked_softmax


class MultiHeadAttention(nn.Module):
    """Queries attend to a memory, or to themselves.

    Shape: query `(b, t_q, size)`, memory `(b, t_k, size)` (None: the query), mask `(b, t_k)` or `(b, t_q, t_k)`;
    returns `(b, t_q, size)`.

    Args:
        size: width, a multiple of `heads`.
        heads: subspaces.
        bias: of the projections.

    Raises:
        ValueError: a width that the heads do not divide.
    """

    def __init__(
        self,
        size: int,
        *,
        heads: int = 8,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("MultiHeadAttention", size=size, heads=heads)
        if size % heads:
            raise ValueError(
                f"MultiHeadAttention: a width of {size} cannot be shared by {heads} heads; it must divide"
            )
        self.size, self.heads = size, heads
        self.project = nn.Linear(size, 3 * size, bias=bias)
        self.output = nn.Linear(size, size, bias=bias)
        nn.init.xavier_uniform_(self.project.weight)
        if bias:
            nn.init.zeros_(self.project.bias)
            nn.init.zeros_(self.output.bias)
        self.to(device=device, dtype=dtype)

    def forward(self, query: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.heads_of(query, memory)
        if mask is None:
            return self.join(F.scaled_dot_product_attention(q, k, v))
        mask = self._mask(mask)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~mask.any(-1, keepdim=True))
        return self.join(torch.where(mask.any(-1, keepdim=True), context, 0.0))

    def weighted(
        self, query: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The output and the weights `(b, heads, t_q, t_k)`, which the fused kernel never makes."""
        q, k, v = self.heads_of(query, memory)
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        weights = masked_softmax(scores, None if mask is None else self._mask(mask).expand_as(scores))
        return self.join(weights @ v), weights

    def heads_of(self, query: Tensor, memory: Tensor | None) -> list[Tensor]:
        """Queries, keys and values, `(b, heads, t, size / heads)`."""
        if memory is None:
            parts = self.project(query).chunk(3, -1)
        else:
            weights = self.project.weight.split([self.size, 2 * self.size])
            bias = self.project.bias
            biases = (None, None) if bias is None else bias.split([self.size, 2 * self.size])
            q = F.linear(query, weights[0], biases[0])
            parts = (q, *F.linear(memory, weights[1], biases[1]).chunk(2, -1))
        return [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]

    def join(self, context: Tensor) -> Tensor:
        return self.output(context.transpose(1, 2).flatten(2))

    def _mask(self, mask: Tensor) -> Tensor:
        return mask[:, None, None] if mask.dim() == 2 else mask[:, None]
