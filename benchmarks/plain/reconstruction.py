# SPDX-License-Identifier: Apache-2.0
"""DAUHST, MST and MST++ with tokens of channels last, concatenated skips and rolled bands: as they are published.

These take a network and its inputs `(y, phi)`; the scene has a size that needs no padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain.layers import conv

Attention = Callable[..., Tensor]


def estimate(network: Any, y: Tensor) -> Tensor:
    """The measurement shifted back band by band."""
    width = y.shape[-1] - (network.bands - 1) * network.step
    x = y.new_zeros(y.shape[0], network.bands, y.shape[1], width)
    for i in range(network.bands):
        x[:, i] = y[:, :, network.step * i : network.step * i + width]
    return x / network.bands * 2


def linear(projection: Any, x: Tensor) -> Tensor:
    return F.linear(x, projection.weight, projection.bias)


def first(x: Tensor) -> Tensor:
    """Channels last to channels first."""
    return x.permute(0, 3, 1, 2)


def last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def feed_forward(m: Any, x: Tensor) -> Tensor:
    x = F.gelu(conv(m.widen, first(x)))
    return last(conv(m.narrow, F.gelu(m.spread(x))))


def norm(m: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], m.weight, m.bias, m.eps)


def blocks(m: Any, attention: Attention, x: Tensor, *guides: Tensor) -> Tensor:
    """Blocks on channels first; inside, channels stand last."""
    x = last(x)
    for block in m.blocks:
        inner = norm(block.first_norm, x) if isinstance(block.first_norm, torch.nn.LayerNorm) else x
        x = attention(block.attention, inner, *guides) + x
        x = feed_forward(block.feed_forward, norm(block.second_norm, x)) + x
    return first(x)


def u_shape(m: Any, attention: Attention, x: Tensor, masks: list[Tensor] | None = None) -> Tensor:
    def guides(level: int) -> list[Tensor]:
        return [] if masks is None else [masks[level]]

    skips = []
    for level, (part, down) in enumerate(zip(m.down_blocks, m.downs, strict=True)):
        x = blocks(part, attention, x, *guides(level))
        skips.append(x)
        x = down(x)
    x = blocks(m.bottom, attention, x, *guides(len(m.downs)))
    for i, (up, fuse, part) in enumerate(zip(m.ups, m.fusions, m.up_blocks, strict=True)):
        level = len(m.ups) - 1 - i
        x = conv(fuse, torch.cat([up(x), skips[level]], dim=1))
        x = blocks(part, attention, x, *guides(level))
    return x


def spectral_attention(m: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    b, h, w, c = x.shape
    q, k, v = (linear(p, x.reshape(b, h * w, c)) for p in (m.query, m.key, m.value))
    weighted = v
    if mask is not None:
        u = conv(m.guide.enter, mask)
        u = u * torch.sigmoid(m.guide.spread(conv(m.guide.mix, u))) + u
        cut = u[..., :w].clone()
        for i in range(c):
            begin = int(m.step * i)
            cut[:, i] = u[:, i, :, begin : begin + w]
        weighted = v * last(cut).expand(b, h, w, c).flatten(1, 2)
    q, k, weighted = (t.reshape(b, h * w, m.heads, -1).permute(0, 2, 3, 1) for t in (q, k, weighted))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    weights = (k @ q.transpose(-2, -1) * m.temperature).softmax(dim=-1)
    y = (weights @ weighted).permute(0, 3, 1, 2).reshape(b, h * w, -1)
    return linear(m.project, y).view(b, h, w, c) + last(m.position(first(v.reshape(b, h, w, c))))


def half_shuffle(m: Any, x: Tensor) -> Tensor:
    b, h, w, _ = x.shape
    rows, columns = m.window

    def cut(t: Tensor) -> Tensor:
        """Windows x places x channels."""
        t = t.view(b, h // rows, rows, w // columns, columns, -1)
        return t.permute(0, 1, 3, 2, 4, 5).reshape(b, h * w // (rows * columns), rows * columns, -1)

    def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, table: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(-2, -3) for t in (q, k, v))
        scores = torch.einsum("bnhid,bnhjd->bnhij", q * m.head_width**-0.5, k) + table
        return torch.einsum("bnhij,bnhjd->bnhid", scores.softmax(dim=-1), v).transpose(-2, -3).flatten(-2)

    qkv = [cut(t) for t in (linear(m.query, x), *linear(m.key_value, x).chunk(2, dim=-1))]
    here = m.local_heads * m.head_width
    parts = [attend(*(t[..., :here] for t in qkv), m.local_heads, m.local)]  # type: ignore[misc]
    if m.shuffled is not None:
        there = [t[..., here:].transpose(1, 2).contiguous() for t in qkv]
        parts.append(attend(*there, m.heads - m.local_heads, m.shuffled).transpose(1, 2))  # type: ignore[misc]
    y = linear(m.project, torch.cat(parts, dim=-1))
    y = y.view(b, h // rows, w // columns, rows, columns, -1)
    return y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)


def mst(m: Any, y: Tensor, phi: Tensor) -> Tensor:
    x = estimate(m, y)
    masks = [phi[None]]
    for down in m.mask_downs:
        masks.append(down(masks[-1]))
    return m.map(u_shape(m.u, spectral_attention, F.leaky_relu(m.embed(x), 0.1), masks)) + x


def mst_plus_plus(m: Any, y: Tensor, phi: Tensor) -> Tensor:
    x = estimate(m, y)
    width = x.shape[-1]
    mask = torch.stack([phi[i, :, m.step * i : m.step * i + width] for i in range(m.bands)])
    x = m.body.enter(conv(m.fuse, torch.cat([x, mask.expand_as(x)], dim=1)))
    z = x
    for stage in m.body.stages:
        z = stage.map(u_shape(stage.u, spectral_attention, stage.embed(z))) + z
    return m.body.leave(z) + x


def rolled(x: Tensor, step: int) -> Tensor:
    x = x.clone()
    for i in range(x.shape[1]):
        x[:, i] = torch.roll(x[:, i], shifts=step * i, dims=-1)
    return x


def dauhst(m: Any, y: Tensor, phi: Tensor) -> Tensor:
    width = y.shape[-1] - (m.bands - 1) * m.step
    x = estimate(m, y)
    shifted = y.new_zeros(y.shape[0], m.bands, *y.shape[1:])
    for i in range(m.bands):
        shifted[:, i, :, m.step * i : m.step * i + width] = x[:, i]
    codes = phi.expand_as(shifted)
    total = codes.square().sum(1)
    total = torch.where(total == 0, 1.0, total)
    z = conv(m.start, torch.cat([shifted, codes], dim=1))
    e = m.estimator
    pooled = F.adaptive_avg_pool2d(e.down(torch.relu(conv(e.enter, z))), 1)
    weights = F.softplus(conv(e.last, torch.relu(conv(e.second, torch.relu(conv(e.first, pooled)))))) + 1e-6
    alphas, betas = weights.chunk(2, dim=1)
    for k, denoiser in enumerate(m.denoisers):
        misfit = (y - (z * codes).sum(1)) / (alphas[:, k] + total)
        x = rolled(z + misfit.unsqueeze(1).repeat(1, m.bands, 1, 1) * codes, -m.step)
        x = torch.cat([x, betas[:, k : k + 1].repeat(1, 1, *x.shape[2:])], dim=1)
        h, w = x.shape[2:]
        x = F.pad(x, (0, -w % denoiser.multiple, 0, -h % denoiser.multiple), mode="reflect")
        z = denoiser.map(u_shape(denoiser.u, half_shuffle, denoiser.embed(x))) + x[:, : m.bands]
        z = z[:, :, :h, :w]
        if k < len(m.denoisers) - 1:
            z = rolled(z, m.step)
    return z[..., :width]


# The plain version of each network that is measured.
NETWORKS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "dauhst-2stg": dauhst,
    "mst-s": mst,
    "mst++": mst_plus_plus,
}
