# SPDX-License-Identifier: Apache-2.0
"""Weighted sums of rows at given places: bilinear sampling without a copy of what is sampled.

A sample at a fractional position is a sum of four rows of the map, a message from nine samples one of thirty-six.
With the channel last in memory that is what an embedding bag computes, rows at a time. Three sums, each the
derivative of another:

    bag_sum      y_i = sum_j w_ij x_index(i, j)
    bag_dot      w_ij = y_i . x_index(i, j)
    bag_scatter  x_r = sum over index(i, j) = r of w_ij y_i
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def corners(rows: Tensor, columns: Tensor, h: int, w: int) -> tuple[Tensor, Tensor]:
    """The four positions around each point of a map and their bilinear weights, zero outside the map.

    Args:
        rows, columns: coordinates in pixels, any shape.
        h, w: of the map.

    Returns:
        Indices into the `h w` positions and weights, each with a last axis of 4.
    """
    # Two pixels out a point sees nothing, however far; and a coordinate stays one that an integer holds.
    rows, columns = rows.clamp(-2, h + 1), columns.clamp(-2, w + 1)
    top, left = rows.detach().floor(), columns.detach().floor()
    index, weights = [], []
    for down in (0, 1):
        for right in (0, 1):
            i, j = top + down, left + right
            weight = (1 - (rows - i).abs()) * (1 - (columns - j).abs())
            on_map = (i >= 0) & (i < h) & (j >= 0) & (j < w)
            weights.append(torch.where(on_map, weight, 0.0))
            index.append((i.clamp(0, h - 1) * w + j.clamp(0, w - 1)).long())
    return torch.stack(index, -1), torch.stack(weights, -1)


def bag_sum(weights: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """`(bags, j)` weights, `(rows, c)` and `(bags, j)` indices of rows to `(bags, c)`."""
    return BagSum.apply(weights, x, index)


class BagSum(torch.autograd.Function):
    """See `bag_sum`."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(weights, x, index)
        return F.embedding_bag(index, x.contiguous(), per_sample_weights=weights, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, x, index = ctx.saved_tensors
        to_weights, to_x = ctx.needs_input_grad[:2]
        return (
            BagDot.apply(grad, x, index) if to_weights else None,
            BagScatter.apply(weights, grad, index, len(x)) if to_x else None,
            None,
        )


class BagDot(torch.autograd.Function):
    """`(bags, c)`, `(rows, c)` and indices `(bags, j)` to `(bags, j)`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(y, x, index)
        bags, each = index.shape
        start = torch.arange(0, bags * each, each, device=y.device)
        bag = torch.arange(bags, device=y.device).repeat_interleave(each)
        found = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            y.contiguous(), x.contiguous(), index.flatten(), start, bag, 0, -1
        )
        return found.view(bags, each)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, x, index = ctx.saved_tensors
        to_y, to_x = ctx.needs_input_grad[:2]
        return (
            BagSum.apply(grad, x, index) if to_y else None,
            BagScatter.apply(grad, y, index, len(x)) if to_x else None,
            None,
        )


class BagScatter(torch.autograd.Function):
    """`(bags, j)` weights, `(bags, c)` and indices to `(rows, c)`."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, y: Tensor, index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(weights, y, index)
        # Sorted by row, the entries are bags again: those of a row, each with the row of y that it came from.
        flat = index.flatten()
        order = flat.argsort()
        counts = torch.bincount(flat, minlength=rows)
        bag = order // index.shape[1]
        return F.embedding_bag(
            bag, y.contiguous(), counts.cumsum(0) - counts, per_sample_weights=weights.flatten()[order], mode="sum"
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        weights, y, index = ctx.saved_tensors
        to_weights, to_y = ctx.needs_input_grad[:2]
        return (
            BagDot.apply(y, grad, index) if to_weights else None,
            BagSum.apply(weights, grad, index) if to_y else None,
            None,
            None,
        )


def sampled_sum(weights: Tensor, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sums of weighted bilinear samples of a map: `(b, h, w, c)`, channels last.

    Args:
        weights: `(b, h, w, g, t)`, of t samples for each of g groups of channels.
        x: `(b, h, w, c)`, channels last; g divides c.
        rows, columns: `(b, h, w, t)`, where to sample, in pixels; zero outside the map.
    """
    b, h, w, c = x.shape
    groups, samples = weights.shape[3:]
    if torch.compiler.is_compiling():
        maps = x.movedim(-1, 1)
        grid = _grid(rows, columns, h, w).movedim(3, 1).flatten(1, 2)
        taps = F.grid_sample(maps, grid, align_corners=False).unflatten(2, (samples, h))
        taps = taps.unflatten(1, (groups, -1))
        return (weights.permute(0, 3, 4, 1, 2)[:, :, None] * taps).sum(3).flatten(1, 2).movedim(1, -1)
    index, shares = corners(rows, columns, h, w)
    first = torch.arange(b, device=x.device).view(b, 1, 1, 1, 1) * (h * w)
    index = (index + first).flatten(3)[..., None, :] * groups + torch.arange(groups, device=x.device)[:, None]
    spread = (weights[..., None] * shares[:, :, :, None]).flatten(4)
    table = x.reshape(-1, c // groups)
    return bag_sum(spread.flatten(0, 3), table, index.flatten(0, 3)).view(b, h, w, c)


def sampled_taps(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Each tap's own features sampled at its own place, and summed: `(b, h, w, c)`.

    A deformable convolution whose product came first: the sampling is linear, so it may follow the product, which
    is narrow, where it would copy the input once a tap.

    Args:
        x: `(b, h, w, t, c)`.
        rows, columns: `(b, h, w, t)`.
    """
    b, h, w, samples, c = x.shape
    if torch.compiler.is_compiling():
        maps = x.permute(0, 3, 4, 1, 2).flatten(0, 1)
        grid = _grid(rows, columns, h, w).movedim(3, 1).flatten(0, 1)
        taps = F.grid_sample(maps, grid, align_corners=False)
        return taps.unflatten(0, (b, samples)).sum(1).movedim(1, -1)
    index, shares = corners(rows, columns, h, w)
    first = torch.arange(b, device=x.device).view(b, 1, 1, 1, 1) * (h * w)
    index = (index + first) * samples + torch.arange(samples, device=x.device)[:, None]
    return bag_sum(shares.flatten(3).flatten(0, 2), x.reshape(-1, c), index.flatten(3).flatten(0, 2)).view(
        b, h, w, c
    )


def _grid(rows: Tensor, columns: Tensor, h: int, w: int) -> Tensor:
    """Pixel coordinates in the units of `grid_sample`, whose unaligned form has no division by size - 1."""
    return torch.stack([(2 * columns + 1) / w - 1, (2 * rows + 1) / h - 1], -1)
