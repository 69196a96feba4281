# SPDX-License-Identifier: Apache-2.0
"""Atrous spatial pyramid with object context in the place of the pooled branch.

    y = a(norm(W [context(x), 1x1(x), 3x3(x) at three rates]))
    context(x) = a(norm(W_c W_s c))          c on a(norm(3x3(x))) max-pooled by 2; a: leaky ReLU, 0.01

Paper   OCNet: Object Context for Semantic Segmentation, IJCV 2021, arXiv:1809.00916.
Facts   cost n c d (1 + 9 (rates + 1)) for branches of width d, n^2 (d/2 + d) / 4^dims for the context; output of
        2 d channels, without residual.
Differs as `ocnet.py`. Taps that see padding only are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.attention.ocnet import PAPER, SLOPE, TITLE, ObjectContext
from widefield.core import layout
from widefield.core.branch import DilatedBranch, PointwiseBranch, taps
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import require_positive
from widefield.core.gates import GatedProjection
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.numerics import float32_island, widen
from widefield.core.registry import register


@register("ocnet-asp", family="attention", title=TITLE, paper=PAPER, year=2021, row_sum=1.0, complexity="n^2")
class OCNetASP(Context):
    """Five views of the map side by side, one of them object context, fused by a 1x1.

    Shape: `(b, channels, *space) -> (b, out_channels, *space)`, with `dims` spatial dimensions. `operator` is that
    of the context branch, `context` all five views.

    Args:
        channels: of the input.
        out_channels: of the output, even: a branch has half of them.
        rates: dilations.
        reduce: factor by which the context's map is max-pooled.
        dropout: after the fusion, in training.
        dims: spatial dimensions, fixed by the shape of the kernels.
        norm: after every convolution.
        gate: 0 starts W_s at zero, as published. Otherwise what its start is multiplied by.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int = 512,
        rates: Sequence[int] = (12, 24, 36),
        reduce: int = 2,
        dropout: float = 0.1,
        dims: int = 2,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if dims not in (1, 2, 3):
            raise ValueError(f"OCNetASP: dims must be 1, 2 or 3 spatial dimensions, got {dims!r}")
        require_positive("OCNetASP", reduce=reduce, **{f"rates[{i}]": rate for i, rate in enumerate(rates)})
        if out_channels < 2 or out_channels % 2:
            raise ValueError(f"OCNetASP: out_channels must be a positive even number, got {out_channels}")
        super().__init__(channels, out_channels=out_channels)
        self.space_dims = (dims,)
        self.rates, self.dropout, self.width = tuple(rates), dropout, out_channels // 2
        width = self.width
        self.near = DilatedBranch(channels, width, dims=dims, bias=True, norm=norm, slope=SLOPE)
        self.object = ObjectContext(width, max(1, width // 2), width, norm=norm, reduce=reduce)
        self.project = GatedProjection(width, width, norm="none", gate=gate)
        self.settle = PointwiseBranch(width, width, bias=True, norm=norm, slope=SLOPE)
        self.pointwise = PointwiseBranch(channels, width, norm=norm, slope=SLOPE)
        self.dilated = nn.ModuleList(
            DilatedBranch(channels, width, rate=rate, dims=dims, norm=norm, slope=SLOPE) for rate in self.rates
        )
        self.fuse = PointwiseBranch((len(self.rates) + 2) * width, out_channels, norm=norm, slope=SLOPE)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            y = F.dropout(self.fuse(*self.views(tokens, space)), self.dropout, self.training)
        return layout.like(layout.to_map(y, space).to(x.dtype), x)

    def views(self, tokens: Tensor, space: Space) -> list[Tensor]:
        """Context, 1x1, and the rates in order, `(b, out_channels / 2, n)` each."""
        x = layout.to_map(tokens, space)
        context = self.settle(self.project(self.object(self.near(x).flatten(2), space)))
        return [context, self.pointwise(tokens), *(branch(x).flatten(2) for branch in self.dilated)]

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return torch.cat(self.views(tokens, space), 1)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            near = self.near(layout.to_map(tokens, space)).flatten(2)
            return self.object.matrix(near, space, rows)

    def open_gate_(self, value: float = 1.0) -> bool:
        self.project.open_(value)
        return True

    def cost(self, shape: tuple[int, ...]) -> Cost:
        space = tuple(shape[2:])
        return Cost(
            shape[0] * (self.mixing_cost(space) + self.fuse.project.multiply_adds(math.prod(space))),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        n, width = math.prod(space), self.width
        seen = sum(math.prod(taps(rate, size) for size in space) for rate in (1, *self.rates))
        return self.channels * width * n * (1 + seen) + 2 * n * width**2 + self.object.cost(space)
