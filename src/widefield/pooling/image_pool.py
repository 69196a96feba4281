# SPDX-License-Identifier: Apache-2.0
"""Global average: the cheapest context there is, every position told the same.

    global-average      y = x + a mean(x)
    image-pool          y = x + ReLU(norm(W mean(x)))

Paper   ParseNet: Looking Wider to See Better, 2015, arXiv:1506.04579; the image pooling branch of DeepLabv3,
        arXiv:1706.05587.
Facts   cost n c of additions and, for the projection, c^2 an image; rank one.
Differs both papers concatenate; here it is added, so that it stands where the other modules stand. Broadcast,
        where the published code interpolates a 1x1 map.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.registry import register


class _Average(Context):
    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return tokens.mean(-1, keepdim=True).expand_as(tokens)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        n = math.prod(x.shape[2:])
        return x.new_full((x.shape[0], n if rows is None else len(rows), n), 1 / n)


@register(
    "global-average", family="pooling", title="ParseNet: Looking Wider to See Better", paper="arXiv:1506.04579",
    year=2015, row_sum=1.0, linear_in_x=True, complexity="1",
)  # fmt: skip
class GlobalAverage(_Average):
    """Adds the mean over all positions to each. No parameters.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        weight: a, with which the mean is added; a constant.
    """

    def __init__(self, channels: int, *, weight: float = 1.0) -> None:
        super().__init__(channels)
        self.weight = float(weight)

    def leave(self, context: Tensor) -> Tensor:
        return self.weight * context


@register(
    "image-pool", family="pooling", title="Rethinking Atrous Convolution for Semantic Image Segmentation",
    paper="arXiv:1706.05587", year=2017, row_sum=1.0, linear_in_x=True, complexity="1",
)  # fmt: skip
class ImagePool(_Average):
    """Adds a projection of the mean over all positions to each. The context, before the projection, is linear.

    Shape: `(b, channels, *space) -> (b, channels, *space)`. In training with a batch of one, batch norm has one
    value a channel and uses its running statistics.

    Args:
        channels: of the input.
        norm: after the projection.
    """

    def __init__(
        self,
        channels: int,
        *,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        self.branch = PointwiseBranch(channels, channels, norm=norm)
        self.to(device=device, dtype=dtype)

    def leave(self, context: Tensor) -> Tensor:
        for axis in range(2, context.dim()):
            context = context.narrow(axis, 0, 1)
        return self.branch(context)

    def cost(self, shape: tuple[int, ...]) -> Cost:
        return Cost(shape[0] * self.channels**2, self.trainable())
