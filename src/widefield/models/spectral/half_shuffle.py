# SPDX-License-Identifier: Apache-2.0
"""HST, the Half-Shuffle Transformer: attention inside windows, and between the same places of all windows.

Paper   Degradation-Aware Unfolding Half-Shuffle Transformer for Spectral Compressive Imaging, NeurIPS 2022,
        arXiv:2205.10102.
Facts   the shuffled half grows with the square of the number of windows.
*differs*: the code ties the table of positions between windows to maps of 256 x 320 and fails on others. Here the
table belongs to a grid of windows; for another grid it is interpolated linearly along rows and columns of both
ends, and for its own it is used as it is. Maps are padded to what the windows of the lowest level need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.resample import resize_matrix
from widefield.models.spectral.blocks import (
    FEED_FORWARD,
    Block,
    Blocks,
    FeedForward,
    UShape,
    crop,
    nested,
    reset_linear_,
    u_names,
)
from widefield.models.spectral.network import pad_to_multiple
from widefield.weights.reference import reference

WINDOW = 8


# A map cut in windows has the axes 0 b, 1 head, 2 width of a head, 3 grid row, 4 row, 5 grid column, 6 column.
# Both orders have a batch of three axes, the heads, a sequence of two axes, the width.
_INSIDE = (0, 3, 5, 1, 4, 6, 2)
_BETWEEN = (0, 4, 6, 1, 3, 5, 2)


class HalfShuffleAttention(nn.Module):
    """HS-MSA. Half of the heads attend inside windows, the other half between windows, place by place.

    Shape: `(b, channels, h, w)` to the same; h and w multiples of the window.

    Args:
        channels: in and out.
        heads: the first of them attend inside windows, the others between them.
        grid: rows and columns of windows that the table between windows belongs to.
        window: height and width of a window.
        shuffled: how many heads attend between windows (None: half, rounded down, so that a single head is local).
        head_width: channels of a head (None: the channels divided among the heads).

    Raises:
        ValueError: an option out of range; a map that the windows do not divide.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        grid: Sequence[int],
        window: Sequence[int] = (WINDOW, WINDOW),
        shuffled: int | None = None,
        head_width: int | None = None,
    ) -> None:
        super().__init__()
        require_positive("HalfShuffleAttention", channels=channels, heads=heads, head_width=head_width)
        if head_width is None and channels % heads:
            raise ValueError(f"HalfShuffleAttention: {heads} heads do not divide {channels} channels")
        shuffled = heads // 2 if shuffled is None else shuffled
        if not 0 <= shuffled <= heads:
            raise ValueError(f"HalfShuffleAttention: {shuffled} of {heads} heads cannot attend between windows")
        self.heads, self.local_heads, self.head_width = heads, heads - shuffled, head_width or channels // heads
        self.window, self.grid = tuple(window), tuple(grid)
        inner = heads * self.head_width
        self.query = Pointwise(channels, inner, bias=False)
        self.key_value = Pointwise(channels, 2 * inner, bias=False)
        self.project = Pointwise(inner, channels)
        self.local = _table(self.local_heads, math.prod(self.window))
        self.shuffled = _table(shuffled, math.prod(self.grid))

    def forward(self, x: Tensor) -> Tensor:
        (rows, columns), (h, w) = self.window, x.shape[2:]
        if h % rows or w % columns:
            raise ValueError(
                f"HalfShuffleAttention: windows of {rows} x {columns} do not divide a map of {h} x {w}; pad it"
            )
        qkv = [self._cut(t) for t in (self.query(x), *self.key_value(x).chunk(2, 1))]
        halves = []
        if self.local is not None:
            halves.append(_attend([t[:, : self.local_heads] for t in qkv], self.local, _INSIDE))
        if self.shuffled is not None:
            table = table_at(self.shuffled, self.grid, (h // rows, w // columns))
            halves.append(_attend([t[:, self.local_heads :] for t in qkv], table, _BETWEEN))
        return self.project(*(y.flatten(5).flatten(1, 2).flatten(2, 3).movedim(-1, 1) for y in halves))

    def _cut(self, x: Tensor) -> Tensor:
        """`(b, heads head_width, h, w)` to the seven axes."""
        x = x.unflatten(3, (-1, self.window[1])).unflatten(2, (-1, self.window[0]))
        return x.unflatten(1, (self.heads, self.head_width))


def _table(heads: int, length: int) -> nn.Parameter | None:
    """A number for each pair of positions of a sequence; none without heads."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(heads, length, length))) if heads else None


def _attend(qkv: Sequence[Tensor], table: Tensor, order: Sequence[int]) -> Tensor:
    """Attention along the sequences of an order; the seven axes in, out with the channels last: 0 3 4 5 6 1 2."""
    q, k, v = (t.permute(*order) for t in qkv)
    y = attend(_sequences(q), _sequences(k), _sequences(v), table)
    return y.reshape(q.shape).permute([order.index(axis) for axis in (0, 3, 4, 5, 6, 1, 2)])


def _sequences(x: Tensor) -> Tensor:
    """The seven axes in an order to `(b', g, n, d)`."""
    return x.flatten(4, 5).flatten(0, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(d) + bias) v` on `(b, g, n, d)`, with a bias `(g, n, n)` for all of them."""
    if not torch.is_grad_enabled():
        bias = bias.detach()  # a parameter as the mask would rule the fused kernel out
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)[None])


def table_at(table: Tensor, grid: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """A table `(g, n, n)` between the n windows of `grid` (rows, columns), for the m windows of `wanted`.

    Bilinear over rows and columns, both of the window that asks and of the one that is asked: `(g, m, m)`. For its
    own grid it is returned as it is.
    """
    if tuple(grid) == tuple(wanted):
        return table
    with float32_island(table):
        move = resize_matrix(grid, wanted, widen(table), align_corners=False)  # m n
        return (move @ widen(table) @ move.mT).to(table.dtype)


class HalfShuffleTransformer(nn.Module):
    """HST: a U of half-shuffle blocks; the first `out_channels` of the input are added to what comes out.

    Shape: `(b, in_channels, h, w)` to `(b, out_channels, h, w)`, any size.

    Args:
        in_channels, out_channels: of the map.
        width: at the top of the U, and of every head.
        blocks: at each level, the bottom last.
        size: `(h, w)` that the tables of positions belong to; at others they are interpolated.
    """

    def __init__(
        self,
        in_channels: int = 29,
        out_channels: int = 28,
        *,
        width: int = 28,
        blocks: Sequence[int] = (1, 1, 1),
        size: Sequence[int] = (256, 310),
    ) -> None:
        super().__init__()
        self.out_channels, self.blocks = out_channels, tuple(blocks)
        self.multiple = max(16, WINDOW << (len(self.blocks) - 1))  # the code pads to 16 at any depth
        self.grid = [-(-edge // self.multiple) * self.multiple // WINDOW for edge in size]
        self.embed = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.u = UShape(width, len(self.blocks) - 1, self._blocks)
        self.map = nn.Conv2d(width, out_channels, 3, padding=1, bias=False)
        reset_linear_(self)

    def _blocks(self, level: int, width: int) -> Blocks:
        grid = [edge >> level for edge in self.grid]
        attentions = [HalfShuffleAttention(width, 1 << level, grid=grid) for _ in range(self.blocks[level])]
        return Blocks([Block(width, attention, first_norm=True) for attention in attentions])

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        x = pad_to_multiple(x, self.multiple)
        y = self.map(self.u(self.embed(x))) + x[:, : self.out_channels]
        return crop(y, height, width)


def attention_names(module: HalfShuffleAttention) -> dict[str, str]:
    """The toolbox's."""
    return {
        "query": "to_q",
        "key_value": "to_kv",
        "project": "to_out",
        "local": "pos_emb" if module.shuffled is None else "pos_emb1",
        "shuffled": "pos_emb2",
    }


def block_names(block: nn.Module) -> dict[str, str]:
    """Both parts behind a norm."""
    assert isinstance(block, Block)
    assert isinstance(block.attention, HalfShuffleAttention)
    table = {f"attention.{a}": f"0.fn.{b}" for a, b in attention_names(block.attention).items()}
    table |= {f"feed_forward.{a}": f"1.fn.{b}" for a, b in FEED_FORWARD.items()}
    return table | {"first_norm": "0.norm", "second_norm": "1.norm"}


def transformer_names(module: HalfShuffleTransformer) -> dict[str, str]:
    """The toolbox's."""
    table = nested(u_names(len(module.blocks) - 1, ours="u."), block_names, module)
    return table | {"embed": "embedding", "map": "mapping"}


@reference("mst", HalfShuffleAttention)
def _attention(module: HalfShuffleAttention) -> dict[str, str]:
    return attention_names(module)


@reference("mst", HalfShuffleTransformer)
def _transformer(module: HalfShuffleTransformer) -> dict[str, str]:
    return transformer_names(module)


@reference("mst", Blocks)
def _blocks(module: Blocks) -> dict[str, str]:
    return nested({"": ""}, block_names, module)


@reference("mst", FeedForward)
def _feed_forward(module: FeedForward) -> dict[str, str]:
    return FEED_FORWARD
