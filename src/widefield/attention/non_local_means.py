# SPDX-License-Identifier: Apache-2.0
"""Non-local means: the mean of all positions whose surroundings look alike.

    y_i = sum_j w_ij x_j / sum_j w_ij        w_ij = exp(-sum_o a_o |x_{i+o} - x_{j+o}|^2 / h^2)

Paper   A Non-Local Algorithm for Image Denoising, CVPR 2005.
Facts   cost about 2 n^2 c, and n^2 k additions an axis for patches of side k; memory never n x n, no unfolded
        patches. No parameters. With patches of one position, a step of mean shift. The ancestor that non-local
        blocks are named after; those compare single positions, by inner products.
Differs distances are those of feature vectors. Surroundings are mirrored at the border; only positions of the map
        are averaged. A position has for itself the weight 1, which some implementations cap. No residual.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.attention.patches import patch_attention, patch_cost, patch_logits, reflected
from widefield.core import layout
from widefield.core.context import Context
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen
from widefield.core.registry import register


def patch_weights(size: int, sigma: float) -> tuple[float, ...]:
    """Gaussian weights along an axis of a patch, summing to 1; all alike for an infinite sigma."""
    raw = [math.exp(-0.5 * ((i - size // 2) / sigma) ** 2) for i in range(size)]
    return tuple(weight / sum(raw) for weight in raw)


@register(
    "non-local-means", family="attention", title="A Non-Local Algorithm for Image Denoising", paper="CVPR 2005",
    year=2005, row_sum=1.0, complexity="n^2",
)  # fmt: skip
class NonLocalMeans(Context):
    """Mean of all positions, weighted by the likeness of the patches around them. No parameters, no residual.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        patch: side of the compared patches, odd; 7 in the paper, for images.
        patch_sigma: width of the Gaussian that weighs a patch (None: a quarter of patch - 1); `math.inf` for flat.
        bandwidth: h (None: the square root of half the channels).
    """

    def __init__(
        self,
        channels: int,
        *,
        patch: int = 3,
        patch_sigma: float | None = None,
        bandwidth: float | None = None,
    ) -> None:
        super().__init__(channels)
        if patch < 1 or patch % 2 == 0:
            raise ValueError(f"NonLocalMeans: patch must be an odd positive integer, got {patch}")
        sigma = (patch - 1) / 4 if patch_sigma is None and patch > 1 else patch_sigma or math.inf
        self.bandwidth = (channels / 2) ** 0.5 if bandwidth is None else bandwidth
        if not (sigma > 0 and self.bandwidth > 0 and (patch_sigma is None or patch_sigma > 0)):
            raise ValueError(
                f"NonLocalMeans: patch_sigma and bandwidth must be positive, got {patch_sigma} and {bandwidth}"
            )
        self.patch, self.kernel = patch, patch_weights(patch, sigma)

    def surroundings(self, tokens: Tensor, space: Space) -> tuple[Tensor, Tensor]:
        """The mirrored map, over the bandwidth, and `-sum_o a_o |x_{j+o}|^2` of each position, `(b, n)`."""
        # Distances do not see a common shift, rounding does.
        tokens = (tokens - tokens.mean(-1, keepdim=True).detach()) / self.bandwidth
        x = reflected(layout.to_map(tokens, space), self.patch // 2)
        squares = x.square().sum(1)
        for axis, size in enumerate(space, start=1):
            views = (squares.narrow(axis, o, size) * weight for o, weight in enumerate(self.kernel))
            squares = torch.stack(list(views)).sum(0)
        return x, -squares.flatten(1)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        # -|a - b|^2 = 2 a.b - |b|^2 up to what the softmax does not see.
        x, bias = self.surroundings(tokens, space)
        return patch_attention(x, bias, tokens, self.kernel, 2.0)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            padded, bias = self.surroundings(*layout.to_positions(widen(x)))
            matrix = patch_logits(padded, bias, self.kernel, 2.0).softmax(-1)
            return matrix if rows is None else matrix.index_select(1, rows.to(x.device))

    def mixing_cost(self, space: Space) -> int:
        return patch_cost(space, self.patch // 2, self.channels) + math.prod(space) ** 2 * self.channels
