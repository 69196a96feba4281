# SPDX-License-Identifier: Apache-2.0
"""Disentangled non-local: what sets two positions apart from the mean pair, plus what makes a position salient.

    w_ij = softmax_j((q_i - mean q) . (k_j - mean k) / t) + softmax_j(m . x_j)        z = x + norm(W (w g(x)))

The second term is the same for every i: one vector, added to every position.

Paper   Disentangled Non-Local Neural Networks, ECCV 2020, arXiv:2006.06668.
Facts   cost n^2 2 d for the pairs, n (c + d) for the salience; memory never n x n; rows sum to 2. With batch norm
        after W a training batch of one learns no salience: the norm subtracts what all positions share.
Differs not at all. At the published temperature, 0.05, a row is close to one-hot and float32 keeps five digits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.attention.non_local import EmbeddedBase
from widefield.attention.sdpa import attention, attention_matrix
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register


def whiten(x: Tensor) -> Tensor:
    """`(b, c, n)` less its mean over positions."""
    return x - x.mean(-1, keepdim=True)


def salience(scores: Tensor, values: Tensor) -> Tensor:
    """`sum_j softmax_j(scores_j) v_j`: `(b, 1, n)` and `(b, e, n)` to `(b, e, 1)`."""
    return values @ scores.softmax(-1).mT


@register(
    "dnl", family="attention", title="Disentangled Non-Local Neural Networks", paper="arXiv:2006.06668", year=2020,
    row_sum=2.0, identity_at_init=True, complexity="n^2",
)  # fmt: skip
class DisentangledNonLocal(EmbeddedBase):
    """A whitened pairwise softmax and a unary one, added: `x + norm(W (pairs + salience))`.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        inner: width of queries, keys and values (None: half of the channels, at least 1).
        temperature: t, what the pairwise logits are divided by.
        scale: divide them by sqrt(inner) as well.
        shared_query_key: one transform for both.
        bias: of queries, keys and values. project_bias: of W, which in the original has one where no norm follows.
        norm: after W.
        gate: initial scale of that norm; 0 makes a new block an identity, as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        temperature: float = 0.05,
        scale: bool = False,
        shared_query_key: bool = False,
        bias: bool = True,
        project_bias: bool = False,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, inner=inner, sub_sample=False, shared_query_key=shared_query_key, bias=bias,
            project_bias=project_bias, norm=norm, gate=gate,
        )  # fmt: skip
        if temperature <= 0:
            raise ValueError(f"DisentangledNonLocal: temperature must be positive, got {temperature}")
        self.scale = (self.inner**-0.5 if scale else 1.0) / temperature
        self.unary = Pointwise(channels, 1)
        self.to(device=device, dtype=dtype)

    def pairs(self, tokens: Tensor, space: Space) -> tuple[Tensor, Tensor]:
        """`(b, d, n)` whitened queries and keys."""
        queries, keys = self.queries_keys(tokens, space)
        return whiten(queries), whiten(keys)

    def aggregate(self, tokens: Tensor, space: Space, values: Tensor) -> Tensor:
        salient = salience(self.unary(tokens), values)
        return attention(*self.pairs(tokens, space), values, scale=self.scale) + salient

    def matrix(self, tokens: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        pairwise = attention_matrix(*self.pairs(tokens, space), rows=rows, scale=self.scale)
        return pairwise + self.unary(tokens).softmax(-1)

    def mixing_cost(self, space: Space) -> int:
        n = math.prod(space)
        return (2 * n + 1) * n * self.inner
