# SPDX-License-Identifier: Apache-2.0
"""Adaptive context with every 1x1 at all positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.plain import plain


@plain("acm")
def acm(m: Any, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    regions = m.region(F.adaptive_avg_pool2d(x, m.bins)).view(b, -1, m.bins**2).permute(0, 2, 1).contiguous()
    local = m.local(x)
    overall = m.overall(F.adaptive_avg_pool2d(local, 1))
    overall = F.interpolate(overall, size=(h, w), mode="bilinear", align_corners=False)
    weights = torch.sigmoid(m.score(local + overall).permute(0, 2, 3, 1).reshape(b, h * w, -1))
    gathered = torch.matmul(weights, regions).permute(0, 2, 1).contiguous().view(b, -1, h, w)
    return m.fusion(F.relu(m.residual(gathered) + local))
