# SPDX-License-Identifier: Apache-2.0
"""Asymmetric non-local: positions attend to a pyramid of averages, not to each other.

    y = norm(W_o [W softmax_l(d^-1/2 q^T pool(k)) pool(v), x])

    apnb    q = k, one transform of x; v of x; ReLU at the end
    afnb    q of x; k and v of another map, lower in the network, of any size and width

Paper   Asymmetric Non-local Neural Networks for Semantic Segmentation, ICCV 2019, arXiv:1908.07678.
Facts   cost n L (d + e) for L points, 110 with the default bins in two dimensions; rank bounded by L.
Differs values are pooled before their 1x1, not after: the same numbers, and the 1x1 meets L points. The transform
        that apnb shares runs once, so that its norm's statistics move once a step and not twice. The published
        `scale` option is left out: it never restored the size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.attention.sdpa import attention, attention_matrix
from widefield.core import layout
from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import require_positive
from widefield.core.gates import GatedProjection
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register
from widefield.core.resample import pool, pool_cost, pooling_matrix

TITLE = "Asymmetric Non-local Neural Networks for Semantic Segmentation"
PAPER = "arXiv:1908.07678"


def pyramid(tokens: Tensor, space: Space, bins: Sequence[int]) -> Tensor:
    """The averages over all cells of all grids: `(b, c, n) -> (b, c, L)`, coarsest first as given."""
    return torch.cat([level.flatten(2) for level in pool(layout.to_map(tokens, space), bins)], 2)


def pyramid_matrix(space: Space, bins: Sequence[int], like: Tensor) -> Tensor:
    """`(L, n)`: the weights of the positions in each average."""
    grids = []
    for s in bins:
        grid = like.new_ones(1, 1)
        for size in space:
            grid = torch.kron(grid, pooling_matrix(s, size, like))
        grids.append(grid)
    return torch.cat(grids)


class AsymmetricBase(Context):
    """Pooled attention and the way out; a subclass says where keys and values come from, and how it ends."""

    def __init__(
        self,
        channels: int,
        *,
        low_channels: int,
        inner: int | None,
        value_channels: int | None,
        out_channels: int | None,
        bins: Sequence[int],
        dropout: float,
        slope: float,
        norm: NormName,
        gate: float,
    ) -> None:
        name = type(self).__name__
        require_positive(name, inner=inner, value_channels=value_channels, out_channels=out_channels)
        self.bins = tuple(bins)
        if not self.bins or min(self.bins) < 1:
            raise ValueError(f"{name}: bins must be one or more positive integers, got {bins!r}")
        super().__init__(channels, out_channels=out_channels)
        self.inner = max(1, channels // 2) if inner is None else inner
        self.value_channels = max(1, channels // 2) if value_channels is None else value_channels
        self.scale, self.dropout = self.inner**-0.5, dropout
        self.key = PointwiseBranch(low_channels, self.inner, bias=True, norm=norm)
        self.value = Pointwise(low_channels, self.value_channels)
        self.project = GatedProjection(self.value_channels, self.out_channels, norm="none", gate=gate)
        self.out = PointwiseBranch(
            self.out_channels + channels, self.out_channels, bias=True, norm=norm, slope=slope
        )

    def points(self, space: Space) -> int:
        """L, the number of averages."""
        return sum(s ** len(space) for s in self.bins)

    def queries_keys(self, tokens: Tensor, low: Tensor, space: Space) -> tuple[Tensor, Tensor]:
        """`(b, d, n)` queries of `tokens` and `(b, d, L)` keys of `low`, which has that space."""
        raise NotImplementedError

    def gather(self, tokens: Tensor, low: Tensor, space: Space) -> Tensor:
        """What the queries of `tokens` find in `low`, `(b, e, n)`."""
        values = self.value(pyramid(low, space, self.bins))
        return attention(*self.queries_keys(tokens, low, space), values, scale=self.scale)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.gather(tokens, tokens, space)

    def leave(self, context: Tensor) -> Tensor:
        return self.project(context)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return F.dropout(self.out(y, x.to(y.dtype)), self.dropout, self.training)

    def matrix(self, tokens: Tensor, low: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        """`(b, n, m)`: the weights of the m positions of `low`, through its averages."""
        weights = attention_matrix(*self.queries_keys(tokens, low, space), rows=rows, scale=self.scale)
        return weights @ pyramid_matrix(space, self.bins, low)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            return self.matrix(tokens, tokens, space, rows)

    def open_gate_(self, value: float = 1.0) -> bool:
        self.project.open_(value)
        return True

    def cost(self, shape: tuple[int, ...]) -> Cost:
        space, counted = tuple(shape[2:]), super().cost(shape)
        # The base counts `value` as if it met all n positions; it meets L averages.
        saved = self.value.multiply_adds(math.prod(space) - self.points(space))
        return Cost(counted.multiply_adds - shape[0] * saved, counted.parameters)


@register("apnb", family="attention", title=TITLE, paper=PAPER, year=2019, row_sum=1.0)
class PyramidNonLocal(AsymmetricBase):
    """APNB, the pyramid non-local block: queries and keys are one transform of x, the keys pooled after it.

    Shape: `(b, channels, *space) -> (b, out_channels, *space)`.

    Args:
        channels: of the input.
        inner: width of queries and keys, d (None: half of the channels, at least 1). value_channels: e, likewise.
        out_channels: of the output (None: as many as the input).
        bins: cells along each axis of each grid; may exceed the map, whose positions then repeat.
        dropout: at the end, in training.
        norm: after the shared transform and after the last 1x1.
        gate: 0 starts W at zero, as published: a new block is a 1x1 of its input. Otherwise what its start is
            multiplied by.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        value_channels: int | None = None,
        out_channels: int | None = None,
        bins: Sequence[int] = (1, 3, 6, 8),
        dropout: float = 0.05,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, low_channels=channels, inner=inner, value_channels=value_channels, out_channels=out_channels,
            bins=bins, dropout=dropout, slope=0.0, norm=norm, gate=gate,
        )  # fmt: skip
        self.to(device=device, dtype=dtype)

    def queries_keys(self, tokens: Tensor, low: Tensor, space: Space) -> tuple[Tensor, Tensor]:
        queries = self.key(tokens)
        return queries, pyramid(queries, space, self.bins)

    def mixing_cost(self, space: Space) -> int:
        attended = math.prod(space) * self.points(space) * (self.inner + self.value_channels)
        return attended + (self.channels + self.inner) * pool_cost(space, self.bins)


@register("afnb", family="attention", title=TITLE, paper=PAPER, year=2019, row_sum=1.0)
class FusionNonLocal(AsymmetricBase):
    """AFNB, the fusion non-local block: queries of x; keys and values of a map from lower in the network.

    Shape: `x (b, channels, *space)`, `low (b, low_channels, *its own space) -> (b, out_channels, *space)`. Without
    `low` the block attends to x itself, which takes low_channels = channels.

    Args:
        channels: of the input, the higher map.
        low_channels: of the lower map (None: as many as the input).
        inner, value_channels, out_channels, bins, dropout, norm, gate: as `apnb`; queries and keys have a
            transform each, and no ReLU ends the block.
    """

    def __init__(
        self,
        channels: int,
        *,
        low_channels: int | None = None,
        inner: int | None = None,
        value_channels: int | None = None,
        out_channels: int | None = None,
        bins: Sequence[int] = (1, 3, 6, 8),
        dropout: float = 0.05,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require_positive("FusionNonLocal", low_channels=low_channels)
        low_channels = channels if low_channels is None else low_channels
        super().__init__(
            channels, low_channels=low_channels, inner=inner, value_channels=value_channels,
            out_channels=out_channels, bins=bins, dropout=dropout, slope=1.0, norm=norm, gate=gate,
        )  # fmt: skip
        self.low_channels = low_channels
        self.query = PointwiseBranch(channels, self.inner, bias=True, norm=norm)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor, low: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            y = self.merge(x, self.leave(self.context(x, low)))
        return layout.like(y.to(x.dtype), x)

    def context(self, x: Tensor, low: Tensor | None = None) -> Tensor:
        """What x finds in the lower map, before W: `(b, value_channels, *space)`."""
        low = self._checked(x, low)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            return layout.to_map(self.gather(tokens, *layout.to_positions(widen(low))), space)

    def queries_keys(self, tokens: Tensor, low: Tensor, space: Space) -> tuple[Tensor, Tensor]:
        return self.query(tokens), pyramid(self.key(low), space, self.bins)

    def operator(self, x: Tensor, rows: Tensor | None = None, low: Tensor | None = None) -> Tensor:
        """`(b, n, m)`: the weights of the m positions of the lower map."""
        self._check(x)
        low = self._checked(x, low)
        with float32_island(x):
            tokens, _ = layout.to_positions(widen(x))
            return self.matrix(tokens, *layout.to_positions(widen(low)), rows)

    def mixing_cost(self, space: Space) -> int:
        """Of x attending to itself."""
        attended = math.prod(space) * self.points(space) * (self.inner + self.value_channels)
        return attended + (self.low_channels + self.inner) * pool_cost(space, self.bins)

    def _checked(self, x: Tensor, low: Tensor | None) -> Tensor:
        given = x if low is None else low
        if given.shape[:2] != (x.shape[0], self.low_channels) or given.dim() - 2 not in self.space_dims:
            raise ValueError(
                f"FusionNonLocal was built for a lower map ({x.shape[0]}, {self.low_channels}, *space) beside x "
                f"{tuple(x.shape)}, got {'x itself, as low is None' if low is None else tuple(given.shape)}; pass "
                f"such a map, or build with low_channels={given.shape[1]}"
            )
        return given
