# SPDX-License-Identifier: Apache-2.0
"""External attention: positions attend to a small learned memory, the same for all images.

    A = softmax over positions of M_k W_1 x,  divided by (1e-9 + its sum over the memory)
    y = ReLU(x + norm(W_2 M_v A))

Paper   Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks, TPAMI 2022,
        arXiv:2105.02358.
Facts   cost 2 n c r + 2 r c^2: W_1 and W_2 meet the memories, not the positions. Context of rank <= r. No matrix
        over positions: each sees the memory alone, and the others through the two normalisations.
Differs the two normalisations are two softmaxes, where the guard, which half precision would lose, is one more
        logit. The authors' norm moves its statistics by 3e-4 a step, here it is torch's 0.1; for theirs pass
        `norm=lambda c: BatchNorm(c, momentum=3e-4)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core import layout
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import require_positive
from widefield.core.layout import Space
from widefield.core.norm import NormName, make_norm
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise, chained, chained_cost
from widefield.core.registry import register

GUARD = 1e-9


def double_normalise(logits: Tensor, guard: float = GUARD) -> Tensor:
    """Softmax over the last axis, then each column over (guard + its sum): `(b, r, n) -> (b, r, n)`.

    With u the logarithm of the first this is `exp(u) / (guard + sum_r exp(u))`, a softmax over r in which the
    guard is one more row: a column whose entries are all tiny keeps its digits and its gradient.
    """
    u = logits.log_softmax(-1)
    if not guard:
        return u.softmax(1)
    return F.pad(u, (0, 0, 0, 1), value=math.log(guard)).softmax(1)[:, :-1]


@register(
    "external-attention", family="attention",
    title="Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks",
    paper="arXiv:2105.02358", year=2022, max_rank="rank",
)  # fmt: skip
class ExternalAttention(Context):
    """`ReLU(x + norm(W_2 M_v A))`, A the doubly normalised similarity of W_1 x to the memory M_k.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        rank: rows of the memories, S in the paper.
        guard: added to the sum over the memory before it divides.
        norm: after W_2.
    """

    def __init__(
        self,
        channels: int,
        *,
        rank: int = 64,
        guard: float = GUARD,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        require_positive("ExternalAttention", rank=rank)
        if guard < 0:
            raise ValueError(f"ExternalAttention: guard must not be negative, got {guard}")
        self.rank, self.guard = rank, guard
        self.lower = Pointwise(channels, channels)
        self.keys = Pointwise(channels, rank, bias=False)
        self.values = Pointwise(rank, channels, bias=False)
        self.upper = Pointwise(channels, channels, bias=False)
        self.norm = make_norm(norm, channels)
        # Variance 2 / fan-out, as the authors' code.
        for part in (self.lower, self.keys, self.values, self.upper):
            nn.init.normal_(part.weight, std=(2 / part.out_channels) ** 0.5)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            y = self.norm(layout.to_map(chained(self.codes(tokens), self.values, self.upper), space))
            y = torch.relu_(x + y)
        return layout.like(y.to(x.dtype), x)

    def codes(self, tokens: Tensor) -> Tensor:
        """A, `(b, rank, n)`: how much of each memory row a position gets."""
        return double_normalise(chained(tokens, self.lower, self.keys), self.guard)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.values(self.codes(tokens))

    def cost(self, shape: tuple[int, ...]) -> Cost:
        n = math.prod(shape[2:])
        ends = ((self.lower, self.keys), (self.values, self.upper))
        return Cost(
            sum(chained_cost(shape[0], n, inner, outer) for inner, outer in ends),
            self.trainable(),
        )
