# SPDX-License-Identifier: Apache-2.0
"""Pooling with torch's adaptive pools and interpolations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain
from benchmarks.plain.layers import conv


def branch(b: Any, x: Tensor) -> Tensor:
    return torch.relu(b.norm(conv(b.project, x)))


@plain("none")
def none(m: Any, x: Tensor) -> Tensor:
    return x.clone()


@plain("global-average")
def global_average(m: Any, x: Tensor) -> Tensor:
    return x + m.weight * F.interpolate(F.adaptive_avg_pool2d(x, 1), size=x.shape[2:])


@plain("image-pool")
def image_pool(m: Any, x: Tensor) -> Tensor:
    pooled = branch(m.branch, F.adaptive_avg_pool2d(x, 1))
    return x + F.interpolate(pooled, size=x.shape[2:], mode="bilinear", align_corners=False)


@plain("ppm")
def ppm(m: Any, x: Tensor) -> Tensor:
    views = [x]
    for bins, part in zip(m.bins, m.branches, strict=True):
        pooled = branch(part, F.adaptive_avg_pool2d(x, bins))
        views.append(F.interpolate(pooled, size=x.shape[2:], mode="bilinear", align_corners=m.align_corners))
    return torch.cat(views, dim=1)


@plain("aspp")
def aspp(m: Any, x: Tensor) -> Tensor:
    views = [branch(m.pointwise, x)]
    for b in m.dilated:
        views.append(torch.relu(b.norm(F.conv2d(x, b.weight, padding=b.rate, dilation=b.rate))))
    pooled = branch(m.pooled, F.adaptive_avg_pool2d(x, 1))
    views.append(F.interpolate(pooled, size=x.shape[2:], mode="bilinear", align_corners=False))
    return F.dropout(branch(m.fuse, torch.cat(views, dim=1)), m.dropout, m.training)
