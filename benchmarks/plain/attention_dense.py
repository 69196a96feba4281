# SPDX-License-Identifier: Apache-2.0
"""PSANet, OCNet, DNL, GCNet, ANNN and external attention with whole maps, concatenations and loops over cells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain


def same_size(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


@plain("dnl")
def dnl(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2)
    query, key, value = m.query(tokens), m.key(tokens), m.value(tokens)
    query = query - query.mean(2, keepdim=True)
    key = key - key.mean(2, keepdim=True)
    weights = torch.softmax(m.scale * (query.mT @ key), -1)
    unary = torch.softmax(m.unary(tokens), -1)
    y = (weights @ value.mT).mT + (unary @ value.mT).mT
    return x + m.leave(y.unflatten(2, x.shape[2:]))


@plain("gcnet")
def gcnet(m: Any, x: Tensor) -> Tensor:
    weights = torch.softmax(m.score(x).flatten(2), -1)
    c = x.flatten(2) @ weights.mT
    return x + m.add(c)[..., None]


@plain("external-attention")
def external_attention(m: Any, x: Tensor) -> Tensor:
    tokens = m.lower(x).flatten(2)
    codes = torch.softmax(m.keys(tokens), -1)
    codes = codes / (m.guard + codes.sum(1, keepdim=True))
    y = m.values(codes).unflatten(2, x.shape[2:])
    return torch.relu(x + m.norm(m.upper(y)))


def pyramid(x: Tensor, bins: tuple[int, ...]) -> Tensor:
    return torch.cat([F.adaptive_avg_pool2d(x, s).flatten(2) for s in bins], 2)


def pooled_attention(m: Any, query: Tensor, key: Tensor, x: Tensor) -> Tensor:
    key, value = pyramid(key, m.bins), pyramid(m.value(x), m.bins)
    weights = torch.softmax(m.scale * (query.flatten(2).mT @ key), -1)
    y = (weights @ value.mT).mT.unflatten(2, x.shape[2:])
    y = m.out(torch.cat([m.project(y), x], 1))
    return F.dropout(y, m.dropout, m.training)


@plain("apnb")
def apnb(m: Any, x: Tensor) -> Tensor:
    query = m.key(x)
    return pooled_attention(m, query, query, x)


@plain("afnb")
def afnb(m: Any, x: Tensor) -> Tensor:
    return pooled_attention(m, m.query(x), m.key(x), x)


def object_context(m: Any, x: Tensor) -> Tensor:
    small = F.max_pool2d(x, m.reduce) if m.reduce > 1 else x
    key, value = m.key(small).flatten(2), m.value(small).flatten(2)
    weights = torch.softmax(m.scale * (key.mT @ key), -1)
    y = (weights @ value.mT).mT.unflatten(2, small.shape[2:])
    return same_size(y, x) if m.reduce > 1 else y


@plain("ocnet-base")
def ocnet_base(m: Any, x: Tensor) -> Tensor:
    y = sum(project(object_context(part, x)) for part, project in zip(m.contexts, m.projects, strict=True))
    assert isinstance(y, Tensor)
    return F.dropout(m.fuse(torch.cat([y, x], 1)), m.dropout, m.training)


def cell_context(m: Any, x: Tensor) -> Tensor:
    key, value = m.key(x), m.value(x)
    y = torch.zeros_like(value)
    h, w = x.shape[2:]
    for i in range(m.cells):
        for j in range(m.cells):
            top, bottom = i * (h // m.cells), h if i == m.cells - 1 else (i + 1) * (h // m.cells)
            left, right = j * (w // m.cells), w if j == m.cells - 1 else (j + 1) * (w // m.cells)
            k = key[:, :, top:bottom, left:right].flatten(2)
            v = value[:, :, top:bottom, left:right].flatten(2)
            weights = torch.softmax(m.scale * (k.mT @ k), -1)
            inside = (weights @ v.mT).mT.unflatten(2, (bottom - top, right - left))
            y[:, :, top:bottom, left:right] = inside
    return y


@plain("ocnet-pyramid")
def ocnet_pyramid(m: Any, x: Tensor) -> Tensor:
    contexts = [project(cell_context(part, x)) for part, project in zip(m.contexts, m.projects, strict=True)]
    return F.dropout(m.fuse(torch.cat([m.lift(x), *contexts], 1)), m.dropout, m.training)


@plain("ocnet-asp")
def ocnet_asp(m: Any, x: Tensor) -> Tensor:
    context = m.settle(m.project(object_context(m.object, m.near(x))))
    views = [context, m.pointwise(x), *(branch(x) for branch in m.dilated)]
    return F.dropout(m.fuse(torch.cat(views, 1)), m.dropout, m.training)


def every_pair(by_offset: Tensor, mask: tuple[int, int]) -> Tensor:
    """From `(b, offsets, h, w)` to `(b, others, h, w)`: the offsets of each position laid over the map."""
    h, w = by_offset.shape[2:]
    rows, columns = torch.arange(h), torch.arange(w)
    dy = rows[:, None] - rows + mask[0] // 2  # other, own
    dx = columns[:, None] - columns + mask[1] // 2
    inside = ((dy >= 0) & (dy < mask[0]))[:, None, :, None] & ((dx >= 0) & (dx < mask[1]))[None, :, None, :]
    index = dy.clamp(0, mask[0] - 1)[:, None, :, None] * mask[1] + dx.clamp(0, mask[1] - 1)[None, :, None, :]
    index = index.flatten(0, 1).expand(by_offset.shape[0], -1, -1, -1)
    return by_offset.gather(1, index) * inside.flatten(0, 1)


@plain("psanet", "psanet-compact")
def psanet(m: Any, x: Tensor) -> Tensor:
    found = []
    for direction, part in m.parts.items():
        features = part.reduce(x)
        h, w = ((size - 1) // m.shrink + 1 for size in features.shape[2:])
        if m.shrink > 1:
            features = F.interpolate(features, size=(h, w), mode="bilinear", align_corners=True)
        logits = F.conv2d(part.hidden(features), part.weight[:, :, None, None])
        if hasattr(m, "mask"):
            logits = every_pair(logits, m.mask)
        logits = logits.flatten(2)  # others by own
        if direction == "distribute":
            logits = logits.mT
        weights = torch.softmax(logits, 1)  # over senders
        found.append((features.flatten(2) @ weights).unflatten(2, (h, w)))
    y = m.project(torch.cat(found, 1))
    return torch.cat([x, same_size(y, x) if m.shrink > 1 else y], 1)
