# SPDX-License-Identifier: Apache-2.0
"""Adaptive average pooling and linear interpolation as what they are: one small matrix an axis.

Equal to torch's `adaptive_avg_pool` and `interpolate` for one to three axes, and unlike those one code for all;
several pyramid levels read the map once; a traced graph serves every map size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def pooling_matrix(bins: int, size: int, like: Tensor) -> Tensor:
    """`(bins, size)`: row s averages positions floor(s size / bins) up to ceil((s + 1) size / bins).

    Bins overlap where the size does not divide, and repeat positions where there are more bins than positions.
    """
    s = torch.arange(bins, device=like.device)[:, None]
    i = torch.arange(size, device=like.device)
    start, stop = s * size // bins, ((s + 1) * size + bins - 1) // bins
    return ((start <= i) & (i < stop)).to(like.dtype) / (stop - start).to(like.dtype)


def interpolation_matrix(size: int, bins: int, align_corners: bool, like: Tensor) -> Tensor:
    """`(size, bins)`: row i holds the weights, at most two, with which position i reads the bins."""
    i = torch.arange(size, device=like.device, dtype=like.dtype)[:, None]
    if align_corners:
        last: Any = torch.sym_max(size - 1, 1)
        source = i * ((bins - 1) / last)
    else:
        source = ((i + 0.5) * (bins / size) - 0.5).clamp(0, bins - 1)
    return (1 - (source - torch.arange(bins, device=like.device, dtype=like.dtype)).abs()).clamp(min=0)


def max_pool(x: Tensor, kernel: Sequence[int]) -> Tensor:
    """Maximum over windows of `kernel` side by side, of one to three axes; what does not fill one is dropped."""
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1](x, tuple(kernel))


def along(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """`matrix` applied to one axis of `x`."""
    return (x.movedim(axis, -1) @ matrix.mT).movedim(-1, axis)


def pool(x: Tensor, levels: Sequence[int]) -> list[Tensor]:
    """Adaptive average pooling of `(b, c, *space)` to `(b, c, s, ..., s)` for each s of `levels`."""
    last = torch.cat([pooling_matrix(s, x.shape[-1], x) for s in levels])
    pooled = list(along(x, last, -1).split(list(levels), -1))
    for level, s in enumerate(levels):
        for axis in range(x.dim() - 2, 1, -1):
            pooled[level] = along(pooled[level], pooling_matrix(s, x.shape[axis], x), axis)
    return pooled


def upsample(x: Tensor, space: Sequence[int], *, align_corners: bool) -> Tensor:
    """Linear interpolation of `(b, c, s, ..., s)` to `(b, c, *space)`; a map of one position is broadcast."""
    if x[0, 0].numel() == 1:
        return x.expand(*x.shape[:2], *space)
    return resize(x, space, align_corners=align_corners)


def resize(x: Tensor, space: Sequence[int], *, align_corners: bool) -> Tensor:
    """Linear interpolation of `(b, c, *any)` to `(b, c, *space)`, up or down."""
    for axis, size in enumerate(space, start=2):
        x = along(x, interpolation_matrix(size, x.shape[axis], align_corners, x), axis)
    return x


def pool_cost(space: Sequence[int], levels: Sequence[int]) -> int:
    """Multiply-adds of `pool` for one channel."""
    total = math.prod(space) * sum(levels)
    for s in levels:
        total += sum(math.prod(space[: axis + 1]) * s ** (len(space) - axis) for axis in range(len(space) - 1))
    return total


def upsample_cost(space: Sequence[int], level: int) -> int:
    """Multiply-adds of `upsample` for one channel and one level."""
    if level == 1:
        return 0
    return resize_cost((level,) * len(space), space)


def resize_matrix(source: Sequence[int], target: Sequence[int], like: Tensor, *, align_corners: bool) -> Tensor:
    """What `resize` does to positions: `(positions of the target, positions of the source)`."""
    matrix = like.new_ones(1, 1)
    for bins, size in zip(source, target, strict=True):
        matrix = torch.kron(matrix, interpolation_matrix(size, bins, align_corners, like))
    return matrix


def resize_cost(source: Sequence[int], target: Sequence[int]) -> int:
    """Multiply-adds of `resize` for one channel."""
    return sum(math.prod(target[: axis + 1]) * math.prod(source[axis:]) for axis in range(len(source)))
