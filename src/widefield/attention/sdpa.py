# SPDX-License-Identifier: Apache-2.0
"""Softmax attention over positions without the n x m map in memory, in the channels-first layout of maps.

Not to be confused with `torch.nn.functional.scaled_dot_product_attention`, which this calls where that has a
fused kernel: on accelerators. Its CPU kernel wants equal widths of keys and values and is the slower one there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.attention.tiles import TiledAttention, written_out
from widefield.core.numerics import float32_island, widen

WRITTEN_OUT_NUMBERS = 2**22  # up to 16 MiB of weights in float32 are kept, which saves a product in backward


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float = 1.0) -> Tensor:
    """`y_i = sum_j softmax_j(scale * q_i . k_j) v_j`, over the last axis.

    Logits and softmax are float32 at least. Small maps are written out; large ones run in tiles on the CPU and
    through torch's fused attention elsewhere, and while compiling or exporting. No path holds n x m numbers for
    a large map, in forward or in backward; a second derivative on the CPU does (see `TiledAttention`).

    Args:
        q: queries `(b, d, n)`, or `(b, g, d, n)` with g heads.
        k: keys `(b, d, m)` or `(b, g, d, m)`.
        v: values `(b, e, m)` or `(b, g, e, m)`; e may differ from d.
        scale: of the logits; the papers use 1 or `d ** -0.5`.

    Returns:
        `(b, e, n)` or `(b, g, e, n)`, in the dtype of `v`.

    Raises:
        ValueError: shapes that do not fit.
    """
    _check(q, k, v)
    dtype = v.dtype
    with float32_island(v):
        q, k, v = (widen(x) for x in (q, k, v))
        return _dispatch(q, k, v, scale).to(dtype)


def attention_matrix(q: Tensor, k: Tensor, *, rows: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """The weights themselves: `(..., n, m)`, or `(..., len(rows), m)` for chosen queries only.

    Args:
        q: `(..., d, n)`.
        k: `(..., d, m)`.
        rows: `(r,)` indices of queries; all if None.
        scale: of the logits.
    """
    q = q if rows is None else q.index_select(-1, rows.to(q.device))
    return (widen(q).mT * scale @ widen(k)).softmax(-1)


def _dispatch(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    if torch.compiler.is_compiling() or q.device.type != "cpu":
        return _fused(q, k, v, scale)
    if q.shape[:-2].numel() * q.shape[-1] * k.shape[-1] <= WRITTEN_OUT_NUMBERS:
        return written_out(q if scale == 1.0 else q * scale, k, v)
    out = TiledAttention.apply(*(x.flatten(0, -3) for x in (q, k, v)), scale)
    return out.mT.unflatten(0, q.shape[:-2])


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
    heads, width = v.dim() == 4, v.shape[-2]
    # ONNX wants heads. CUDA's kernels want widths in multiples of 8; anything else falls back to the whole map.
    q, k, v = (x if heads else x.unsqueeze(1) for x in (q, k, v))
    if q.device.type == "cuda":
        q, k, v = _padded(q), _padded(k), _padded(v)
    out = F.scaled_dot_product_attention(q.mT, k.mT, v.mT, scale=scale).mT[..., :width, :]
    return out if heads else out.squeeze(1)


def _padded(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[-2] % 8))


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not (q.dim() == k.dim() == v.dim() and q.dim() in (3, 4)):
        raise ValueError(f"attention takes three tensors (b, d, n) or three (b, g, d, n); {shapes}")
    if not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]):
        raise ValueError(f"attention needs the same batch and heads in q, k and v; {shapes}")
    if q.shape[-2] != k.shape[-2] or k.shape[-1] != v.shape[-1]:
        raise ValueError(
            "attention needs queries as wide as keys (second last axis) and as many values as keys (last "
            f"axis); {shapes}"
        )
