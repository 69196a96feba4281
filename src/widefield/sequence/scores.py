# SPDX-License-Identifier: Apache-2.0
"""Attention scores as one small interface: how well does a key answer a query?

    additive        v . tanh(W q + U k)                 Bahdanau et al., arXiv:1409.0473
    concatenation   w . [q; k] + b                      one layer; with hidden units it is the additive one
    bilinear        q . W k                             "general" in Luong et al., arXiv:1508.04025
    dot             q . k, or q . k / sqrt(d)           Luong et al.; Vaswani et al., arXiv:1706.03762

Facts   additive: memory b t_q t_k h, the others b t_q t_k. The concatenation without a hidden layer gives every
        query the same weights: its query term is the same for all keys and cancels in the softmax.
Differs a query without any key that counts gets weights of zero, not NaN. Nothing is expanded in memory but the
        one sum that the tanh needs.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive


class Score(Protocol):
    """`(b, t_q, query_size), (b, t_k, key_size) -> (b, t_q, t_k)`."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor: ...


def masked_softmax(scores: Tensor, mask: Tensor | None, dim: int = -1) -> Tensor:
    """Softmax over what counts (mask True); all zeros, gradients too, where nothing does."""
    if mask is None:
        return scores.softmax(dim)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim)
    return torch.where(mask, weights, 0.0)


class AdditiveScore(nn.Module):
    """`v . tanh(W q + U k + b)`.

    Args:
        query_size, key_size: widths.
        hidden: of the sum; None for the query's.
        bias: b; AllenNLP has none, OpenNMT has it.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        hidden: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("AdditiveScore", query_size=query_size, key_size=key_size, hidden=hidden)
        hidden = query_size if hidden is None else hidden
        self.of_query = nn.Linear(query_size, hidden, bias=bias)
        self.of_key = nn.Linear(key_size, hidden, bias=False)
        self.vector = nn.Linear(hidden, 1, bias=False)
        self.to(device=device, dtype=dtype)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        both = torch.tanh(self.of_query(query)[:, :, None] + self.of_key(key)[:, None])  # (b, t_q, t_k, h)
        return self.vector(both)[..., 0]


class ConcatenationScore(nn.Module):
    """`w . [q; k] + b`.

    Args:
        query_size, key_size: widths.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("ConcatenationScore", query_size=query_size, key_size=key_size)
        self.sizes = (query_size, key_size)
        self.vector = nn.Linear(sum(self.sizes), 1)
        self.to(device=device, dtype=dtype)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        of_query, of_key = self.vector.weight[0].split(self.sizes)
        return (query @ of_query)[:, :, None] + (key @ of_key)[:, None] + self.vector.bias


class BilinearScore(nn.Module):
    """`q . W k`, W of `(query_size, key_size)`; a scalar bias if asked for, which cancels in a softmax.

    Args:
        query_size, key_size: widths.
        bias: the scalar.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("BilinearScore", query_size=query_size, key_size=key_size)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(query_size, key_size)))
        self.bias = nn.Parameter(torch.zeros(1)) if bias else None
        self.to(device=device, dtype=dtype)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = query @ self.weight @ key.mT
        return scores if self.bias is None else scores + self.bias


class DotScore(nn.Module):
    """`q . k`, over `sqrt(d)` where scaled; no parameters, one width for both.

    Args:
        size: of queries and keys.
        scaled: by the root of the width.
    """

    def __init__(self, size: int, *, scaled: bool = True) -> None:
        super().__init__()
        require_positive("DotScore", size=size)
        self.scale = size**-0.5 if scaled else 1.0

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return (query * self.scale) @ key.mT


class ScoredAttention(nn.Module):
    """Weights by any score, and the mean of the values under them.

    Shape: queries `(b, t_q, q)`, keys `(b, t_k, k)`, values `(b, t_k, v)` (None: the keys), mask `(b, t_k)` or
    `(b, t_q, t_k)`, True where a key counts. Returns `(b, t_q, v)` and the weights `(b, t_q, t_k)`.

    Args:
        score: one of the modules above, or any function of queries and keys.
    """

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        weights = self.weights(query, key, mask)
        return weights @ (key if value is None else value), weights

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """`(b, t_q, t_k)`; a row is all zeros where no key counts."""
        if mask is not None and mask.dim() == 2:
            mask = mask[:, None]
        return masked_softmax(self.score(query, key), mask)


class GlobalAttention(nn.Module):
    """Luong's attention: the context is mixed with the query, `f(W [c; q])`.

    f is tanh, or nothing where the score is additive and the map has a bias, as in OpenNMT.

    Shape: query `(b, t_q, size)`, memory `(b, t_k, size)`, mask as in `ScoredAttention`; returns `(b, t_q, size)`
    and the weights.

    Args:
        score: of queries and keys of one width.
        size: that width.
        squash: apply the tanh.
        bias: of W.
    """

    def __init__(
        self,
        score: Score,
        size: int,
        *,
        squash: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("GlobalAttention", size=size)
        self.attention, self.squash = ScoredAttention(score), squash
        self.mix = nn.Linear(2 * size, size, bias=bias)
        self.to(device=device, dtype=dtype)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context, weights = self.attention(query, memory, mask=mask)
        mixed = self.mix(torch.cat([context, query], -1))
        return torch.tanh(mixed) if self.squash else mixed, weights
