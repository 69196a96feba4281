# SPDX-License-Identifier: Apache-2.0
"""Softmax attention in tiles of queries: the n x m map exists one tile at a time, forward and backward.

Forward keeps the output alone; backward computes each tile again (Rabe and Staats, 2112.05682; Dao et al.,
2205.14135). A tile is a few hundred queries against all keys, so that a call is a short loop over matrix products
large enough to run at full speed, with work in place in between. Transposed operands are views, which a product
takes as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TILE_ROWS = 224
TILE_NUMBERS = 2**23  # 32 MiB in float32


def query_tiles(n: int, m: int) -> Iterator[slice]:
    """Slices of n queries, each small enough for a tile with m keys."""
    rows = min(TILE_ROWS, max(32, TILE_NUMBERS // m))
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def _buffer(like: Tensor, n: int, m: int) -> Tensor:
    first = next(query_tiles(n, m))
    return like.new_empty(first.stop, m)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same function with the whole map in memory: `(b, d, n), (b, d, m), (b, e, m) -> (b, e, n)`.

    Values with the channel last in memory come back so.
    """
    weights = (q.mT @ k).softmax(-1)
    return (weights @ v.mT).mT if v.mT.is_contiguous() else v @ weights.mT


class TiledAttention(torch.autograd.Function):
    """`softmax(scale q^T k) v^T`, on `(b, d, n)`, `(b, d, m)` and `(b, e, m)`; returns `(b, n, e)`.

    First derivatives (reverse and forward mode) hold no map. A second derivative is right too, but is taken
    through the written-out formulas and holds the map; so does `torch.func.vjp`, always ready for a second one.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        n, m = q.shape[-1], k.shape[-1]
        out = v.new_empty(q.shape[0], n, v.shape[1])
        logits_, weights_ = _buffer(q, n, m), _buffer(q, n, m)
        for qi, ki, vi, oi in zip(q.mT, k, v.mT, out, strict=True):
            for t in query_tiles(n, m):
                logits, weights = logits_[: t.stop - t.start], weights_[: t.stop - t.start]
                torch.addmm(logits, qi[t], ki, beta=0, alpha=scale, out=logits)
                # Its exponential is faster than `exp_`, thirty times so where that underflows.
                torch.softmax(logits, 1, out=weights)
                torch.mm(weights, vi, out=oi[t])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.scale = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None
        q, k, v, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_written_out_gradients(q, k, v, grad, ctx.scale), None
        return *_gradients(q, k, v, out, grad, ctx.scale), None

    @staticmethod
    def jvp(ctx: Any, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, _: None) -> Tensor:
        q, k, v, out = ctx.saved_tensors
        dq, dk, dv = (
            torch.zeros_like(x) if dx is None else dx for x, dx in zip((q, k, v), (dq, dk, dv), strict=True)
        )
        tangent = []
        for t in query_tiles(q.shape[-1], k.shape[-1]):
            weights = (ctx.scale * q[..., t].mT @ k).softmax(-1)
            moved = ctx.scale * weights * (dq[..., t].mT @ k + q[..., t].mT @ dk)
            drift = moved.sum(-1, keepdim=True) * out[:, t]
            tangent.append(moved @ v.mT - drift + weights @ dv.mT)
        return torch.cat(tangent, 1)


def _written_out_gradients(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    weights, slopes = (scale * q.mT @ k).softmax(-1), grad @ v
    slopes = scale * weights * (slopes - (weights * slopes).sum(-1, keepdim=True))
    return k @ slopes.mT, q @ slopes, grad.mT @ weights


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, grad: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    n, m = q.shape[-1], k.shape[-1]
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    weights_, slopes_ = _buffer(q, n, m), _buffer(q, n, m)
    for i in range(q.shape[0]):
        for t in query_tiles(n, m):
            weights, slopes = weights_[: t.stop - t.start], slopes_[: t.stop - t.start]
            qt, gt = q[i, :, t], grad[i, t].mT.contiguous()
            torch.addmm(slopes, qt.mT, k[i], beta=0, alpha=scale, out=slopes)
            torch.softmax(slopes, 1, out=weights)
            # With s the logits, p the weights and D the inner product of output and its gradient, ds = p (dp - D).
            torch.mm(gt.mT, v[i], out=slopes)
            torch.addmm(dv[i], gt, weights, out=dv[i])
            inner = (grad[i, t] * out[i, t]).sum(-1, keepdim=True)
            slopes.sub_(inner).mul_(weights)
            dq[i, :, t] = torch.mul(k[i] @ slopes.mT, scale)
            torch.addmm(dk[i], qt, slopes, alpha=scale, out=dk[i])
    return dq, dk, dv
