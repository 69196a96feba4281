# SPDX-License-Identifier: Apache-2.0
"""Gradients through torch's batch norm, which on the CPU misreads the layout of some batches of one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import widefield
from registry import build
from widefield.core import BatchNorm


@pytest.mark.parametrize("name", widefield.list_modules())
def test_gradient_reaches_a_batch_norm_before_the_module(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    module = build(name, 8, gate=None, rank=4, size=(3, 4)).double().eval()
    norm = nn.BatchNorm2d(8).double().eval()
    with torch.no_grad():
        assert norm.weight is not None
        norm.weight.uniform_(0.5, 2, generator=generator)
    x = torch.randn(1, 8, 3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    h = norm(x)
    alone = h.detach().requires_grad_()
    y = module(h)
    cotangent = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    (found,) = torch.autograd.grad(y, x, cotangent)
    (inner,) = torch.autograd.grad(module(alone), alone, cotangent)
    torch.testing.assert_close(found, inner * norm.weight.detach()[:, None, None] / (1 + 1e-5) ** 0.5)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("contiguous_gradient", [False, True])
def test_own_batch_norm_with_positions_outermost(train: bool, contiguous_gradient: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> torch.Tensor:
        return torch.randn(1, 6, 4, generator=generator, dtype=torch.float64).mT.unflatten(2, (2, 3))

    norm = BatchNorm(4).double().train(train)
    x, cotangent = draw(), draw()
    copy = x.contiguous().requires_grad_()
    (expected,) = torch.autograd.grad(norm(copy), copy, cotangent.contiguous())
    x.requires_grad_()
    (found,) = torch.autograd.grad(norm(x), x, cotangent.contiguous() if contiguous_gradient else cotangent)
    torch.testing.assert_close(found, expected)
