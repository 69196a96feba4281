# SPDX-License-Identifier: Apache-2.0
"""Graph modules with every step on the whole map, and residuals to each vertex written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain


@plain("glore")
def glore(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2)
    state, weights = m.state(tokens), m.assign(tokens)
    nodes = torch.matmul(state, weights.permute(0, 2, 1)) / tokens.shape[2]
    related = m.edges(nodes.permute(0, 2, 1).contiguous()).permute(0, 2, 1)
    nodes = m.update(F.relu(nodes + related))
    back = torch.matmul(nodes, weights).view(x.shape[0], -1, *x.shape[2:])
    return x + m.out(back)


@plain("latentgnn")
def latentgnn(m: Any, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    u, v = F.normalize(m.send(x), dim=1), F.normalize(m.receive(x), dim=1)
    found = []
    for kernel in m.kernels:
        sent = F.normalize(kernel.send(u).view(b, -1, h * w), dim=2)
        received = F.normalize(kernel.receive(v).view(b, -1, h * w), dim=1)
        latent = torch.bmm(sent, u.view(b, -1, h * w).permute(0, 2, 1))
        directions = F.normalize(latent, dim=-1)
        affinity = F.softmax(torch.bmm(directions, directions.permute(0, 2, 1)), dim=-1)
        latent = torch.bmm(affinity, latent)
        found.append(torch.bmm(latent.permute(0, 2, 1), received).view(b, -1, h, w))
    return x + m.gate * m.up(torch.cat(found, dim=1))


@plain("gcu")
def gcu(m: Any, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    tokens = x.view(b, c, h * w).permute(0, 2, 1)
    found, start = [x], 0
    for count, weight in zip(m.vertices, m.weights, strict=True):
        anchors = m.anchors[:, start : start + count]
        scales = torch.sigmoid(m.scales[:, start : start + count])
        start += count
        residuals = torch.stack([(tokens - anchors[:, k]) / scales[:, k] for k in range(count)], 1)
        assigned = F.softmax(-0.5 * residuals.pow(2).sum(-1), dim=1)
        z = (assigned.unsqueeze(-1) * residuals).sum(2) / assigned.sum(2, keepdim=True)
        z = F.normalize(z, dim=-1).permute(0, 2, 1)
        adjacency = torch.bmm(z.permute(0, 2, 1), z)
        nodes = F.relu(torch.bmm(weight(z), adjacency))
        found.append(torch.bmm(nodes, assigned).view(b, -1, h, w))
    return torch.cat(found, 1)


@plain("sgr")
def sgr(m: Any, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    votes = F.softmax(m.vote(x), dim=1).view(b, -1, h * w)
    features = m.collect(x).view(b, -1, h * w)
    nodes = torch.bmm(features, (votes / votes.sum(2, keepdim=True)).permute(0, 2, 1))
    words = m.words.t().unsqueeze(0).expand(b, -1, -1)
    nodes = F.relu(torch.matmul(m.update(torch.cat([F.relu(nodes), words], 1)), m.links.t()))
    # The position's part of the score would be constant along the softmax.
    scores = m.score(nodes).permute(0, 2, 1).expand(-1, -1, h * w)
    mapped = torch.bmm(m.answer(nodes), F.softmax(scores, dim=1))
    return x + F.relu(mapped).view(b, -1, h, w)
