# SPDX-License-Identifier: Apache-2.0
"""Attention by the likeness of patches, without unfolding patches and without the n x n map.

The inner product of the patches around i and j is a sum along a diagonal of the plain Gram matrix:

    s_ij = sum_o a_o x_{i+o} . x_{j+o}

So one product of width c gives all of them, where unfolded k x k patches take one of width k^2 c; and weights that
are a product over axes make the diagonal sum k additions an axis. Queries run in tiles; backward computes each
tile again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from widefield.core.layout import Space

TILE_NUMBERS = 2**23  # of the Gram matrix at a time, 32 MiB in float32


def reflected(x: Tensor, radius: int) -> Tensor:
    """Mirrors the spatial axes of `(b, c, *space)` at their first and last position, for any radius and size."""
    for axis in range(2, x.dim()):
        size = x.shape[axis]
        period = torch.full((1,), max(1, 2 * size - 2), device=x.device)
        i = torch.arange(-radius, size + radius, device=x.device) % period
        x = x.index_select(axis, torch.minimum(i, (period - i).abs()))
    return x


def diagonal_sum(gram: Tensor, space: Space, kernel: Sequence[float]) -> Tensor:
    """Weighted sums over patches of `(b, *padded queries, *padded keys)`, on both sides at once.

    Args:
        gram: inner products of padded positions.
        space: of the queries without padding, of the keys behind it: `(*queries, *keys)`.
        kernel: weights along an axis, of odd length.
    """
    dims = len(space) // 2
    for axis in range(dims):
        views = (
            gram.narrow(1 + axis, o, space[axis]).narrow(1 + dims + axis, o, space[dims + axis])
            for o in range(len(kernel))
        )
        total = next(views) * kernel[0]
        for weight, view in zip(kernel[1:], views, strict=True):
            total = torch.add(total, view, alpha=weight) if gram.requires_grad else total.add_(view, alpha=weight)
        gram = total
    return gram


def diagonal_spread(sums: Tensor, kernel: Sequence[float], dims: int) -> Tensor:
    """The adjoint of `diagonal_sum`."""
    grown = len(kernel) - 1
    for axis in range(dims - 1, -1, -1):
        shape = list(sums.shape)
        for side in (1 + axis, 1 + dims + axis):
            shape[side] += grown
        gram = sums.new_zeros(shape)
        for o, weight in enumerate(kernel):
            view = gram.narrow(1 + axis, o, sums.shape[1 + axis])
            view.narrow(1 + dims + axis, o, sums.shape[1 + dims + axis]).add_(sums, alpha=weight)
        sums = gram
    return sums


def patch_logits(x: Tensor, bias: Tensor, kernel: Sequence[float], scale: float) -> Tensor:
    """`scale s_ij + bias_j`, written out: `(b, n, n)` from the padded `(b, c, *space)` and `(b, n)`."""
    space = tuple(size - len(kernel) + 1 for size in x.shape[2:])
    tokens = x.flatten(2)
    gram = (tokens.mT @ tokens).unflatten(2, x.shape[2:]).unflatten(1, x.shape[2:])
    sums = diagonal_sum(gram, space + space, kernel)
    return sums.flatten(1, len(space)).flatten(2) * scale + bias.unsqueeze(1)


def patch_attention(x: Tensor, bias: Tensor, v: Tensor, kernel: Sequence[float], scale: float) -> Tensor:
    """`y_i = sum_j softmax_j(scale s_ij + bias_j) v_j`, s the inner products of patches.

    Args:
        x: the padded map, `(b, c, *(size + k - 1))`.
        bias: `(b, n)`.
        v: `(b, e, n)`.
        kernel: weights of a patch along an axis, of odd length k.
        scale: of the inner products.

    Returns:
        `(b, e, n)`.
    """
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return v @ patch_logits(x, bias, kernel, scale).softmax(-1).mT
    return PatchAttention.apply(x, bias, v, tuple(kernel), scale)


def tiles(space: Space, radius: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of queries whose padded Gram matrices with all keys stay within `TILE_NUMBERS`, down to 8 a side."""
    padded = math.prod(size + 2 * radius for size in space)
    sides = list(space)
    while math.prod(side + 2 * radius for side in sides) * padded > TILE_NUMBERS and max(sides) > 8:
        longest = sides.index(max(sides))
        sides[longest] = (sides[longest] + 1) // 2
    starts = (range(0, size, side) for size, side in zip(space, sides, strict=True))
    for corner in itertools.product(*starts):
        yield tuple(slice(i, min(i + side, size)) for i, side, size in zip(corner, sides, space, strict=True))


def patch_cost(space: Space, radius: int, channels: int) -> int:
    """Multiply-adds of the Gram matrices of all tiles; with values of width e, n^2 e more."""
    padded = math.prod(size + 2 * radius for size in space)
    queries = sum(math.prod(s.stop - s.start + 2 * radius for s in box) for box in tiles(space, radius))
    return queries * padded * channels


class PatchAttention(torch.autograd.Function):
    """See `patch_attention`. A second derivative is right too, but is taken through the whole map."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, v: Tensor, kernel: tuple[float, ...], scale: float) -> Tensor:
        space = tuple(size - len(kernel) + 1 for size in x.shape[2:])
        out = v.new_empty(v.shape[0], *space, v.shape[1])
        lse = v.new_empty(v.shape[0], *space, 1)
        for b in range(len(x)):
            values = v[b].mT.contiguous()
            for box in tiles(space, len(kernel) // 2):
                weights = _logits(x[b], bias[b], box, kernel, scale)[0]
                top = weights.amax(1, keepdim=True)
                total = weights.sub_(top).exp_().sum(1, keepdim=True)
                out[(b, *box)] = ((weights @ values).div_(total)).view_as(out[(b, *box)])
                lse[(b, *box)] = (total.log_().add_(top)).view_as(lse[(b, *box)])
        ctx.save_for_backward(x, bias, v, out, lse)
        ctx.kernel, ctx.scale = kernel, scale
        return out.flatten(1, -2).mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, bias, v, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Views, so that what one input owes to another is not counted here as well.
            x, bias, v = (t.view_as(t) for t in (x, bias, v))
            y = v @ patch_logits(x, bias, ctx.kernel, ctx.scale).softmax(-1).mT
            wanted = [t for t in (x, bias, v) if t.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
            return *(next(found) if t.requires_grad else None for t in (x, bias, v)), None, None
        kernel, scale, space = ctx.kernel, ctx.scale, out.shape[1:-1]
        grad = grad.mT.unflatten(1, space).contiguous()
        inner = (grad * out).sum(-1, keepdim=True)
        dx, dbias, dv = torch.zeros_like(x), torch.zeros_like(bias), v.new_zeros(v.mT.shape)
        for b in range(len(x)):
            keys = x[b].flatten(1)
            for box in tiles(tuple(space), len(kernel) // 2):
                weights, around = _logits(x[b], bias[b], box, kernel, scale)
                weights.sub_(lse[(b, *box)].reshape(-1, 1)).exp_()
                g = grad[(b, *box)].flatten(0, -2)
                dv[b].addmm_(weights.mT, g)
                slopes = (g @ v[b]).sub_(inner[(b, *box)].reshape(-1, 1)).mul_(weights)
                del weights
                dbias[b].add_(slopes.sum(0))
                size = tuple(s.stop - s.start for s in box)
                slopes = slopes.mul_(scale).view(1, *size, *space)
                slopes = diagonal_spread(slopes, kernel, len(space))[0].flatten(len(space)).flatten(0, -2)
                queries = x[(b, slice(None), *around)].flatten(1)
                part = dx[(b, slice(None), *around)]
                part.add_((keys @ slopes.mT).view_as(part))
                dx[b].view(len(keys), -1).addmm_(queries, slopes)
        return dx, dbias, dv.mT, None, None


def _logits(
    x: Tensor, bias: Tensor, box: tuple[slice, ...], kernel: tuple[float, ...], scale: float
) -> tuple[Tensor, tuple[slice, ...]]:
    """Logits of the queries in a box, `(queries, n)`, and the padded box around it."""
    around = tuple(slice(s.start, s.stop + len(kernel) - 1) for s in box)
    queries = x[(slice(None), *around)]
    gram = queries.flatten(1).mT @ x.flatten(1)
    gram = gram.view(1, *queries.shape[1:], *x.shape[1:])
    space = tuple(size - len(kernel) + 1 for size in x.shape[1:])
    sums = diagonal_sum(gram, tuple(s.stop - s.start for s in box) + space, kernel)
    return sums.view(-1, math.prod(space)).mul_(scale).add_(bias), around
