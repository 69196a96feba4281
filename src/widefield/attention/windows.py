# SPDX-License-Identifier: Apache-2.0
"""Weighted sums over a window around each position, without the window-fold copy of the map.

Three sums over the same window, each the derivative of another:

    window_sum      y_c(p) = sum_o w_g,o(p) x_c(p + o)        g the group of channel c
    window_dot      w_g,o(p) = sum_c q_c(p) k_c(p + o)        c in group g
    window_scatter  x_c(p) = sum_o w_g,o(p - o) y_c(p - o)

Outside the map there is nothing: such terms are zero. Unfolding a 7 x 7 window copies the map 49 times and keeps
the copies for backward; here a short loop over the taps runs on views, forward and backward, to any order.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.core.layout import Space

Offsets = tuple[tuple[int, ...], ...]


def window(size: int, dims: int, rate: int = 1) -> Offsets:
    """Offsets of a window of odd size along each of `dims` axes, row by row, `rate` positions apart."""
    radius = size // 2
    return tuple(itertools.product(range(-radius * rate, radius * rate + 1, rate), repeat=dims))


def inside(offsets: Offsets, space: Space, device: torch.device) -> Tensor:
    """Whether the tap at each offset lies on the map: `(taps, *space)`."""
    dims, taps = len(space), len(offsets)
    found = torch.ones((taps, *(1,) * dims), dtype=torch.bool, device=device)
    for axis, size in enumerate(space):
        shape = [1] * (dims + 1)
        shape[0], shape[axis + 1] = taps, -1
        there = torch.tensor([o[axis] for o in offsets], device=device)[:, None]
        there = (there + torch.arange(size, device=device)).view(shape)
        found = found & (there >= 0) & (there < size)
    return found


def window_sum(weights: Tensor, x: Tensor, offsets: Offsets) -> Tensor:
    """`(b, g, taps, *space)` weights and `(b, c, *space)` features to `(b, c, *space)`; g divides c."""
    if torch.compiler.is_compiling():
        x = x.unflatten(1, (weights.shape[1], -1))
        y = sum(weights[:, :, t, None] * there for t, there in enumerate(_shifted(x, offsets)))
        assert isinstance(y, Tensor)
        return y.flatten(1, 2)
    return WindowSum.apply(weights, x, offsets)


def window_dot(q: Tensor, k: Tensor, offsets: Offsets, *, groups: int = 1) -> Tensor:
    """`(b, c, *space)` twice to `(b, g, taps, *space)`: inner products of each position with its window."""
    if torch.compiler.is_compiling():
        q, k = (x.unflatten(1, (groups, -1)) for x in (q, k))
        return torch.stack([(q * there).sum(2) for there in _shifted(k, offsets)], 2)
    return WindowDot.apply(q, k, offsets, groups)


def window_matrix(weights: Tensor, offsets: Offsets) -> Tensor:
    """The dense `(b, n, n)` of weights `(b, taps, *space)`; those of taps outside the map are dropped."""
    space = weights.shape[2:]
    position = torch.arange(space.numel(), device=weights.device).view(1, *space)
    matrix = weights.new_zeros(weights.shape[0], space.numel(), space.numel())
    for t, offset in enumerate(offsets):
        if (cut := _overlap(space, offset)) is not None:
            here, there = (position[cut[i]].flatten() for i in range(2))
            matrix[:, here, there] = weights[:, t][cut[0]].flatten(1)
    return matrix


def _overlap(space: Space, offset: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Indices of the positions that have a tap at the offset, and of those taps; None where there are none."""
    pairs = list(zip(space, offset, strict=True))
    if any(abs(o) >= size for size, o in pairs):
        return None
    here = tuple(slice(max(0, -o), size - max(0, o)) for size, o in pairs)
    there = tuple(slice(max(0, o), size - max(0, -o)) for size, o in pairs)
    return (..., *here), (..., *there)


def _shifted(x: Tensor, offsets: Offsets) -> list[Tensor]:
    """The map seen from each offset, zero outside: views of a padded copy. For traced graphs of every size."""
    dims = len(offsets[0])
    space = x.shape[-dims:]
    reach = [max(abs(o[axis]) for o in offsets) for axis in range(dims)]
    x = F.pad(x, [r for r in reversed(reach) for _ in range(2)])
    views = []
    for offset in offsets:
        view = x
        for axis in range(dims):
            view = view.narrow(axis - dims, reach[axis] + offset[axis], space[axis])
        views.append(view)
    return views


class WindowSum(torch.autograd.Function):
    """See `window_sum`."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, offsets: Offsets) -> Tensor:
        ctx.save_for_backward(weights, x)
        ctx.offsets = offsets
        x = x.contiguous().unflatten(1, (weights.shape[1], -1))
        y = torch.zeros_like(x)
        for t, offset in enumerate(offsets):
            if (cut := _overlap(x.shape[3:], offset)) is not None:
                y[cut[0]].addcmul_(weights[:, :, t, None][cut[0]], x[cut[1]])
        return y.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        weights, x = ctx.saved_tensors
        to_weights, to_x = ctx.needs_input_grad[:2]
        return (
            WindowDot.apply(grad, x, ctx.offsets, weights.shape[1]) if to_weights else None,
            WindowScatter.apply(weights, grad, ctx.offsets) if to_x else None,
            None,
        )


class WindowDot(torch.autograd.Function):
    """See `window_dot`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, offsets: Offsets, groups: int) -> Tensor:
        ctx.save_for_backward(q, k)
        ctx.offsets = offsets
        q, k = (x.contiguous().unflatten(1, (groups, -1)) for x in (q, k))
        weights = q.new_zeros(*q.shape[:2], len(offsets), *q.shape[3:])
        for t, offset in enumerate(offsets):
            if (cut := _overlap(q.shape[3:], offset)) is not None:
                weights[:, :, t][cut[0]] = (q[cut[0]] * k[cut[1]]).sum(2)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k = ctx.saved_tensors
        to_q, to_k = ctx.needs_input_grad[:2]
        return (
            WindowSum.apply(grad, k, ctx.offsets) if to_q else None,
            WindowScatter.apply(grad, q, ctx.offsets) if to_k else None,
            None,
            None,
        )


class WindowScatter(torch.autograd.Function):
    """Each position gives to its window what `window_sum` would have it take: `(b, c, *space)`."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, y: Tensor, offsets: Offsets) -> Tensor:
        ctx.save_for_backward(weights, y)
        ctx.offsets = offsets
        y = y.contiguous().unflatten(1, (weights.shape[1], -1))
        x = torch.zeros_like(y)
        for t, offset in enumerate(offsets):
            if (cut := _overlap(y.shape[3:], offset)) is not None:
                x[cut[1]].addcmul_(weights[:, :, t, None][cut[0]], y[cut[0]])
        return x.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        weights, y = ctx.saved_tensors
        to_weights, to_y = ctx.needs_input_grad[:2]
        return (
            WindowDot.apply(y, grad, ctx.offsets, weights.shape[1]) if to_weights else None,
            WindowSum.apply(weights, grad, ctx.offsets) if to_y else None,
            None,
        )
