# SPDX-License-Identifier: Apache-2.0
"""Sparse, local and classical attention: concatenated scores, unfolded windows, one sample a tap, whole maps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain


@plain("ccnet")
def ccnet(m: Any, x: Tensor) -> Tensor:
    """As the authors' code: columns and rows made batches by copies, scores concatenated."""
    b, _, h, w = x.shape

    def columns(t: Tensor) -> Tensor:
        return t.permute(0, 3, 1, 2).contiguous().view(b * w, -1, h)

    def rows(t: Tensor) -> Tensor:
        return t.permute(0, 2, 1, 3).contiguous().view(b * h, -1, w)

    for _ in range(m.recurrence):
        q, k, v = m.query(x), m.key(x), m.value(x)
        down = torch.bmm(columns(q).transpose(1, 2), columns(k))
        down = down.masked_fill(torch.eye(h, dtype=torch.bool), -math.inf)
        across = torch.bmm(rows(q).transpose(1, 2), rows(k)).view(b, h, w, w)
        scores = torch.cat([down.view(b, w, h, h).permute(0, 2, 1, 3), across], 3).softmax(3)
        down = scores[..., :h].permute(0, 2, 1, 3).contiguous().view(b * w, h, h)
        across = scores[..., h:].contiguous().view(b * h, w, w)
        down = torch.bmm(columns(v), down.transpose(1, 2)).view(b, w, -1, h).permute(0, 2, 3, 1)
        across = torch.bmm(rows(v), across.transpose(1, 2)).view(b, h, -1, w).permute(0, 2, 1, 3)
        x = m.gate * (down + across) + x
    return x


@plain("isa")
def isa(m: Any, x: Tensor) -> Tensor:
    """As the authors' code: permuted copies of the padded map, batches of blocks."""
    b, _, h, w = x.shape
    outputs = [m.lift(x)]
    for block, distant, within in zip(m.blocks, m.distant, m.within, strict=True):
        dh, dw = block if isinstance(block, tuple) else (block, block)
        ph, pw = -h % dh, -w % dw
        around = (pw // 2, pw - pw // 2, ph // 2, ph - ph // 2)
        oh, ow = (h + ph) // dh, (w + pw) // dw
        real = F.pad(x.new_ones(b, 1, h, w), around)

        def far(t: Tensor, oh: int = oh, ow: int = ow, dh: int = dh, dw: int = dw) -> Tensor:
            t = t.view(b, -1, oh, dh, ow, dw).permute(0, 3, 5, 1, 2, 4)
            return t.contiguous().view(b * dh * dw, -1, oh, ow)

        def back(t: Tensor, oh: int = oh, ow: int = ow, dh: int = dh, dw: int = dw) -> Tensor:
            t = t.view(b, dh, dw, -1, oh, ow).permute(0, 3, 4, 1, 5, 2)
            return t.contiguous().view(b, -1, oh * dh, ow * dw)

        def close(t: Tensor, oh: int = oh, ow: int = ow, dh: int = dh, dw: int = dw) -> Tensor:
            t = t.view(b, -1, oh, dh, ow, dw).permute(0, 2, 4, 1, 3, 5)
            return t.contiguous().view(b * oh * ow, -1, dh, dw)

        def join(t: Tensor, oh: int = oh, ow: int = ow, dh: int = dh, dw: int = dw) -> Tensor:
            t = t.view(b, oh, ow, -1, dh, dw).permute(0, 3, 1, 4, 2, 5)
            return t.contiguous().view(b, -1, oh * dh, ow * dw)

        z = x
        for part, cut, glue in ((distant, far, back), (within, close, join)):
            q, k, v = (cut(F.pad(p(z), around)).flatten(2) for p in (part.query, part.key, part.value))
            logits = (q.transpose(1, 2) @ k) * part.inner**-0.5
            logits = logits.masked_fill(cut(real).flatten(2) == 0, torch.finfo(x.dtype).min)
            y = glue(v @ logits.softmax(-1).transpose(1, 2))
            z = part.out(y[:, :, around[2] : around[2] + h, around[0] : around[0] + w])
        outputs.append(z)
    return m.fuse(torch.cat(outputs, 1))


def _sample(x: Tensor, offsets: Tensor, rate: int) -> Tensor:
    """Nine displaced neighbours of each position: `(b, c, 9, h, w)`."""
    h, w = x.shape[2:]
    i = torch.arange(h, dtype=x.dtype).view(h, 1)
    j = torch.arange(w, dtype=x.dtype)
    taps = []
    for tap in range(9):
        rows = i + rate * (tap // 3 - 1) + offsets[:, 2 * tap]
        columns = j + rate * (tap % 3 - 1) + offsets[:, 2 * tap + 1]
        grid = torch.stack([(2 * columns + 1) / w - 1, (2 * rows + 1) / h - 1], -1)
        taps.append(F.grid_sample(x, grid, align_corners=False))
    return torch.stack(taps, 2)


def _apply(taps: Tensor, weights: Tensor) -> Tensor:
    """`(b, c, 9, h, w)` by `(b, g, 9, h, w)`."""
    taps = taps.unflatten(1, (weights.shape[1], -1))
    return (taps * weights.unsqueeze(2)).sum(3).flatten(1, 2)


@plain("dgmn")
def dgmn(m: Any, x: Tensor) -> Tensor:
    y = x
    for rate, filters, offsets, gate in zip(m.rates, m.filters, m.offsets, m.gates, strict=True):
        taps = _sample(x, F.conv2d(x, offsets, padding=rate, dilation=rate), rate)
        found = torch.einsum("ock,bckhw->bohw", filters.flatten(2), taps)
        weights = found[:, : 9 * m.groups].unflatten(1, (m.groups, 9))
        y = y + gate * _apply(taps, weights * found[:, -9:].softmax(1).unsqueeze(1))
    return y


@plain("dgmn-fast")
def dgmn_fast(m: Any, x: Tensor) -> Tensor:
    z = m.reduce(x)
    parts = [z]
    for rate, predict in zip(m.rates, m.predict, strict=True):
        found = F.conv2d(z, predict, padding=rate, dilation=rate)
        weights = found[:, : 9 * m.groups].unflatten(1, (m.groups, 9)).softmax(2)
        weights = weights * found[:, -9:].sigmoid().unsqueeze(1)
        parts.append(_apply(_sample(z, found[:, 9 * m.groups : 9 * m.groups + 18], rate), weights))
    return x + m.expand(m.fuse(torch.cat(parts, 1)))


def _unfold(x: Tensor, size: int) -> Tensor:
    """Windows around each position: `(b, c, k^2, h, w)`."""
    return F.unfold(x, size, padding=size // 2).view(*x.shape[:2], size**2, *x.shape[2:])


@plain("local-relation")
def local_relation(m: Any, x: Tensor) -> Tensor:
    size = m.kernel
    steps = torch.arange(-(size // 2), size // 2 + 1, dtype=x.dtype) / max(1, size // 2)
    where = torch.stack(torch.meshgrid(steps, steps, indexing="ij")).flatten(1)[None]
    logits = -(m.query(x).unsqueeze(2) - _unfold(m.key(x), size)).square() + m.prior(where)[0][..., None, None]
    real = _unfold(torch.ones_like(x[:, :1]), size)
    weights = logits.masked_fill(real == 0, -math.inf).softmax(2)
    values = _unfold(x, size).unflatten(1, (m.groups, -1))
    return m.out((values * weights.unsqueeze(2)).sum(3).flatten(1, 2))


@plain("carafe")
def carafe(m: Any, x: Tensor) -> Tensor:
    kernels = F.conv2d(m.compress(x), m.encode, m.encode_bias, padding=m.encoder_kernel // 2)
    real = _unfold(torch.ones_like(x[:, :1]), m.kernel)[:, 0]
    weights = kernels.masked_fill(real == 0, -math.inf).softmax(1)
    return (_unfold(x, m.kernel) * weights.unsqueeze(1)).sum(2)


def _gaussian_mean(a: Tensor, b: Tensor, values: Tensor) -> Tensor:
    """With all distances: `(b, d, n)`, `(b, d, m)`, `(b, e, m)` to `(b, e, n)`."""
    squares = a.square().sum(1)[:, :, None] - 2 * a.transpose(1, 2) @ b + b.square().sum(1)[:, None]
    weights = torch.exp(-squares / 2)
    return values @ (weights / weights.sum(-1, keepdim=True)).transpose(1, 2)


@plain("bilateral")
def bilateral(m: Any, x: Tensor) -> Tensor:
    h, w = x.shape[2:]
    i, j = torch.meshgrid(torch.arange(h, dtype=x.dtype), torch.arange(w, dtype=x.dtype), indexing="ij")
    place = torch.stack([i, j]).flatten(1).expand(x.shape[0], -1, -1)
    features = torch.cat([x.flatten(2) / m.sigma_range, place / m.sigma_space], 1)
    return _gaussian_mean(features, features, x.flatten(2)).view_as(x)


@plain("mean-shift")
def mean_shift(m: Any, x: Tensor) -> Tensor:
    data = z = x.flatten(2)
    for _ in range(m.steps):
        z = _gaussian_mean(z / m.bandwidth, data / m.bandwidth, data)
    return z.view_as(x)


@plain("mean-shift-flat")
def mean_shift_flat(m: Any, x: Tensor) -> Tensor:
    data = z = x.flatten(2)
    for _ in range(m.steps):
        near = (torch.cdist(z.transpose(1, 2), data.transpose(1, 2)) <= m.bandwidth).to(x.dtype)
        z = data @ (near / near.sum(-1, keepdim=True)).transpose(1, 2)
    return z.view_as(x)


@plain("non-local-means")
def non_local_means(m: Any, x: Tensor) -> Tensor:
    """Patches of a mirrored map, unfolded, at all distances."""
    kernel = torch.tensor(m.kernel, dtype=x.dtype)
    radius = m.patch // 2
    patches = F.unfold(F.pad(x, (radius,) * 4, mode="reflect"), m.patch).unflatten(1, (x.shape[1], -1))
    patches = (patches * (kernel[:, None] * kernel).flatten().sqrt()[:, None]).flatten(1, 2)
    scaled = patches * (math.sqrt(2) / m.bandwidth)
    return _gaussian_mean(scaled, scaled, x.flatten(2)).view_as(x)
