# SPDX-License-Identifier: Apache-2.0
"""Half-shuffle attention, of DAUHST: half of the heads look near, half look far.

The map is cut in windows. Local heads attend among the positions of one window. Shuffled heads attend among the
positions that have the same place in their windows, one of each window, so over the whole map in strides. Both
add a learnt table to the logits, one number for each pair of positions of a sequence.

Paper   Degradation-Aware Unfolding Half-Shuffle Transformer for Spectral Compressive Imaging, NeurIPS 2022,
        arXiv:2205.10102.
Facts   multiply-adds of attention: 64 n c for the local half and n^2 c / 64 for the shuffled one, at n positions.
Differs the shuffled table is as long as there are windows, which ties the published network to one size; here it
        is interpolated at other sizes, and taken as it is at its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.core.numerics import float32_island, widen
from widefield.core.resample import resize_matrix
from widefield.weights.reference import reference

Pair = tuple[int, int]
WINDOW = 8


def table_at(table: Tensor, grid: Pair, wanted: Pair) -> Tensor:
    """A table of the windows `grid` (rows, columns) for the windows `wanted`: `(heads, n, n)` to `(heads, m, m)`.

    Bilinear over rows and columns, both of the window that asks and of the one that is asked.
    """
    if grid == wanted:
        return table
    with float32_island(table):
        matrix = resize_matrix(grid, wanted, widen(table), align_corners=False)  # m n
        return (matrix @ widen(table) @ matrix.mT).to(table.dtype)


class HalfShuffleAttention(nn.Module):
    """HS-MSA: attention within windows for one half of the heads, across windows for the other.

    Shape: `(b, h, w, channels) -> (b, h, w, channels)`, h and w multiples of the window.

    Args:
        channels: of the input.
        heads: a single head is local.
        head_channels: width of a head.
        grid: rows and columns of windows that the shuffled table is made for.
        window: its height and width.
        shuffled: how many heads attend across windows; half of them by default.

    Raises:
        ValueError: an option out of range; a map that the windows do not divide.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        head_channels: int,
        *,
        grid: Pair,
        window: Pair = (WINDOW, WINDOW),
        shuffled: int | None = None,
    ) -> None:
        super().__init__()
        require_positive("HalfShuffleAttention", channels=channels, heads=heads, head_channels=head_channels)
        if min(*grid, *window) < 1:
            raise ValueError(f"HalfShuffleAttention: grid and window must be positive, got {grid} and {window}")
        shuffled = heads // 2 if shuffled is None else shuffled
        if not 0 <= shuffled <= heads:
            raise ValueError(f"HalfShuffleAttention: {shuffled} of {heads} heads cannot be shuffled")
        self.channels, self.heads, self.head_channels = channels, heads, head_channels
        self.window, self.grid, self.local = window, grid, heads - shuffled
        inner, places, windows = heads * head_channels, window[0] * window[1], grid[0] * grid[1]
        self.query = nn.Linear(channels, inner, bias=False)
        self.key_value = nn.Linear(channels, 2 * inner, bias=False)
        self.project = nn.Linear(inner, channels)
        self.local_table = nn.Parameter(torch.empty(self.local, places, places)) if self.local else None
        self.shuffled_table = nn.Parameter(torch.empty(shuffled, windows, windows)) if shuffled else None
        for table in (self.local_table, self.shuffled_table):
            if table is not None:
                nn.init.trunc_normal_(table)

    def forward(self, x: Tensor) -> Tensor:
        (rows, columns), (h, w) = self.window, x.shape[1:3]
        if h % rows or w % columns:
            raise ValueError(
                f"HalfShuffleAttention: windows of {rows} x {columns} do not divide a map of {h} x {w}; pad it"
            )
        grid = (h // rows, w // columns)
        cut = (x.shape[0], grid[0], rows, grid[1], columns, self.heads, self.head_channels)
        qkv = [t.reshape(cut) for t in (self.query(x), *self.key_value(x).chunk(2, -1))]
        halves = []
        if self.local_table is not None:
            halves.append(_attend([t[..., : self.local, :] for t in qkv], self.local_table, _WITHIN))
        if self.shuffled_table is not None:
            table = table_at(self.shuffled_table, self.grid, grid)
            halves.append(_attend([t[..., self.local :, :] for t in qkv], table, _ACROSS))
        return self.project(torch.cat(halves, -2).reshape(*x.shape[:3], -1))


# Axes of a map cut in windows, 0 b, 1 grid row, 2 row, 3 grid column, 4 column, 5 head, 6 width of the head, in
# the order batch (three axes), head, sequence (two axes), width.
_WITHIN = (0, 1, 3, 5, 2, 4, 6)
_ACROSS = (0, 2, 4, 5, 1, 3, 6)


def _attend(qkv: list[Tensor], table: Tensor, order: tuple[int, ...]) -> Tensor:
    """Attention along the sequences of `order`; shapes as `qkv`."""
    q, k, v = (t.permute(order) for t in qkv)
    sequences = (t.flatten(4, 5).flatten(0, 2) for t in (q, k, v))  # b' heads n d
    y = F.scaled_dot_product_attention(*sequences, attn_mask=table[None])
    return y.reshape(q.shape).permute([order.index(axis) for axis in range(7)])


class FeedForward(nn.Module):
    """Widened, depth-wise 3x3, narrowed again; no biases. Shape: `(b, h, w, channels)`, kept.

    Args:
        channels: of the input.
        expansion: how much wider it is inside.
    """

    def __init__(self, channels: int, *, expansion: int = 4) -> None:
        super().__init__()
        require_positive("FeedForward", channels=channels, expansion=expansion)
        inner = channels * expansion
        self.widen = nn.Conv2d(channels, inner, 1, bias=False)
        self.spatial = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.narrow = nn.Conv2d(inner, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        features = F.gelu(self.spatial(F.gelu(self.widen(x.permute(0, 3, 1, 2)))))
        return self.narrow(features).permute(0, 2, 3, 1)


class HalfShuffleLayer(nn.Module):
    """`x + HSMSA(LN x)`, then `x + FFN(LN x)`. Shape: `(b, h, w, channels)`, kept.

    Args:
        channels, heads, head_channels, grid, window: of the attention.
    """

    def __init__(
        self, channels: int, heads: int, head_channels: int, *, grid: Pair, window: Pair = (WINDOW, WINDOW)
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(channels)
        self.attention = HalfShuffleAttention(channels, heads, head_channels, grid=grid, window=window)
        self.feed_forward_norm = nn.LayerNorm(channels)
        self.feed_forward = FeedForward(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class HalfShuffleBlock(nn.Module):
    """HSAB: layers one after the other. Shape: `(b, channels, h, w)`, kept; h and w multiples of the window.

    Args:
        channels, heads, head_channels, grid, window: of the attention.
        layers: how many.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        head_channels: int,
        *,
        grid: Pair,
        window: Pair = (WINDOW, WINDOW),
        layers: int = 1,
    ) -> None:
        super().__init__()
        require_positive("HalfShuffleBlock", layers=layers)
        self.layers = nn.Sequential(
            *(HalfShuffleLayer(channels, heads, head_channels, grid=grid, window=window) for _ in range(layers))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@reference("mst", HalfShuffleAttention)
def attention_table(module: HalfShuffleAttention) -> dict[str, str]:
    """Attention with local heads only has one table, under another name."""
    return {
        "query": "to_q",
        "key_value": "to_kv",
        "project": "to_out",
        "local_table": "pos_emb" if module.shuffled_table is None else "pos_emb1",
        "shuffled_table": "pos_emb2",
    }


@reference("mst", FeedForward)
def feed_forward_table(module: FeedForward) -> dict[str, str]:
    return {"widen": "net.0", "spatial": "net.2", "narrow": "net.4"}


@reference("mst", HalfShuffleBlock)
def block_table(module: HalfShuffleBlock) -> dict[str, str]:
    table: dict[str, str] = {}
    for i, layer in enumerate(module.layers):
        assert isinstance(layer, HalfShuffleLayer)
        ours, theirs = f"layers.{i}.", f"blocks.{i}."
        table |= {f"{ours}attention_norm": f"{theirs}0.norm", f"{ours}feed_forward_norm": f"{theirs}1.norm"}
        table |= below(f"{ours}attention.", f"{theirs}0.fn.", attention_table(layer.attention))
        table |= below(f"{ours}feed_forward.", f"{theirs}1.fn.", feed_forward_table(layer.feed_forward))
    return table


def below(ours: str, theirs: str, table: Mapping[str, str]) -> dict[str, str]:
    """The table of a part, for the whole that holds it under these prefixes."""
    return {ours + key: theirs + value for key, value in table.items()}
