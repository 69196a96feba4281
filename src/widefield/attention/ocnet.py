# SPDX-License-Identifier: Apache-2.0
"""Object context: a position gathers those that look like its own object, one transform serving both sides.

    c = softmax_j(d^-1/2 k_i . k_j) v_j          k = a(norm(W_k x)), queries and keys alike; a: leaky ReLU, 0.01

    ocnet-base      a(norm(W_o [sum_s W_s c_s, x]))          c_s on the map max-pooled by s, brought back
    ocnet-pyramid   a(norm(W_o [a(norm(W_l x)), W_s c_s for s in sizes]))     c_s inside the cells of an s x s grid
    ocnet-asp       see `ocnet_asp.py`

Paper   OCNet: Object Context for Semantic Segmentation, IJCV 2021, arXiv:1809.00916.
Facts   cost n^2 (d + e), in the pyramid sum over s of n^2 (d + e) / s^dims; memory never n x n.
Differs a grid finer than the map has cells of one position, where the published slices leave all but the last
        cell empty; a pooling factor larger than the map pools what there is. The shared transform runs once,
        so that its norm's statistics move once a step and not twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.attention.cells import attend_in_cells, cells_cost, same_cell
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
from widefield.core.resample import max_pool, resize, resize_cost, resize_matrix

TITLE, PAPER = "OCNet: Object Context for Semantic Segmentation", "arXiv:1809.00916"
SLOPE = 0.01  # of the activation that the authors' in-place norm has by default


class ObjectContext(nn.Module):
    """`softmax_j(d^-1/2 k_i . k_j) v_j`, on a reduced map or inside cells. `(b, in_channels, n) -> (b, e, n)`.

    Args:
        in_channels: of the tokens. inner: d, width of the shared transform. value_channels: e.
        norm: of the shared transform.
        reduce: max-pool by this factor first, interpolate back after.
        cells: attend inside the cells of a grid of so many along each axis.
    """

    def __init__(
        self,
        in_channels: int,
        inner: int,
        value_channels: int,
        *,
        norm: NormName,
        reduce: int = 1,
        cells: int = 1,
    ) -> None:
        super().__init__()
        self.reduce, self.cells, self.scale = reduce, cells, inner**-0.5
        self.key = PointwiseBranch(in_channels, inner, bias=True, norm=norm, slope=SLOPE)
        self.value = Pointwise(in_channels, value_channels)

    def forward(self, tokens: Tensor, space: Space) -> Tensor:
        tokens, small = self.pooled(tokens, space)
        keys = self.key(tokens)
        context = attend_in_cells(keys, keys, self.value(tokens), small, self.cells, scale=self.scale)
        if self.reduce == 1:
            return context
        return resize(layout.to_map(context, small), space, align_corners=True).flatten(2)

    def pooled(self, tokens: Tensor, space: Space) -> tuple[Tensor, Space]:
        """The reduced map; an axis shorter than the factor leaves one position."""
        if self.reduce == 1:
            return tokens, space
        kernel = tuple(min(self.reduce, size) for size in space)
        small = max_pool(layout.to_map(tokens, space), kernel)
        return small.flatten(2), tuple(small.shape[2:])

    def matrix(self, tokens: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        """`(b, n, m)`: the weights of the m positions of the reduced map."""
        tokens, small = self.pooled(tokens, space)
        keys = self.key(tokens)
        logits = keys.mT * self.scale @ keys
        if self.cells > 1:
            logits = logits.masked_fill(~same_cell(small, self.cells, tokens), -math.inf)
        weights = logits.softmax(-1)
        if self.reduce == 1:
            return weights if rows is None else weights.index_select(1, rows.to(weights.device))
        back = resize_matrix(small, space, tokens, align_corners=True)
        return (back if rows is None else back[rows.to(back.device)]) @ weights

    def cost(self, space: Space) -> int:
        """Multiply-adds for one sample, transforms included."""
        small = tuple(size // min(self.reduce, size) for size in space)
        d, e, m = self.key.project.out_channels, self.value.out_channels, math.prod(small)
        back = 0 if self.reduce == 1 else e * resize_cost(small, space)
        transforms = self.key.project.multiply_adds(m) + self.value.multiply_adds(m)
        return cells_cost(small, self.cells) * (d + e) + transforms + back


class OCNetBlock(Context):
    """Object contexts, each with a way out that starts at zero; a subclass says what they meet."""

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None,
        value_channels: int | None,
        out_channels: int | None,
        sizes: Sequence[int],
        dropout: float,
    ) -> None:
        name = type(self).__name__
        require_positive(name, inner=inner, value_channels=value_channels, out_channels=out_channels)
        self.sizes = tuple(sizes)
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"{name}: sizes must be one or more positive integers, got {sizes!r}")
        super().__init__(channels, out_channels=out_channels)
        self.inner = max(1, channels // 2) if inner is None else inner
        self.dropout = dropout
        self.contexts: Any = nn.ModuleList()  # of ObjectContext
        self.projects: Any = nn.ModuleList()  # of GatedProjection

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            parts = [out(part(tokens, space)) for part, out in zip(self.contexts, self.projects, strict=True)]
            y = F.dropout(self.meet(tokens, parts), self.dropout, self.training)
        return layout.like(layout.to_map(y, space).to(x.dtype), x)

    def meet(self, tokens: Tensor, parts: list[Tensor]) -> Tensor:
        """The input and its projected contexts in one, `(b, out_channels, n)`."""
        raise NotImplementedError

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return torch.cat([part(tokens, space) for part in self.contexts], 1)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """The mean over sizes of the weights."""
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            found = [part.matrix(tokens, space, rows) for part in self.contexts]
        if len({matrix.shape[-1] for matrix in found}) > 1:  # maps of several sizes: side by side
            return torch.cat(found, -1) / len(found)
        return torch.stack(found).mean(0)

    def open_gate_(self, value: float = 1.0) -> bool:
        for project in self.projects:
            project.open_(value)
        return True

    def cost(self, shape: tuple[int, ...]) -> Cost:
        space, total = tuple(shape[2:]), 0
        inside = {id(m) for part in self.contexts for m in part.modules()}
        for module in self.modules():
            if isinstance(module, Pointwise) and id(module) not in inside:
                total += module.multiply_adds(math.prod(space))
        parameters = self.trainable()
        return Cost(shape[0] * (total + self.mixing_cost(space)), parameters)

    def mixing_cost(self, space: Space) -> int:
        """Transforms included, which run on the reduced maps."""
        return sum(part.cost(space) for part in self.contexts)


@register("ocnet-base", family="attention", title=TITLE, paper=PAPER, year=2021, row_sum=1.0, complexity="n^2")
class OCNetBase(OCNetBlock):
    """Object context beside the input: `a(norm(W_o [sum_s W_s c_s, x]))`.

    Shape: `(b, channels, *space) -> (b, out_channels, *space)`. Several sizes, which `operator` then shows side by
    side, are summed.

    Args:
        channels: of the input.
        inner: width of the shared transform, d (None: half of the channels, at least 1).
        value_channels: e (None: likewise).
        out_channels: of the output (None: as many as the input).
        sizes: factors by which the map is max-pooled first, one context each.
        dropout: at the end, in training.
        norm: of the shared transforms and after W_o.
        gate: 0 starts every W_s at zero, as published: a new block is a 1x1 of its input. Otherwise what its start
            is multiplied by.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        value_channels: int | None = None,
        out_channels: int | None = None,
        sizes: Sequence[int] = (1,),
        dropout: float = 0.05,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, inner=inner, value_channels=value_channels, out_channels=out_channels, sizes=sizes,
            dropout=dropout,
        )  # fmt: skip
        width = max(1, channels // 2) if value_channels is None else value_channels
        for size in self.sizes:
            self.contexts.append(ObjectContext(channels, self.inner, width, norm=norm, reduce=size))
            self.projects.append(GatedProjection(width, self.out_channels, norm="none", gate=gate))
        self.fuse = PointwiseBranch(
            self.out_channels + channels, self.out_channels, bias=True, norm=norm, slope=SLOPE
        )
        self.to(device=device, dtype=dtype)

    def meet(self, tokens: Tensor, parts: list[Tensor]) -> Tensor:
        return self.fuse(sum(parts[1:], parts[0]), tokens)


@register("ocnet-pyramid", family="attention", title=TITLE, paper=PAPER, year=2021, row_sum=1.0, complexity="n^2")
class OCNetPyramid(OCNetBlock):
    """Object context inside the cells of ever finer grids, beside a wide transform of the input.

    Shape: `(b, channels, *space) -> (b, out_channels, *space)`.

    Args:
        channels: of the input.
        inner: width of the shared transforms, d (None: half of the channels, at least 1).
        value_channels: e (None: as many as the input).
        out_channels: of the output, and of each context (None: as many as the input).
        sizes: cells along each axis of each grid; the last cell takes what remains.
        dropout, norm, gate: as `ocnet-base`.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        value_channels: int | None = None,
        out_channels: int | None = None,
        sizes: Sequence[int] = (1, 2, 3, 6),
        dropout: float = 0.05,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, inner=inner, value_channels=value_channels, out_channels=out_channels, sizes=sizes,
            dropout=dropout,
        )  # fmt: skip
        width, count = channels if value_channels is None else value_channels, len(self.sizes)
        for size in self.sizes:
            self.contexts.append(ObjectContext(channels, self.inner, width, norm=norm, cells=size))
            self.projects.append(GatedProjection(width, self.out_channels, norm="none", gate=gate))
        self.lift = PointwiseBranch(channels, count * channels, bias=True, norm=norm, slope=SLOPE)
        self.fuse = PointwiseBranch(
            count * (channels + self.out_channels), self.out_channels, bias=True, norm=norm, slope=SLOPE
        )
        self.to(device=device, dtype=dtype)

    def meet(self, tokens: Tensor, parts: list[Tensor]) -> Tensor:
        return self.fuse(self.lift(tokens), *parts)
