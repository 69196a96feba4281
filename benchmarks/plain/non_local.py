# SPDX-License-Identifier: Apache-2.0
"""Non-local blocks and dual attention with the n x n map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain
from benchmarks.plain.layers import conv


def way_out(m: Any, x: Tensor, context: Tensor) -> Tensor:
    return x + m.out.norm(conv(m.out.project, context.reshape(x.shape[0], -1, *x.shape[2:])))


@plain("nonlocal")
def non_local(m: Any, x: Tensor) -> Tensor:
    theta, phi, g = (conv(p, x).flatten(2) for p in (m.query, m.key, m.value))
    weights = F.softmax(m.scale * theta.mT @ phi, dim=-1)
    return way_out(m, x, (weights @ g.mT).mT)


@plain("nonlocal-gaussian")
def gaussian(m: Any, x: Tensor) -> Tensor:
    tokens, g = x.flatten(2), conv(m.value, x).flatten(2)
    weights = F.softmax(m.scale * tokens.mT @ tokens, dim=-1)
    return way_out(m, x, (weights @ g.mT).mT)


@plain("nonlocal-bare")
def bare(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2)
    weights = F.softmax(m.scale * tokens.mT @ tokens, dim=-1)
    return x + (weights @ tokens.mT).mT.reshape(x.shape)


@plain("nonlocal-dot")
def dot(m: Any, x: Tensor) -> Tensor:
    theta, phi, g = (conv(p, x).flatten(2) for p in (m.query, m.key, m.value))
    weights = theta.mT @ phi / phi.shape[-1]
    return way_out(m, x, (weights @ g.mT).mT)


@plain("nonlocal-concat")
def concatenation(m: Any, x: Tensor) -> Tensor:
    theta, phi, g = (conv(p, x).flatten(2) for p in (m.query, m.key, m.value))
    of_query, of_key = m.pair.weight.flatten().split(theta.shape[1])
    scores = (of_query @ theta)[:, :, None] + (of_key @ phi)[:, None, :]
    return way_out(m, x, (torch.relu(scores) / phi.shape[-1] @ g.mT).mT)


def position(m: Any, x: Tensor) -> Tensor:
    q, k, v = (conv(p, x).flatten(2) for p in (m.query, m.key, m.value))
    weights = F.softmax(q.mT @ k, dim=-1)
    return m.gate * (v @ weights.mT).reshape(x.shape)


def channel(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2)
    energy = tokens @ tokens.mT
    weights = F.softmax(energy.amax(-1, keepdim=True).expand_as(energy) - energy, dim=-1)
    return m.gate * (weights @ tokens).reshape(x.shape)


@plain("danet-pam")
def position_attention(m: Any, x: Tensor) -> Tensor:
    return x + position(m, x)


@plain("danet-cam")
def channel_attention(m: Any, x: Tensor) -> Tensor:
    return x + channel(m, x)


@plain("danet")
def dual_attention(m: Any, x: Tensor) -> Tensor:
    return x + position(m.position, x) + channel(m.channel, x)
