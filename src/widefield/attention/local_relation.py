# SPDX-License-Identifier: Apache-2.0
"""Local relation layer: a window aggregation whose weights are appearance and a geometric prior.

    y_p = W sum_q softmax_q(phi(a(x_p), b(x_q)) + f(q - p)) x_q          q in the k x k window around p

a and b give one number for each group of m channels, which share their weights; f is a small network on relative
coordinates; phi is -(a - b)^2, -|a - b| or a b.

Paper   Local Relation Networks for Image Recognition, ICCV 2019, arXiv:1904.11491.
Facts   cost n c (2 c/m + c) in projections, n k^2 c elementwise. Local: k^2 weights a row, each group with its
        own. No residual, as it stands for a convolution.
Differs the authors' kernels are not public, so what the paper leaves open is set here: the prior's hidden width is
        the number of groups, its coordinates are offsets over the radius. Taps outside the map take no weight.
        Stride 1, as a context keeps the map's size. Any number of spatial dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from widefield.attention.windows import inside, window, window_dot, window_sum
from widefield.core import layout
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import NoOperator, unknown
from widefield.core.layout import Space
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register

SIMILARITIES = {
    "squared": lambda q, k: -(q - k).square(),
    "absolute": lambda q, k: -(q - k).abs(),
    "product": lambda q, k: q * k,
}


@register(
    "local-relation", family="attention", title="Local Relation Networks for Image Recognition",
    paper="arXiv:1904.11491", year=2019, complexity="n",
)  # fmt: skip
class LocalRelation(Context):
    """A k x k aggregation with composable weights, then a 1x1; stands where a 3x3 convolution would.

    Shape: `(b, channels, *space) -> (b, channels, *space)`, with `dims` spatial dimensions.

    Args:
        channels: of the input.
        kernel: k, odd; 7 as published.
        group: m, channels that share their weights (None: 8 as published, or its largest divisor that divides the
            channels).
        similarity: phi, "squared", "absolute" or "product".
        dims: spatial dimensions, fixed by the coordinates of the prior.
    """

    def __init__(
        self,
        channels: int,
        *,
        kernel: int = 7,
        group: int | None = None,
        similarity: str = "squared",
        dims: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        group = math.gcd(channels, 8) if group is None else group
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"LocalRelation: kernel must be an odd positive integer, got {kernel}")
        if group < 1 or channels % group:
            raise ValueError(f"LocalRelation: group must divide the {channels} channels, got {group}")
        if dims not in (1, 2, 3):
            raise ValueError(f"LocalRelation: dims must be 1, 2 or 3 spatial dimensions, got {dims!r}")
        if similarity not in SIMILARITIES:
            raise unknown("similarity", similarity, SIMILARITIES)
        self.space_dims = (dims,)
        self.kernel, self.groups, self.similarity = kernel, channels // group, similarity
        self.query = Pointwise(channels, self.groups)
        self.key = Pointwise(channels, self.groups)
        self.prior = nn.Sequential(Pointwise(dims, self.groups), nn.ReLU(), Pointwise(self.groups, self.groups))
        self.out = Pointwise(channels, channels)
        self.to(device=device, dtype=dtype)

    def weights(self, tokens: Tensor, space: Space) -> Tensor:
        """`(b, c, n)` features to weights `(b, groups, taps, *space)` that sum to 1 over the window."""
        offsets = window(self.kernel, len(space))
        q, k = (layout.to_map(part(tokens), space) for part in (self.query, self.key))
        keys = window_dot(torch.ones_like(k), k, offsets, groups=self.groups)
        logits = SIMILARITIES[self.similarity](q.unsqueeze(2), keys) + self.geometry(offsets, tokens)
        return logits.masked_fill(~inside(offsets, space, tokens.device), -math.inf).softmax(2)

    def geometry(self, offsets: tuple[tuple[int, ...], ...], like: Tensor) -> Tensor:
        """The prior of each offset: `(groups, taps, 1, ...)`."""
        radius = max(1, self.kernel // 2)
        where = torch.tensor(offsets, dtype=like.dtype, device=like.device).T / radius
        return self.prior(where[None])[0].unflatten(1, (-1, *(1,) * len(offsets[0])))

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        offsets = window(self.kernel, len(space))
        return window_sum(self.weights(tokens, space), layout.to_map(tokens, space), offsets).flatten(2)

    def leave(self, context: Tensor) -> Tensor:
        return self.out(context)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Refused: every group of channels has weights of its own (`weights`)."""
        raise NoOperator(
            f"LocalRelation has {self.groups} sets of weights over positions, one for each group of channels, and "
            "no matrix for all; LocalRelation.weights gives them"
        )

    def cost(self, shape: tuple[int, ...]) -> Cost:
        n, taps = math.prod(shape[2:]), self.kernel ** len(shape[2:])
        each = sum(part.multiply_adds(n) for part in (self.query, self.key, self.out))
        prior = sum(part.multiply_adds(taps) for part in self.prior if isinstance(part, Pointwise))
        return Cost(shape[0] * each + prior, self.trainable())
