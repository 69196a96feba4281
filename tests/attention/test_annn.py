# SPDX-License-Identifier: Apache-2.0
"""Asymmetric non-local blocks against torch's adaptive pooling, after the transforms as published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import widefield
from registry import randn
from widefield.attention import FusionNonLocal, PyramidNonLocal
from widefield.attention.annn import pyramid_matrix

POOL = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def pooled(x: Tensor, bins: tuple[int, ...]) -> Tensor:
    return torch.cat([POOL[x.dim() - 2](x, s).flatten(2) for s in bins], 2)


def opened(module: PyramidNonLocal | FusionNonLocal) -> PyramidNonLocal | FusionNonLocal:
    """In evaluation, with norms that do something."""
    module.open_gate_(1.0)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            for i, values in enumerate((part.weight, part.bias, part.running_mean, part.running_var)):
                values.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(i))
    return module.double().eval()


@pytest.mark.parametrize("space", [(1, 1), (1, 9), (13, 8), (11,), (3, 4, 5)])
def test_formula(space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    bins = (1, 3, 6)
    x = randn(2, 8, *space, dtype=torch.float64)
    low = randn(2, 5, *(2 * s for s in space), seed=1, dtype=torch.float64)
    apnb = opened(PyramidNonLocal(8, inner=3, value_channels=4, bins=bins))
    afnb = opened(FusionNonLocal(8, low_channels=5, inner=3, value_channels=4, bins=bins))
    query = apnb.key(x)
    cases = [
        (apnb, query, pooled(query, bins), pooled(apnb.value(x), bins), apnb(x), torch.relu),
        (
            afnb,
            afnb.query(x),
            pooled(afnb.key(low), bins),
            pooled(afnb.value(low), bins),
            afnb(x, low),
            lambda y: y,
        ),
    ]
    for module, q, k, v, found, end in cases:
        weights = (q.flatten(2).mT @ k / 3**0.5).softmax(-1)
        context = (weights @ v.mT).mT.unflatten(2, space)
        y = F.conv1d(
            torch.cat([module.project(context), x], 1).flatten(2),
            module.out.project.weight[:, :, None],
            module.out.project.bias,
        )
        torch.testing.assert_close(found, end(module.out.norm(y)).unflatten(2, space))


def test_the_operator_is_over_positions() -> None:
    torch.manual_seed(0)
    x, low = randn(2, 8, 5, 7, dtype=torch.float64), randn(2, 5, 9, 4, seed=1, dtype=torch.float64)
    apnb, afnb = opened(PyramidNonLocal(8)), opened(FusionNonLocal(8, low_channels=5))
    rows = torch.tensor([34, 0])
    for module, source, operator in (
        (apnb, x, apnb.operator(x)),
        (afnb, low, afnb.operator(x, low=low)),
    ):
        assert operator.shape == (2, 35, source[0, 0].numel())
        context = module.context(x) if module is apnb else module.context(x, low)
        torch.testing.assert_close(operator @ module.value(source).flatten(2).mT, context.flatten(2).mT)
    torch.testing.assert_close(afnb.operator(x, rows, low), afnb.operator(x, low=low)[:, rows])


def test_pyramid_matrix_averages() -> None:
    x = randn(1, 2, 7, 5, dtype=torch.float64)
    matrix = pyramid_matrix((7, 5), (1, 3, 8), x)
    torch.testing.assert_close(matrix @ x.flatten(2).mT, pooled(x, (1, 3, 8)).mT)


def test_without_a_lower_map_the_block_attends_to_itself() -> None:
    torch.manual_seed(0)
    x = randn(2, 8, 5, 7)
    module = FusionNonLocal(8).eval()
    assert torch.equal(module(x), module(x, x))
    with pytest.raises(ValueError, match=r"lower map \(2, 5, \*space\).*x itself, as low is None.*low_channels=8"):
        FusionNonLocal(8, low_channels=5)(x)
    with pytest.raises(ValueError, match=r"got \(1, 5, 3, 3\)"):
        FusionNonLocal(8, low_channels=5)(x, torch.zeros(1, 5, 3, 3))


def test_gradients_reach_both_maps() -> None:
    torch.manual_seed(0)
    module = FusionNonLocal(8, low_channels=5, gate=1.0)
    x, low = randn(2, 8, 5, 7).requires_grad_(), randn(2, 5, 9, 4).requires_grad_()
    module(x, low).square().sum().backward()
    assert x.grad.abs().max() > 0
    assert low.grad.abs().max() > 0
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("name", ["apnb", "afnb"])
def test_options_out_of_range(name: str) -> None:
    for option in ("inner", "value_channels", "out_channels"):
        with pytest.raises(ValueError, match=f"{option} must be a positive integer, got 0"):
            widefield.create(name, 8, **{option: 0})
    with pytest.raises(ValueError, match=r"bins must be one or more positive integers, got \(1, 0\)"):
        widefield.create(name, 8, bins=(1, 0))
    with pytest.raises(ValueError, match="low_channels"):
        widefield.create("afnb", 8, low_channels=0)
