# SPDX-License-Identifier: Apache-2.0
"""Compact generalised non-local blocks against attention written out over all channels and positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from registry import gradients, randn
from widefield.core import NoOperator
from widefield.decomposition import CGNL, CGNLRBF
from widefield.decomposition.cgnl import CGNLBase, default_groups


def build(kind: type[CGNLBase], **options: Any) -> CGNLBase:
    torch.manual_seed(0)
    return kind(8, **{"inner": 6, "groups": 2, "gate": 1.0, **options}).double()  # type: ignore[call-arg]


def vectors(module: CGNLBase, x: Tensor) -> list[np.ndarray]:
    """theta, phi and g of the groups, `(b, groups, c n)`."""
    return [
        torch.einsum("oc,bcn->bon", part.weight, x.flatten(2)).reshape(2, module.groups, -1).detach().numpy()
        for part in (module.theta, module.phi, module.value)
    ]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("scale", [False, True])
def test_dot_product_over_all_channels_and_positions(groups: int, scale: bool) -> None:
    module, x = build(CGNL, groups=groups, scale=scale), randn(2, 8, 3, 4, dtype=torch.float64)
    theta, phi, g = vectors(module, x)
    weights = theta[..., :, None] * phi[..., None, :]  # (c n) x (c n)
    expected = np.einsum("bgij,bgj->bgi", weights, g) / (theta.shape[-1] ** 0.5 if scale else 1)
    np.testing.assert_allclose(module.context(x).reshape(expected.shape).detach().numpy(), expected)


@pytest.mark.parametrize("gamma", [1e-4, 0.3])
def test_the_series_tends_to_the_gaussian_of_unit_vectors(gamma: float) -> None:
    """exp(-gamma (1 + 1 - 2 theta phi)), which is the kernel where the vectors have length 1."""
    x = randn(2, 8, 3, 4, dtype=torch.float64)
    errors = []
    for order in (0, 1, 2, 30):
        module = build(CGNLRBF, gamma=gamma, order=order)
        theta, phi, g = vectors(module, x)
        weights = np.exp(-2 * gamma + 2 * gamma * theta[..., :, None] * phi[..., None, :])
        expected = np.einsum("bgij,bgj->bgi", weights, g)
        found = module.context(x).reshape(expected.shape).detach().numpy()
        errors.append(np.abs(found - expected).max())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-12


def test_order_zero_tells_every_position_the_sum_of_g() -> None:
    module, x = build(CGNLRBF, order=0), randn(2, 8, 3, 4, dtype=torch.float64)
    g = vectors(module, x)[2]
    expected = torch.from_numpy(math.exp(-2e-4) * g.sum(-1)).repeat_interleave(3, 1)
    torch.testing.assert_close(module.context(x), expected[..., None, None].expand(2, 6, 3, 4))


def test_the_published_norm_leaves_the_sign_of_the_product() -> None:
    """Everything a position learns from the rest of the map; strong features, so that epsilon is nothing."""
    module, x = build(CGNL), 10 * randn(2, 8, 3, 4, dtype=torch.float64)
    context = module(x) - x
    with torch.no_grad():
        module.phi.weight.mul_(7.0)
        torch.testing.assert_close(module(x) - x, context, rtol=1e-3, atol=1e-3)
        module.phi.weight.mul_(-1.0)
        torch.testing.assert_close(module(x) - x, -context, rtol=1e-3, atol=1e-3)
    found = gradients(module, x, randn(2, 8, 3, 4, seed=1, dtype=torch.float64))
    assert found["phi.weight"].abs().max() < 1e-3 * found["theta.weight"].abs().max()
    other = build(CGNL, norm="none")
    found = gradients(other, x, randn(2, 8, 3, 4, seed=1, dtype=torch.float64))
    assert found["phi.weight"].abs().max() > 0.1 * found["theta.weight"].abs().max()


def test_groups_do_not_see_each_other() -> None:
    module, x = build(CGNL), randn(2, 8, 3, 4, dtype=torch.float64)
    before = module(x) - x
    with torch.no_grad():
        module.theta.weight[:3] *= -2.0
    after = module(x) - x
    torch.testing.assert_close(after[:, 4:], before[:, 4:])
    assert not torch.allclose(after[:, :4], before[:, :4])


def test_options() -> None:
    assert CGNL(64).groups == CGNL(512).groups == 8
    assert [default_groups(*widths) for widths in ((32, 16), (16, 8), (24, 3), (20, 12))] == [4, 2, 1, 2]
    with pytest.raises(ValueError, match="CGNL: groups must divide channels=8 and inner=4, got 3"):
        CGNL(8, groups=3)
    with pytest.raises(ValueError, match="CGNLRBF: inner must be a positive number of channels, got 0"):
        CGNLRBF(8, inner=0)
    with pytest.raises(ValueError, match="gamma must be positive and order at least 0, got gamma=0"):
        CGNLRBF(8, gamma=0)
    with pytest.raises(NoOperator, match="channels and positions"):
        CGNL(8).operator(randn(1, 8, 2, 2))
    ungated = CGNL(8, norm="none")
    x = randn(1, 8, 3, 3)
    assert torch.equal(ungated(x), x), "without a norm the projection is the gate"
    assert ungated.open_gate_(1.0)
    assert not torch.equal(ungated(x), x)
