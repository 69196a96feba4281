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

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


class HalfShuffleAttention(nn.Module):
    """HS-MSA. One half of the channels attends inside windows, the other between windows, place by place.

    Shape: `(b, channels, h, w)` to the same; h and w multiples of the window.

    Args:
        channels: in and out.
        heads: half of them for each half. With one head there is the half inside windows alone.
        grid: rows and columns of windows that the table between windows belongs to.
        window: edge of a window.
    """

    def __init__(self, channels: int, heads: int, *, grid: Sequence[int], window: int = WINDOW) -> None:
        super().__init__()
        if channels % heads or (heads > 1 and heads % 2):
            raise ValueError(
                "HalfShuffleAttention needs one head or an even number that divides the channels, got "
                f"{heads} heads for {channels} channels"
            )
        self.heads, self.window, self.grid = heads, window, tuple(grid)
        self.query = Pointwise(channels, channels, bias=False)
        self.key_value = Pointwise(channels, 2 * channels, bias=False)
        self.project = Pointwise(channels, channels)
        tokens, windows = window**2, self.grid[0] * self.grid[1]
        self.local = nn.Parameter(torch.empty(max(1, heads // 2), tokens, tokens))
        nn.init.trunc_normal_(self.local)
        self.shuffled = None
        if heads > 1:
            self.shuffled = nn.Parameter(torch.empty(heads // 2, windows, windows))
            nn.init.trunc_normal_(self.shuffled)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = self.query(x), self.key_value(x).chunk(2, 1)
        if self.shuffled is None:
            return self.project(self._inside(q, k, v))
        inside, between = zip(*(t.chunk(2, 1) for t in (q, k, v)), strict=True)
        return self.project(self._inside(*inside), self._between(*between, self.shuffled))

    def _inside(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Tokens of one window: `(b, windows, g, tokens, d)`."""
        parts = [self._windows(t).permute(0, 3, 5, 1, 4, 6, 2) for t in (q, k, v)]
        shape = parts[0].shape
        y = attend(*(t.flatten(4, 5).flatten(0, 2) for t in parts), self.local)
        return y.view(shape).permute(0, 3, 6, 1, 4, 2, 5).reshape(q.shape)

    def _between(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        """One token of every window: `(b, tokens, g, windows, d)`."""
        parts = [self._windows(t).permute(0, 4, 6, 1, 3, 5, 2) for t in (q, k, v)]
        shape = parts[0].shape
        y = attend(*(t.flatten(4, 5).flatten(0, 2) for t in parts), self._fitted(table, shape[4:6]))
        return y.view(shape).permute(0, 3, 6, 4, 1, 5, 2).reshape(q.shape)

    def _windows(self, x: Tensor) -> Tensor:
        """`(b, g d, h, w)` to `(b, g, d, rows, window, columns, window)`."""
        groups = max(1, self.heads // 2)
        return x.unflatten(1, (groups, -1)).unflatten(-1, (-1, self.window)).unflatten(-3, (-1, self.window))

    def _fitted(self, table: Tensor, grid: Sequence[int]) -> Tensor:
        """The table of a grid of windows: its own, or interpolated."""
        if tuple(grid) == self.grid:
            return table
        move = resize_matrix(self.grid, tuple(grid), table, align_corners=False)
        return move @ table @ move.mT


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(d) + bias) v` on `(b, g, n, d)`, with a bias `(g, n, n)` for all of them."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)[None])


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
        size: tuple[int, int] = (256, 310),
    ) -> None:
        super().__init__()
        self.out_channels, self.blocks = out_channels, tuple(blocks)
        self.multiple = WINDOW << (len(self.blocks) - 1)
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
    alone = module.shuffled is None
    table = {
        "query": "to_q",
        "key_value": "to_kv",
        "project": "to_out",
        "local": "pos_emb" if alone else "pos_emb1",
    }
    return table if alone else table | {"shuffled": "pos_emb2"}


def block_names(block: Block) -> dict[str, str]:
    """Both parts behind a norm."""
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
