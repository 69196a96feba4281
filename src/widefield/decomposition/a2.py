# SPDX-License-Identifier: Apache-2.0
"""Double attention (A2): descriptors gathered from the whole map, then handed out to every position.

    y = x + W Z softmax_k(rho(x))        Z = phi(x) softmax_i(theta(x))^T, m x k descriptors

One step of expectation-maximisation with learned projections: the gathering softmax makes k weighted means of the
values (an M-step), the distributing softmax says how much of each a position takes (an E-step). EMANet iterates
the two on the features themselves.

Paper   A^2-Nets: Double Attention Networks, NeurIPS 2018, arXiv:1810.11579.
Facts   cost 2 n m k + projections, memory n (m + k); rank over positions at most k; rows of the matrix, of all
        positions by all, sum to 1. "A2" of the Hamburger paper is inner = rank = channels.
Differs not at all. Widespread copies take a softmax over the batch, by naming no axis.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.core import layout
from widefield.core.context import Context
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise, together
from widefield.core.registry import register


def double_attention(values: Tensor, gathering: Tensor, distributing: Tensor) -> Tensor:
    """`(A softmax_n(B)^T) softmax_k(V)`: `(b, m, n), (b, k, n), (b, k, n) -> (b, m, n)`."""
    return (values @ gathering.softmax(-1).mT) @ distributing.softmax(1)


@register(
    "a2", family="decomposition", title="A^2-Nets: Double Attention Networks", paper="arXiv:1810.11579", year=2018,
    row_sum=1.0, max_rank="rank",
)  # fmt: skip
class DoubleAttention(Context):
    """Gather by attention over positions, distribute by attention over descriptors.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        inner: m, width of the values (None: a quarter of the channels, at least 1).
        rank: k, number of descriptors (None: as `inner`).
        reconstruct: project back to `channels` and add the input; without, the output is the `inner` channels
            of the context.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        rank: int | None = None,
        reconstruct: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.inner = max(1, channels // 4) if inner is None else inner
        self.rank = self.inner if rank is None else rank
        if self.inner < 1 or self.rank < 1:
            raise ValueError(
                f"DoubleAttention: inner and rank must be positive numbers, got inner={inner} and rank={rank}"
            )
        super().__init__(channels, out_channels=channels if reconstruct else self.inner)
        self.value = Pointwise(channels, self.inner)
        self.gather = Pointwise(channels, self.rank)
        self.distribute = Pointwise(channels, self.rank)
        self.out = Pointwise(self.inner, channels) if reconstruct else None
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        # The values apart: softmax lets go of the maps it takes, and a view of them would not.
        return double_attention(self.value(tokens), *together(tokens, self.gather, self.distribute))

    def leave(self, context: Tensor) -> Tensor:
        return context if self.out is None else self.out(context)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y if self.out is None else x + y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, _ = layout.to_positions(widen(x))
            wanted = tokens if rows is None else tokens.index_select(-1, rows.to(tokens.device))
            return self.distribute(wanted).softmax(1).mT @ self.gather(tokens).softmax(-1)

    def mixing_cost(self, space: Space) -> int:
        return 2 * math.prod(space) * self.inner * self.rank
