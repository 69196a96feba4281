# SPDX-License-Identifier: Apache-2.0
"""Non-local blocks whose pairwise function needs no softmax, at linear cost in positions.

    nonlocal-dot        f = theta_i . phi_j                   C = number of keys
    nonlocal-concat     f = ReLU(w . [theta_i; phi_j])        C = number of keys

Paper   Non-local Neural Networks, CVPR 2018, arXiv:1711.07971.
Facts   cost O(n d^2) (dot), O(n d + n log n) (concat). What the paper defines, summed in another order: exact.
Differs as `non_local.py`. The published code writes n x m numbers for both, 2 d n m for the concatenation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.attention.non_local import PAPER, TITLE, EmbeddedBase
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register


def linear_is_cheaper(n: int, m: int, d: int, e: int) -> bool:
    """Whether `(v k^T) q` takes fewer multiply-adds than `v (k^T q)`, for n queries, m keys, widths d and e."""
    return d * e * (n + m) <= n * m * (d + e)


def dot_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`y_i = (1/m) sum_j (q_i . k_j) v_j`, multiplied in the cheaper order.

    Args:
        q: `(b, d, n)`.
        k: `(b, d, m)`.
        v: `(b, e, m)`.

    Returns:
        `(b, e, n)`.
    """
    n, m = q.shape[-1], k.shape[-1]
    # A traced graph serves all sizes, so it may not hold a choice that depends on one.
    if torch.compiler.is_compiling() or linear_is_cheaper(n, m, q.shape[1], v.shape[1]):
        return (v @ k.mT / m) @ q
    return v @ (k.mT @ q / m)


def relu_sum(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """`y_i = (1/m) sum_j ReLU(a_i + b_j) v_j` in O((n + m) e + m log m).

    With the keys sorted by falling b, the j that pass the ReLU of query i come first, so both of
    `a_i sum v_j + sum b_j v_j` are read off running sums. Traced graphs write the n x m map out instead.

    Args:
        a: `(b, n)`.
        b: `(b, m)`.
        v: `(b, e, m)`.

    Returns:
        `(b, e, n)`.
    """
    m = b.shape[-1]
    if torch.compiler.is_compiling():
        return v @ torch.relu(a[:, :, None] + b[:, None, :]).mT / m
    order = b.argsort(-1, descending=True)
    passing = torch.searchsorted(-b.detach().gather(-1, order), a.detach(), side="left")
    # Sums of a_i + b_j cancel where a and b are large and opposite; sharing the mean keeps them small.
    shift = b.mean(-1, keepdim=True).detach()
    a, b = a + shift, (b - shift).gather(-1, order)
    sorted_v = v.mT.take_along_dim(order[..., None], 1)
    sums = torch.cat([sorted_v, b[..., None] * sorted_v], -1).cumsum(1)
    sums = F.pad(sums, (0, 0, 1, 0)).take_along_dim(passing[..., None], 1)
    plain, weighted = sums.chunk(2, -1)
    return ((a[..., None] * plain + weighted) / m).mT


@register(
    "nonlocal-dot", family="attention", title=TITLE, paper=PAPER, year=2018,
    identity_at_init=True, max_rank="inner", complexity="n",
)  # fmt: skip
class NonLocalDot(EmbeddedBase):
    """Dot product: `x + norm(W g(x) phi(x)^T theta(x) / m)`, in linear time; rows do not sum to one.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels, inner, sub_sample, shared_query_key, bias, project_bias, norm, gate: as `nonlocal`.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        sub_sample: bool = False,
        shared_query_key: bool = False,
        bias: bool = True,
        project_bias: bool = True,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, inner=inner, sub_sample=sub_sample, shared_query_key=shared_query_key, bias=bias,
            project_bias=project_bias, norm=norm, gate=gate,
        )  # fmt: skip
        self.to(device=device, dtype=dtype)

    def aggregate(self, tokens: Tensor, space: Space, values: Tensor) -> Tensor:
        return dot_product(*self.queries_keys(tokens, space), values)

    def matrix(self, tokens: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        queries, keys = self.queries_keys(tokens, space)
        queries = queries if rows is None else queries.index_select(-1, rows.to(queries.device))
        return queries.mT @ keys / keys.shape[-1]

    def mixing_cost(self, space: Space) -> int:
        n, m, d = math.prod(space), self.key_count(space), self.inner
        return d * d * (n + m) if linear_is_cheaper(n, m, d, d) else 2 * n * m * d


@register(
    "nonlocal-concat", family="attention", title=TITLE, paper=PAPER, year=2018,
    identity_at_init=True, complexity="n log n",
)  # fmt: skip
class NonLocalConcat(EmbeddedBase):
    """Concatenation: `f = ReLU(w . [theta_i; phi_j])`, that is `ReLU(a_i + b_j)`: two scores a position.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels, inner, sub_sample, shared_query_key, bias, project_bias, norm, gate: as `nonlocal`.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        sub_sample: bool = False,
        shared_query_key: bool = False,
        bias: bool = True,
        project_bias: bool = True,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, inner=inner, sub_sample=sub_sample, shared_query_key=shared_query_key, bias=bias,
            project_bias=project_bias, norm=norm, gate=gate,
        )  # fmt: skip
        self.pair = Pointwise(2 * self.inner, 1, bias=False)
        self.to(device=device, dtype=dtype)

    def scores(self, tokens: Tensor, space: Space) -> tuple[Tensor, Tensor]:
        """a `(b, n)` of the queries and b `(b, m)` of the keys."""
        queries, keys = self.queries_keys(tokens, space)
        of_query, of_key = self.pair.weight.to(tokens.dtype).chunk(2, 1)
        return (of_query @ queries).squeeze(1), (of_key @ keys).squeeze(1)

    def aggregate(self, tokens: Tensor, space: Space, values: Tensor) -> Tensor:
        return relu_sum(*self.scores(tokens, space), values)

    def matrix(self, tokens: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        a, b = self.scores(tokens, space)
        a = a if rows is None else a.index_select(-1, rows.to(a.device))
        return torch.relu(a[:, :, None] + b[:, None, :]) / b.shape[-1]

    def mixing_cost(self, space: Space) -> int:
        # The base counts `pair` as if both halves met all n positions; the keys' half meets m.
        return self.inner * (self.key_count(space) - math.prod(space))
