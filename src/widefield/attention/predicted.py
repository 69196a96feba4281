# SPDX-License-Identifier: Apache-2.0
"""Attention whose logits are predicted from one of the two positions, one for each offset to the other.

    A_ij = w[j - i] . h_i     collect: the receiver i says where it looks
    A_ij = w[i - j] . h_j     distribute: the sender j says where it goes
    o_i  = sum_j softmax_j(A_ij) v_j

An offset beyond the mask has the logit 0 and takes part. The maps of all offsets, four times as many numbers as
pairs of positions, are never made: a row of the map at a time is predicted, only for the offsets that stay inside,
and moved into place by padding and reshaping. `tiles.py` has the idea.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.attention.tiles import TILE_ROWS
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen


def skew(x: Tensor) -> Tensor:
    """`y[i, s, j] = x[i, s, j - i + r]`, zero beyond: `(..., m, s, 2 r + 1) -> (..., m, s, m)`."""
    m, s, width = x.shape[-3:]
    pitch = width + m
    flat = F.pad(x, (0, m, 0, 1, 0, 1)).flatten(-3)
    stride = (s + 1) * pitch - 1  # one less than the length of i's numbers, so that they move by one as i does
    rows = flat[..., width // 2 : width // 2 + m * stride].unflatten(-1, (m, stride))
    return rows[..., : s * pitch].unflatten(-1, (s, pitch))[..., :m]


def unskew(y: Tensor, reach: int) -> Tensor:
    """Its adjoint, `x[i, s, d] = y[i, s, i + d - r]` for r < m: `(..., m, s, m) -> (..., m, s, 2 r + 1)`."""
    m, s = y.shape[-3:-1]
    pitch = m + reach
    flat = F.pad(y, (reach, 0, 0, 0, 0, 1)).flatten(-3)
    rows = flat[..., : m * (s * pitch + 1)].unflatten(-1, (m, s * pitch + 1))
    return rows[..., : s * pitch].unflatten(-1, (s, pitch))[..., : 2 * reach + 1]


def predicted_logits(hidden: Tensor, weight: Tensor, space: Space, *, distribute: bool) -> Tensor:
    """A written out.

    Args:
        hidden: `(b, d, n)`, of the position that predicts.
        weight: `(mask height, mask width, d)`, both odd.
        space: height and width of the map.
        distribute: the sender predicts.

    Returns:
        `(b, n, n)`, receivers by senders.
    """
    by_offset = (hidden.mT @ weight.flatten(0, 1).mT).unflatten(1, space).unflatten(3, weight.shape[:2])
    across = skew(by_offset).permute(0, 2, 1, 4, 3)  # predictor's column, row; other's column; offset in rows
    logits = skew(across).permute(0, 2, 1, 4, 3).flatten(3).flatten(1, 2)
    return logits.mT if distribute else logits


def predicted_attention(
    hidden: Tensor, weight: Tensor, values: Tensor, space: Space, *, distribute: bool, normalise: bool = True
) -> Tensor:
    """`o_i = sum_j p_ij v_j`, `p` the softmax over senders of the predicted logits, or the logits themselves.

    Args:
        hidden, weight, space, distribute: as `predicted_logits`.
        values: `(b, e, n)`.
        normalise: with the softmax.

    Returns:
        `(b, e, n)`, in the dtype of `values`; computed in float32 at least.

    Raises:
        ValueError: shapes that do not fit.
    """
    _check(hidden, weight, values, space)
    compute: Any = _written_out if torch.compiler.is_compiling() else PredictedAttention.apply
    with float32_island(values):
        tensors = (widen(x) for x in (hidden, weight, values))
        return compute(*tensors, space, distribute, normalise).to(values.dtype)


def _check(hidden: Tensor, weight: Tensor, values: Tensor, space: Space) -> None:
    shapes = f"got hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, values {tuple(values.shape)}"
    if weight.dim() != 3 or not (weight.shape[0] % 2 and weight.shape[1] % 2):
        raise ValueError(f"predicted_attention takes a mask (height, width, d) of odd sides; {shapes}")
    if hidden.shape[1] != weight.shape[2] or hidden.shape[::2] != values.shape[::2]:
        raise ValueError(
            f"predicted_attention takes hidden (b, d, n), a mask (.., .., d) and values (b, e, n); {shapes}"
        )
    if not torch.compiler.is_compiling() and math.prod(space) != values.shape[2]:
        raise ValueError(f"predicted_attention takes the n = h w positions of a map of {space}; {shapes}")


def predicted_cost(space: Space, mask: Space, d: int, e: int) -> int:
    """Multiply-adds of `predicted_attention` for one sample, hidden width d and value width e."""
    (h, w), (up, left) = space, _reach(space, mask)
    rows = sum(t.stop - t.start for _, t in _windows(h, up, 0, h))
    return rows * w * (2 * left + 1) * d + (h * w) ** 2 * e


def _reach(space: Space, mask: Space) -> tuple[int, int]:
    return min(mask[0] // 2, space[0] - 1), min(mask[1] // 2, space[1] - 1)


def _windows(height: int, reach: int, first: int, last: int) -> Iterator[tuple[int, slice]]:
    """Of each row of the map, the rows that a mask of that reach meets."""
    for row in range(first, last):
        yield row, slice(max(0, row - reach), min(height, row + reach + 1))


def _written_out(h: Tensor, w: Tensor, v: Tensor, space: Space, distribute: bool, normalise: bool) -> Tensor:
    logits = predicted_logits(h, w, space, distribute=distribute)
    return v @ (logits.softmax(-1) if normalise else logits).mT


class PredictedAttention(torch.autograd.Function):
    """`predicted_attention` a few rows of the map at a time, forward and backward.

    Reverse-mode first derivatives hold no map; forward mode and second derivatives are written out.
    """

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, values: Tensor, space: Space, distribute: bool, normalise: bool
    ) -> Tensor:
        out = torch.empty_like(values)
        tiles = _Tiles(weight, space, distribute, normalise)
        for h, v, o in zip(hidden, values, out, strict=True):
            rows = h.mT.contiguous()
            for first, last in tiles:
                t = slice(first * space[1], last * space[1])
                o[:, t] = v @ tiles.weights(rows, first, last).mT
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.space, ctx.distribute, ctx.normalise = inputs
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, values, out = ctx.saved_tensors
        options = (ctx.space, ctx.distribute, ctx.normalise)
        if torch.is_grad_enabled():
            y = _written_out(hidden, weight, values, *options)
            return *torch.autograd.grad(y, (hidden, weight, values), grad, create_graph=True), None, None, None
        dh, dv = torch.empty_like(hidden), torch.zeros_like(values)
        tiles = _Tiles(weight, *options)
        for i in range(hidden.shape[0]):
            rows = hidden[i].mT.contiguous()
            moved = torch.zeros_like(rows)
            for first, last in tiles:
                t = slice(first * ctx.space[1], last * ctx.space[1])
                weights, g = tiles.weights(rows, first, last), grad[i, :, t].contiguous()
                torch.addmm(dv[i], g, weights, out=dv[i])
                slopes = g.mT @ values[i]
                if ctx.normalise:
                    slopes.sub_((g * out[i, :, t]).sum(0)[:, None]).mul_(weights)
                tiles.give_back(slopes, rows, moved, first, last)
            dh[i] = moved.mT
        return dh, tiles.weight_gradient(), dv, None, None, None

    @staticmethod
    def jvp(ctx: Any, dh: Tensor | None, dw: Tensor | None, dv: Tensor | None, *_: None) -> Tensor:
        hidden, weight, values, out = ctx.saved_tensors
        dh, dw, dv = (
            torch.zeros_like(x) if dx is None else dx
            for x, dx in zip((hidden, weight, values), (dh, dw, dv), strict=True)
        )

        def logits(h: Tensor, w: Tensor) -> Tensor:
            return predicted_logits(h, w, ctx.space, distribute=ctx.distribute)

        weights, moved = logits(hidden, weight), logits(dh, weight) + logits(hidden, dw)
        if not ctx.normalise:
            return values @ moved.mT + dv @ weights.mT
        weights = weights.softmax(-1)
        moved = weights * moved
        return values @ moved.mT - moved.sum(-1)[:, None] * out + dv @ weights.mT


class _Tiles:
    """Weights of a few rows of receivers towards all senders, and their gradients' way back, sample by sample."""

    def __init__(self, weight: Tensor, space: Space, distribute: bool, normalise: bool) -> None:
        self.space, self.distribute, self.normalise = space, distribute, normalise
        self.weight = weight
        self.up, self.left = _reach(space, (weight.shape[0], weight.shape[1]))
        # For the receivers' row t, the senders' row s meets row s - t of the offsets: t - s counted backwards.
        self.offsets = self._in_order(self._inside(weight)).contiguous()
        self.gradient = torch.zeros_like(self.offsets)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """First and last row of each tile."""
        height, width = self.space
        step = max(1, TILE_ROWS // width)
        for first in range(0, height, step):
            yield first, min(first + step, height)

    def weights(self, hidden: Tensor, first: int, last: int) -> Tensor:
        """`((last - first) w, n)` from hidden `(n, d)`."""
        height, width = self.space
        logits = hidden.new_zeros(last - first, width, height, width)
        for row, window in _windows(height, self.up, first, last):
            offsets = self.offsets[self._met(row, window)]
            if self.distribute:
                by_offset = hidden.unflatten(0, self.space)[window] @ offsets.mT
                part = skew(by_offset[:, :, None])[:, :, 0].permute(2, 0, 1)
            else:
                by_offset = hidden[row * width : (row + 1) * width] @ offsets.flatten(0, 1).mT
                part = skew(by_offset.unflatten(1, offsets.shape[:2]))
            logits[row - first, :, window] = part
        logits = logits.flatten(2).flatten(0, 1)
        return logits.softmax(1) if self.normalise else logits

    def give_back(self, slopes: Tensor, hidden: Tensor, moved: Tensor, first: int, last: int) -> None:
        """Adds to `moved`, the gradient of hidden, and to that of the offsets, from that of a tile's logits."""
        height, width = self.space
        slopes = slopes.unflatten(1, self.space).unflatten(0, (-1, width))
        for row, window in _windows(height, self.up, first, last):
            met = self._met(row, window)
            offsets, gradient, part = self.offsets[met], self.gradient[met], slopes[row - first, :, window]
            if self.distribute:
                by_offset = unskew(part.permute(1, 2, 0)[:, :, None], self.left)[:, :, 0]
                moved.unflatten(0, self.space)[window] += by_offset @ offsets
                gradient += by_offset.mT @ hidden.unflatten(0, self.space)[window]
            else:
                by_offset, t = unskew(part, self.left).flatten(1), slice(row * width, (row + 1) * width)
                moved[t].addmm_(by_offset, offsets.flatten(0, 1))
                gradient.flatten(0, 1).addmm_(by_offset.mT, hidden[t])

    def weight_gradient(self) -> Tensor:
        """Of the whole mask, of all samples so far."""
        gradient = torch.zeros_like(self.weight)
        self._inside(gradient).copy_(self._in_order(self.gradient))
        return gradient

    def _met(self, row: int, window: slice) -> slice:
        return slice(window.start - row + self.up, window.stop - row + self.up)

    def _inside(self, mask: Tensor) -> Tensor:
        """The offsets that some pair of positions has; a view."""
        rows, columns = mask.shape[0] // 2, mask.shape[1] // 2
        return mask[rows - self.up : rows + self.up + 1, columns - self.left : columns + self.left + 1]

    def _in_order(self, offsets: Tensor) -> Tensor:
        return offsets.flip(0) if self.distribute else offsets
