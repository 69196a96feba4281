# SPDX-License-Identifier: Apache-2.0
"""Double attention, and compact non-local blocks group by group."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain


@plain("a2")
def a2(m: Any, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    values = m.value(x).view(b, -1, h * w)
    gathering = F.softmax(m.gather(x).view(b, -1, h * w), dim=-1)
    distributing = F.softmax(m.distribute(x).view(b, -1, h * w), dim=1)
    descriptors = torch.bmm(values, gathering.permute(0, 2, 1))
    return x + m.out(torch.matmul(descriptors, distributing).view(b, -1, h, w))


def grouped(m: Any, y: Tensor) -> Tensor:
    kernel = m.project.weight[..., None, None]
    return m.norm(F.conv2d(y, kernel, groups=m.groups))


@plain("cgnl")
def cgnl(m: Any, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    found = []
    for theta, phi, g in zip(*(p(x).chunk(m.groups, 1) for p in (m.theta, m.phi, m.value)), strict=True):
        attention = torch.bmm(phi.reshape(b, 1, -1), g.reshape(b, -1, 1))
        found.append(torch.bmm(attention, theta.reshape(b, 1, -1)).view(b, -1, h, w))
    return x + grouped(m, torch.cat(found, 1))


@plain("cgnl-rbf")
def cgnl_rbf(m: Any, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    alphas = [
        math.sqrt(math.exp(-2 * m.gamma) * (2 * m.gamma) ** p / math.factorial(p)) for p in range(m.order + 1)
    ]
    found = []
    for theta, phi, g in zip(*(p(x).chunk(m.groups, 1) for p in (m.theta, m.phi, m.value)), strict=True):
        of_theta = torch.stack([alpha * theta.reshape(b, -1).pow(p) for p, alpha in enumerate(alphas)], 1)
        of_phi = torch.stack([alpha * phi.reshape(b, -1).pow(p) for p, alpha in enumerate(alphas)], 1)
        attention = torch.bmm(of_phi, g.reshape(b, -1, 1))
        found.append(torch.bmm(attention.permute(0, 2, 1), of_theta).view(b, -1, h, w))
    return x + grouped(m, torch.cat(found, 1))
