# SPDX-License-Identifier: Apache-2.0
"""FR-01 and FR-02 for attention and pooling: half precision changes rounding, nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import widefield
from registry import build

NAMES = widefield.list_modules(family="attention") + widefield.list_modules(family="pooling")
HALF = [(torch.float16, 1e-2), (torch.bfloat16, 5e-2)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e-4, 1.0, 30.0, 300.0])
def test_autocast_agrees_with_float32(name: str, size: float) -> None:
    module = build(name, 16, dropout=0.0, size=(24, 24))
    x = torch.rand(1, 16, 24, 24, generator=torch.Generator().manual_seed(0)) * size
    expected = module(x)
    for dtype, tolerance in HALF:
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            y = module(leaf)
        assert (y.float() - expected).abs().max() < tolerance * expected.abs().max()
        (gradient,) = torch.autograd.grad(y.float().sum(), leaf)
        assert torch.isfinite(gradient).all()


def dead(kind: str) -> Tensor:
    x = torch.randn(2, 32, 8, 8, generator=torch.Generator().manual_seed(0))
    return {
        "map": torch.zeros_like(x),
        "pixel": x * (torch.arange(64) != 0).view(8, 8),
        "channel": x * (torch.arange(32) != 5).view(32, 1, 1),
    }[kind]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["map", "pixel", "channel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_dead_feature_in_a_module_of_any_dtype(name: str, kind: str, dtype: torch.dtype) -> None:
    x = dead(kind).to(dtype).requires_grad_()
    y = build(name, 32, dropout=0.0, size=(8, 8)).to(dtype)(x)
    assert y.dtype == dtype
    assert torch.isfinite(y).all()
    y.float().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().max() < 1e6
