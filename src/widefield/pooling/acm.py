# SPDX-License-Identifier: Apache-2.0
"""Adaptive context module (ACM) of APCNet: every position weighs the regions of a grid for itself.

    u = CBR(x)        v = CBR(pool_s(x))        g = CBR(mean(u))        CBR: bias-free 1x1, norm, ReLU
    alpha = sigmoid(W (u + g))                  n x s^2: region by region, not one sum to share
    y = CBR(CBR(alpha v) + u)

Paper   Adaptive Pyramid Context Network for Semantic Segmentation, CVPR 2019.
Facts   cost n c (c + d) + 2 n d s^2 for d channels inside. The context holds the local path u.
Differs not in its numbers. The 1x1 after alpha v is applied to the s^2 regions instead of the n positions, the
        mean is broadcast instead of interpolated, and the ReLU of a sum of two rectified maps is left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from widefield.core import layout
from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register
from widefield.core.resample import pool, pool_cost


def affinity(u: Tensor, overall: Tensor, score: Pointwise) -> Tensor:
    """`sigmoid(W (u + g) + b)`: `(b, d, n)` and `(b, d, 1)` to `(b, s^2, n)`."""
    weight = score.weight.to(u.dtype).expand(u.shape[0], -1, -1)
    return torch.baddbmm(score(overall), weight, u).sigmoid()


@register(
    "acm", family="pooling", title="Adaptive Pyramid Context Network for Semantic Segmentation", paper="CVPR",
    year=2019,
)  # fmt: skip
class AdaptiveContext(Context):
    """One scale of APCNet: local features, plus regions of the map weighted by a sigmoid for each position.

    Shape: `(b, channels, *space) -> (b, out_channels, *space)`, with `dims` spatial dimensions and without a
    residual to x. In training with a batch of one, batch norm in the branch of the mean has one value a channel
    and uses its running statistics; so does that of the regions where bins=1.

    Args:
        channels: of the input.
        out_channels: of all branches and of the output (None: as the input).
        bins: s, cells along each axis; may exceed the map.
        fusion: the last CBR.
        dims: spatial dimensions, fixed by the number of regions.
        norm: in every CBR.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        bins: int = 6,
        fusion: bool = True,
        dims: int = 2,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = channels if out_channels is None else out_channels
        if dims not in (1, 2, 3):
            raise ValueError(f"AdaptiveContext: dims must be 1, 2 or 3 spatial dimensions, got {dims!r}")
        if (width < 1 and channels > 0) or bins < 1:
            raise ValueError(
                f"AdaptiveContext: out_channels and bins must be positive, got out_channels={out_channels} and "
                f"bins={bins}"
            )
        super().__init__(channels, out_channels=width)
        self.space_dims = (dims,)
        self.bins, self.dims = bins, dims
        self.local = PointwiseBranch(channels, width, norm=norm)
        self.region = PointwiseBranch(channels, width, norm=norm)
        self.overall = PointwiseBranch(width, width, norm=norm)
        self.score = Pointwise(width, bins**dims)
        self.residual = PointwiseBranch(width, width, norm=norm)
        self.fusion = PointwiseBranch(width, width, norm=norm) if fusion else nn.Identity()
        self.to(device=device, dtype=dtype)

    def local_and_weights(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """u `(b, d, n)` and alpha `(b, s^dims, n)`."""
        u = widen(self.local(tokens))
        return u, affinity(u, widen(self.overall(u.mean(-1, keepdim=True))), self.score)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        u, weights = self.local_and_weights(tokens)
        regions = widen(self.region(pool(layout.to_map(tokens, space), [self.bins])[0])).flatten(2)
        gathered = self.residual.project(regions) @ weights
        return torch.relu(widen(self.residual.norm(gathered))) + u

    def leave(self, context: Tensor) -> Tensor:
        return self.fusion(context)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """alpha, `(b, n, s^dims)`: what position i takes of each region, each between 0 and 1."""
        self._check(x)
        with float32_island(x):
            weights = self.local_and_weights(layout.to_positions(widen(x))[0])[1].mT
            return weights if rows is None else weights.index_select(1, rows.to(weights.device))

    def cost(self, shape: tuple[int, ...]) -> Cost:
        space = tuple(shape[2:])
        fusion = math.prod(space) * self.out_channels**2 if isinstance(self.fusion, PointwiseBranch) else 0
        return Cost(
            shape[0] * (self.mixing_cost(space) + fusion),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        n, r, c, d = math.prod(space), self.bins**self.dims, self.channels, self.out_channels
        pooling = c * pool_cost(space, [self.bins])
        return pooling + n * c * d + r * c * d + d * d * (1 + r) + d * r * (2 * n + 1)
