# SPDX-License-Identifier: Apache-2.0
"""Interlaced sparse self-attention: first among positions far apart, then within blocks.

    the map is cut into blocks; z = W softmax(q^T k / sqrt(d)) v among positions at the same place of their block,
    then the same, with weights of its own, on z within each block;   y = ReLU(norm(W [x, z]))

Paper   Interlaced Sparse Self-Attention for Semantic Segmentation, 2019, arXiv:1907.12273.
Facts   cost n (p + q)(d + e) for blocks of q positions and p blocks: n^2 / q + n q for blocks of one size, n^1.5
        for blocks that grow with the map (None). The product of both affinities reaches every position.
Differs a map that the block does not divide is padded; there, the authors let the padded zeros take part in
        attention and in batch statistics, which is mask_padding=False. Any number of spatial dimensions. A traced
        graph serves every map size, but one of blocks that grow with the map only that of its tracing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from widefield.attention.blocks import blocks_of, covered, crop, from_groups, grouping, pad, padding_of, to_groups
from widefield.attention.sdpa import attention
from widefield.core import layout
from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.errors import NoOperator
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register

Block = int | Sequence[int] | None
BARRED = -1e30  # finite, so that a group of padding alone has a gradient, which is zero


def block_of(space: Space, block: Block) -> Space:
    """The block's size along each axis: as given, or about the square root of the map's where None is."""
    if block is None:
        return tuple(max(1, round(size**0.5)) for size in space)
    return (block,) * len(space) if isinstance(block, int) else tuple(block)


class GroupAttention(nn.Module):
    """`ReLU(norm(W softmax(q^T k / sqrt(d)) v))` within groups; q and k through two 1x1-norm-ReLU each.

    Shape: `(b, in_channels, n) -> (b, out_channels, n)`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        inner: int,
        value_channels: int,
        distant: bool,
        norm: NormName,
    ) -> None:
        super().__init__()
        self.inner, self.value_channels, self.distant = inner, value_channels, distant
        self.query = self._embedding(in_channels, norm)
        self.key = self._embedding(in_channels, norm)
        self.value = Pointwise(in_channels, value_channels, bias=False)
        self.out = PointwiseBranch(value_channels, out_channels, norm=norm)

    def _embedding(self, in_channels: int, norm: NormName) -> nn.Sequential:
        return nn.Sequential(
            PointwiseBranch(in_channels, self.inner, norm=norm), PointwiseBranch(self.inner, self.inner, norm=norm)
        )

    def forward(self, tokens: Tensor, space: Space, block: Space) -> Tensor:
        if torch.compiler.is_compiling():
            return self._by_index(tokens, space, block)
        if covered(space, block) != space:
            return self._padded(tokens, space, block)
        groups = to_groups(tokens.mT.unflatten(1, space), block, distant=self.distant)
        # All that is left acts on each position alone: in the order of the groups as in any other.
        q, k, v = (part.unflatten(1, groups.shape[1:3]) for part in self._parts(groups.flatten(1, 2).mT))
        y = self.out(self._attend(q, k, v, None).flatten(1, 2).mT).mT
        y = from_groups(y.unflatten(1, groups.shape[1:3]), space, block, distant=self.distant)
        return y.flatten(1, -2).mT

    def _parts(self, tokens: Tensor) -> tuple[Tensor, ...]:
        return tuple(part(tokens).mT for part in (self.query, self.key, self.value))

    def _padded(self, tokens: Tensor, space: Space, block: Space) -> Tensor:
        amounts = padding_of(space, block)
        bar = pad(tokens.new_zeros(1, *space, 1), amounts, BARRED)
        parts = (pad(part.unflatten(1, space), amounts) for part in self._parts(tokens))
        q, k, v, bar = (to_groups(part, block, distant=self.distant) for part in (*parts, bar))
        y = from_groups(self._attend(q, k, v, bar), covered(space, block), block, distant=self.distant)
        return self.out(crop(y, space, amounts).flatten(1, -2).mT)

    def _by_index(self, tokens: Tensor, space: Space, block: Space) -> Tensor:
        position, place = grouping(space, block, distant=self.distant, device=tokens.device)
        index, shape = position.clamp(min=0).flatten(), position.shape
        q, k, v = (part.index_select(1, index).unflatten(1, shape) for part in self._parts(tokens))
        bar = torch.where(position < 0, BARRED, 0.0).to(q.dtype)[None, ..., None]
        return self.out(self._attend(q, k, v, bar).flatten(1, 2).index_select(1, place).mT)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bar: Tensor | None) -> Tensor:
        q = q * self.inner**-0.5
        if bar is not None:
            # The bar rides on the product, as one more entry of queries and keys.
            bar = bar.expand(*k.shape[:-1], 1)
            q, k = torch.cat([q, torch.ones_like(bar)], -1), torch.cat([k, bar], -1)
        return attention(q.mT, k.mT, v.mT).mT

    def matrix(self, tokens: Tensor, space: Space, block: Space) -> Tensor:
        """`(b, n, n)`: the weights, zero between groups."""
        position, place = grouping(space, block, distant=self.distant, device=tokens.device)
        group = place // position.shape[1]
        logits = self.query(tokens).mT @ self.key(tokens) * self.inner**-0.5
        return logits.masked_fill(group[:, None] != group, -math.inf).softmax(-1)

    def multiply_adds(self, space: Space, block: Space) -> int:
        """Of the attention, for one sample."""
        full = covered(space, block)
        members = math.prod(blocks_of(space, block)) if self.distant else math.prod(block)
        return math.prod(full) * members * (self.inner + self.value_channels + (full != space))


@register(
    "isa", family="attention", title="Interlaced Sparse Self-Attention for Semantic Segmentation",
    paper="arXiv:1907.12273", year=2019, row_sum=1.0, complexity="n^2",
)  # fmt: skip
class InterlacedAttention(Context):
    """Attention among distant positions, then within blocks; fused with the input by a 1x1.

    `context` holds all branches, `(b, len(blocks) out_channels, *space)`; `operator` is what the paper calls the
    dense affinity, the product of both sparse ones (between them stand a 1x1, a norm and a ReLU).

    Shape: `(b, channels, *space) -> (b, out_channels, *space)`.

    Args:
        channels: of the input.
        out_channels: of each attention and of the output (None: as the input).
        blocks: one branch an entry: the block's size, one number or one an axis, or None for about the square root
            of the map's. Of several branches the results are concatenated and the input is lifted to their width.
        inner: width of queries and keys (None: half of the channels, at least 1).
        value_channels: width of values (None: as the input).
        mask_padding: padding takes no part; False as the authors' code, where zeros do.
        dropout: of whole channels of the output, in training.
        norm: after every 1x1 but that of the values.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        blocks: Sequence[Block] = (8,),
        inner: int | None = None,
        value_channels: int | None = None,
        mask_padding: bool = True,
        dropout: float = 0.05,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, out_channels=out_channels)
        width = self.out_channels
        inner = max(1, channels // 2) if inner is None else inner
        value_channels = channels if value_channels is None else value_channels
        if min(width, inner, value_channels) < 1:
            raise ValueError(
                f"InterlacedAttention: out_channels, inner and value_channels must be positive, got {width}, "
                f"{inner} and {value_channels}"
            )
        self.blocks = tuple(block if block is None or isinstance(block, int) else tuple(block) for block in blocks)
        sizes = [size for block in self.blocks for size in (block if isinstance(block, tuple) else (block,))]
        if not sizes or any(size is not None and size < 1 for size in sizes):
            raise ValueError(
                "InterlacedAttention: blocks must be one or more sizes, each a positive integer, one an axis, or "
                f"None, got {blocks!r}"
            )
        self.mask_padding, self.dropout = mask_padding, dropout

        def attend(in_channels: int, distant: bool) -> GroupAttention:
            return GroupAttention(
                in_channels, width, inner=inner, value_channels=value_channels, distant=distant, norm=norm
            )

        self.distant = nn.ModuleList(attend(channels, True) for _ in self.blocks)
        self.within = nn.ModuleList(attend(width, False) for _ in self.blocks)
        several = len(self.blocks) > 1
        lifted = len(self.blocks) * width if several else channels
        self.lift = PointwiseBranch(channels, lifted, norm=norm) if several else nn.Identity()
        self.fuse = PointwiseBranch(lifted + len(self.blocks) * width, width, norm=norm)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        # With the channel last in memory, cutting into groups copies whole vectors.
        tokens = layout.exchanged(tokens).mT
        return torch.cat([self.branch(i, tokens, space) for i in range(len(self.blocks))], 1)

    def branch(self, i: int, tokens: Tensor, space: Space) -> Tensor:
        """Both attentions of one branch: `(b, c, n) -> (b, out_channels, n)`."""
        block = self.block(i, space)
        if self.mask_padding:
            return self.within[i](self.distant[i](tokens, space, block), space, block)
        amounts, full = padding_of(space, block), covered(space, block)
        tokens = pad(tokens.mT.unflatten(1, space), amounts).flatten(1, -2).mT
        y = self.within[i](self.distant[i](tokens, full, block), full, block)
        return crop(y.mT.unflatten(1, full), space, amounts).flatten(1, -2).mT

    def block(self, i: int, space: Space) -> Space:
        """The block of branch i on a map."""
        block = self.blocks[i]
        if isinstance(block, tuple) and len(block) != len(space):
            raise ValueError(
                f"InterlacedAttention: the block {block} has {len(block)} sizes and the map {space} has "
                f"{len(space)} axes; give one size an axis, or one number for all"
            )
        return block_of(space, block)

    def leave(self, context: Tensor) -> Tensor:
        """The half of the last 1x1 that meets the context; `merge` adds the half that meets the input."""
        weight = self.fuse.project.weight[:, -context.shape[1] :]
        return (context.flatten(2).mT @ weight.to(context.dtype).T).mT.unflatten(2, context.shape[2:])

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        lifted = self.lift(widen(x).flatten(2))
        weight = self.fuse.project.weight[:, : lifted.shape[1]]
        y = y.flatten(2) + (lifted.mT @ weight.to(lifted.dtype).T).mT
        y = torch.relu(self.fuse.norm(y)).unflatten(2, x.shape[2:])
        return torch.feature_dropout(y, self.dropout, True) if self.training and self.dropout else y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """`(b, n, n)`: the weights within blocks times those among distant positions.

        Raises:
            NoOperator: several branches, or padding that takes weight.
        """
        self._check(x)
        if len(self.blocks) > 1 or not self.mask_padding:
            raise NoOperator(
                "InterlacedAttention has a position-by-position matrix with one branch and mask_padding=True; "
                "several branches have one each, and padding that takes part is no position of the map"
            )
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            block = self.block(0, space)
            distant, within = self.distant[0], self.within[0]
            assert isinstance(distant, GroupAttention)
            assert isinstance(within, GroupAttention)
            among = distant.matrix(tokens, space, block)
            inside = within.matrix(distant(tokens, space, block), space, block)
            return (inside if rows is None else inside.index_select(1, rows.to(x.device))) @ among

    def mixing_cost(self, space: Space) -> int:
        n, total = math.prod(space), 0
        for i, pair in enumerate(zip(self.distant, self.within, strict=True)):
            block = self.block(i, space)
            full = space if self.mask_padding else covered(space, block)
            for part in pair:
                assert isinstance(part, GroupAttention)
                # The base counts projections at the positions of the map.
                padded = [m.multiply_adds(math.prod(full) - n) for m in part.modules() if isinstance(m, Pointwise)]
                total += part.multiply_adds(full, block) + sum(padded)
        return total
