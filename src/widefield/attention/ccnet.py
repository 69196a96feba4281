# SPDX-License-Identifier: Apache-2.0
"""Criss-cross attention: each position attends to its row and its column, and does so again.

    y_p = x_p + a sum_u softmax_u(q_p . k_u) v_u        u in the row and the column of p, p itself once
    applied R times with the same weights; after two passes every position has reached every other

Paper   CCNet: Criss-Cross Attention for Semantic Segmentation, ICCV 2019 (TPAMI 2020), arXiv:1811.11721.
Facts   cost n (h + w)(c + c/8) a pass, weights n (h + w) in memory, no copy of features along the paths. Each pass
        is one sparse matrix whose rows sum to 1; h + w - 1 weights a row.
Differs not at all in the numbers. The R residuals are summed: x + a (context_1 + ... + context_R) is what the
        recurrence gives, so the context alone is that sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.core import layout
from widefield.core.context import Context
from widefield.core.gates import scalar_gate
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register


def criss_cross_weights(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """One softmax over the row and the column of each position, in two parts that sum to 1 together.

    Args:
        q, k: `(b, h, w, d)`, channels last.

    Returns:
        `(b, h, w, w)`, weights along the row, and `(b, w, h, h)`, along the column; a position's weight for itself
        is in its row, and zero in its column.
    """
    rows, columns = q @ k.mT, q.transpose(1, 2) @ k.transpose(1, 2).mT
    itself = torch.eye(q.shape[1], dtype=torch.bool, device=q.device)
    columns = columns.masked_fill(itself, -math.inf)
    # The softmax does not see what is constant for a position. Rows are never empty, so the largest is finite.
    top = torch.maximum(rows.amax(-1), columns.amax(-1).mT).detach()
    rows, columns = (rows - top[..., None]).exp(), (columns - top.mT[..., None]).exp()
    total = rows.sum(-1) + columns.sum(-1).mT
    return rows / total[..., None], columns / total.mT[..., None]


def criss_cross(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`sum_u softmax_u(q_p . k_u) v_u` over the row and the column of p: `(b, h, w, e)`, channels last.

    Args:
        q, k: `(b, h, w, d)`.
        v: `(b, h, w, e)`.
    """
    rows, columns = criss_cross_weights(q, k)
    return rows @ v + (columns @ v.transpose(1, 2)).transpose(1, 2)


def criss_cross_matrix(q: Tensor, k: Tensor) -> Tensor:
    """The same weights as a dense matrix `(b, n, n)`, zero off the cross."""
    rows, columns = criss_cross_weights(q, k)
    h, w = q.shape[1:3]
    matrix = q.new_zeros(q.shape[0], h, w, h, w)
    i, j = torch.arange(h, device=q.device), torch.arange(w, device=q.device)
    matrix[:, i[:, None], j, i[:, None], :] = rows
    matrix[:, i[:, None], j, :, j] += columns.permute(2, 1, 0, 3)
    return matrix.flatten(3).flatten(1, 2)


@register(
    "ccnet", family="attention", title="CCNet: Criss-Cross Attention for Semantic Segmentation",
    paper="arXiv:1811.11721", year=2019, row_sum=1.0, identity_at_init=True, complexity="n^1.5",
    limits={"dimensions": "a criss-cross of rows and columns: two dimensions"},
)  # fmt: skip
class CrissCrossAttention(Context):
    """Attention along row and column, R times with shared weights and a learned scalar gate.

    `operator` is the matrix of the first pass; the later ones see features that the earlier ones have changed.

    Shape: `(b, channels, h, w) -> (b, channels, h, w)`.

    Args:
        channels: of the input.
        inner: width of queries and keys (None: an eighth of the channels, at least 1).
        recurrence: R, how often it is applied; 2 as published.
        gate: initial value of the learned scale; 0 makes a new module an identity, as published.
    """

    space_dims = (2,)

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        recurrence: int = 2,
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        if inner is not None and inner < 1:
            raise ValueError(f"CrissCrossAttention: inner must be a positive number of channels, got {inner}")
        if recurrence < 1:
            raise ValueError(f"CrissCrossAttention: recurrence must be 1 pass or more, got {recurrence}")
        self.inner = max(1, channels // 8) if inner is None else inner
        self.recurrence = recurrence
        self.query = Pointwise(channels, self.inner)
        self.key = Pointwise(channels, self.inner)
        self.value = Pointwise(channels, channels)
        self.gate = scalar_gate(gate)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        # With the channel last in memory, rows and columns are matrices as they lie.
        z = layout.exchanged(tokens)
        total = context = self.once(z, space)
        for _ in range(self.recurrence - 1):
            z = z + self.gate * context
            context = self.once(z, space)
            total = total + context
        return total.mT if tokens.mT.is_contiguous() else layout.exchanged(total)

    def once(self, z: Tensor, space: Space) -> Tensor:
        """One pass, channels last: `(b, n, c) -> (b, n, c)`."""
        q, k, v = (part(z.mT).mT.unflatten(1, space) for part in (self.query, self.key, self.value))
        return criss_cross(q, k, v).flatten(1, 2)

    def leave(self, context: Tensor) -> Tensor:
        return self.gate * context

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            q, k = (part(tokens).mT.unflatten(1, space) for part in (self.query, self.key))
            matrix = criss_cross_matrix(q, k)
            return matrix if rows is None else matrix.index_select(1, rows.to(x.device))

    def mixing_cost(self, space: Space) -> int:
        n = math.prod(space)
        again = sum(part.multiply_adds(n) for part in (self.query, self.key, self.value))
        return self.recurrence * n * sum(space) * (self.channels + self.inner) + (self.recurrence - 1) * again

    def open_gate_(self, value: float = 1.0) -> bool:
        with torch.no_grad():
            self.gate.fill_(value)
        return True
