# SPDX-License-Identifier: Apache-2.0
"""Adaptive context against its formulas with torch's own pooling, and the head around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from registry import gradients, randn
from widefield.core.branch import PointwiseBranch
from widefield.measure import count
from widefield.models.heads import APCHead
from widefield.pooling import AdaptiveContext

POOL = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def build(**options: Any) -> AdaptiveContext:
    torch.manual_seed(0)
    module = AdaptiveContext(5, **{"out_channels": 4, "bins": 3, **options}).double().eval()
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            assert isinstance(part.running_mean, Tensor)
            torch.nn.init.normal_(part.running_mean, std=0.1)
    return module


def branch(part: Any, x: Tensor) -> Tensor:
    assert isinstance(part, PointwiseBranch)
    y = torch.einsum("oc,bc...->bo...", part.project.weight, x)
    mean = part.norm.running_mean.reshape(-1, *(1,) * (x.dim() - 2))
    return ((y - mean) / (1 + 1e-5) ** 0.5).relu()


@pytest.mark.parametrize("space", [(6, 9), (2, 2), (1, 1), (7,), (3, 4, 2)])
@pytest.mark.parametrize("fusion", [True, False])
def test_formulas(space: tuple[int, ...], fusion: bool) -> None:
    module = build(dims=len(space), fusion=fusion)
    x = randn(2, 5, *space, dtype=torch.float64)
    u = branch(module.local, x)
    v = branch(module.region, POOL[len(space)](x, 3)).flatten(2)
    g = branch(module.overall, POOL[len(space)](u, 1))
    weights = torch.sigmoid(
        torch.einsum("rc,bcn->brn", module.score.weight, (u + g).flatten(2)) + module.score.bias[:, None]  # type: ignore[index]
    )
    torch.testing.assert_close(module.operator(x), weights.mT)
    rows = torch.tensor([0])
    torch.testing.assert_close(module.operator(x, rows), weights.mT[:, :1])
    y = F.relu(branch(module.residual, (v @ weights).unflatten(2, space)) + u)
    torch.testing.assert_close(module(x), branch(module.fusion, y) if fusion else y)


def test_weights_of_regions_are_free_of_each_other() -> None:
    weights = build().operator(randn(1, 5, 6, 6, dtype=torch.float64))
    assert weights.shape == (1, 36, 9)
    assert weights.sum(-1).std() > 0.03
    assert weights.min() > 0
    assert weights.max() < 1


@pytest.mark.parametrize(("bins", "fusion", "dims"), [(1, True, 2), (4, False, 2), (3, True, 1), (2, True, 3)])
def test_cost(bins: int, fusion: bool, dims: int) -> None:
    module = build(bins=bins, fusion=fusion, dims=dims).float()
    shape = (2, 5, *(4, 7, 3)[:dims])
    assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds


def test_options() -> None:
    assert AdaptiveContext(8).out_channels == 8
    with pytest.raises(ValueError, match="dims must be 1, 2 or 3 spatial dimensions, got 4"):
        AdaptiveContext(8, dims=4)
    with pytest.raises(
        ValueError, match="out_channels and bins must be positive, got out_channels=None and bins=0"
    ):
        AdaptiveContext(8, bins=0)


def test_the_head() -> None:
    torch.manual_seed(0)
    head = APCHead(6, 3, width=4, dropout=0.0)
    x = randn(1, 6, 5, 7)
    assert head(x).shape == (1, 3, 5, 7), "one image in training, bins of one and larger than the map"
    x, cotangent = randn(2, 6, 5, 7), randn(2, 3, 5, 7, seed=1)
    assert all(gradient.abs().max() > 0 for gradient in gradients(head, x, cotangent).values())
    with pytest.raises(ValueError, match=r"takes \(b, 6, h, w\), got the shape \(1, 8, 5, 7\)"):
        head(randn(1, 8, 5, 7))
    with pytest.raises(ValueError, match="must be positive, got 6, 0 and 3"):
        APCHead(6, 3, width=0)
    with pytest.raises(ValueError, match=r"bins must be one or more positive integers, got \(\)"):
        APCHead(6, 3, bins=())
