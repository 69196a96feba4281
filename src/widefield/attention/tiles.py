# SPDX-License-Identifier: Apache-2.0
"""Softmax attention in tiles of queries: the n x m map exists one tile at a time, forward and backward.

Forward keeps the output and one log-sum-exp a query; backward computes each tile again from them (Rabe and
Staats, 2112.05682; Dao et al., 2205.14135). A tile is a few hundred queries against all keys, so that a call
is a short loop over matrix products large enough to run at full speed, with in-place work in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TILE_ROWS = 256
TILE_NUMBERS = 2**23  # 32 MiB in float32


def _tiles(n: int, m: int) -> Iterator[slice]:
    rows = min(TILE_ROWS, max(32, TILE_NUMBERS // m))
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def _buffer(like: Tensor, n: int, m: int) -> Tensor:
    first = next(_tiles(n, m))
    return like.new_empty(first.stop, m)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same function with the whole map in memory: `(b, d, n), (b, d, m), (b, e, m) -> (b, e, n)`."""
    return v @ (q.mT @ k).softmax(-1).mT


class TiledAttention(torch.autograd.Function):
    """`softmax(q^T k) v^T`, on `(b, d, n)`, `(b, d, m)` and `(b, e, m)`; returns `(b, n, e)` and `(b, n, 1)`.

    The first output is positions-first; the second is the log-sum-exp of each query's logits, without gradient.
    First derivatives (reverse and forward mode) hold no map. A second derivative is right too, but is taken
    through the written-out formulas and holds the map; so does `torch.func.vjp`, always ready for a second one.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        n, m = q.shape[-1], k.shape[-1]
        out = v.new_empty(q.shape[0], n, v.shape[1])
        lse = q.new_empty(q.shape[0], n, 1)
        buffer = _buffer(q, n, m)
        for qi, ki, vi, oi, li in zip(q.mT, k.contiguous(), v.mT.contiguous(), out, lse, strict=True):
            for t in _tiles(n, m):
                weights, top = buffer[: t.stop - t.start], li[t]
                torch.mm(qi[t], ki, out=weights)
                torch.amax(weights, 1, keepdim=True, out=top)
                weights.sub_(top).exp_()
                total = weights.sum(1, keepdim=True)
                torch.mm(weights, vi, out=oi[t])
                oi[t].div_(total)
                top.add_(total.log_())
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _written_out_gradients(q, k, v, grad)
        return _gradients(q, k, v, out, lse, grad)

    @staticmethod
    def jvp(ctx: Any, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None) -> tuple[Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = (
            torch.zeros_like(x) if dx is None else dx for x, dx in zip((q, k, v), (dq, dk, dv), strict=True)
        )
        tangent = []
        for t in _tiles(q.shape[-1], k.shape[-1]):
            weights = (q[..., t].mT @ k).sub(lse[:, t]).exp()
            moved = weights * (dq[..., t].mT @ k + q[..., t].mT @ dk)
            drift = moved.sum(-1, keepdim=True) * out[:, t]
            tangent.append(moved @ v.mT - drift + weights @ dv.mT)
        return torch.cat(tangent, 1), None


def _written_out_gradients(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weights, slopes = (q.mT @ k).softmax(-1), grad @ v
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdim=True))
    return k @ slopes.mT, q @ slopes, grad.mT @ weights


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    n, m = q.shape[-1], k.shape[-1]
    inner = (grad * out).sum(-1, keepdim=True)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    weights_, slopes_ = _buffer(q, n, m), _buffer(q, n, m)
    for i in range(q.shape[0]):
        for t in _tiles(n, m):
            weights, slopes = weights_[: t.stop - t.start], slopes_[: t.stop - t.start]
            qt, gt = q[i, :, t], grad[i, t].mT.contiguous()
            # With s the logits, p the weights and D the inner product of output and its gradient,
            # p = exp(s - lse) and ds = p (dp - D). Transposed operands are views: a product takes them as fast.
            torch.mm(qt.mT, k[i], out=weights)
            weights.sub_(lse[i, t]).exp_()
            torch.mm(gt.mT, v[i], out=slopes)
            torch.addmm(dv[i], gt, weights, out=dv[i])
            slopes.sub_(inner[i, t]).mul_(weights)
            dq[i, :, t] = k[i] @ slopes.mT
            torch.addmm(dk[i], qt, slopes, out=dk[i])
    return dq, dk, dv
