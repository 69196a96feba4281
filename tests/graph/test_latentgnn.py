# SPDX-License-Identifier: Apache-2.0
"""LatentGNN against its formulas in numpy, kernel by kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from registry import gradients, randn
from widefield.core import NoOperator
from widefield.core.branch import PointwiseBranch
from widefield.graph import LatentGNN
from widefield.graph.latentgnn import LatentKernel
from widefield.measure import count


def build(**options: Any) -> LatentGNN:
    torch.manual_seed(0)
    return LatentGNN(12, **{"nodes": 4, "inner": 5, "norm": "none", "gate": 0.5, **options}).double()


def apply(branch: Any, x: np.ndarray) -> np.ndarray:
    assert isinstance(branch, PointwiseBranch)
    return branch.project.weight.detach().numpy() @ x


def unit(x: np.ndarray, axis: int) -> np.ndarray:
    """Shut nodes and positions, where everything is zero, stay zero."""
    return x / np.maximum(np.linalg.norm(x, axis=axis, keepdims=True), 1e-30)


def oracle(module: LatentGNN, x: np.ndarray) -> np.ndarray:
    """One sample, `(c, n)`, without norms."""
    u = unit(apply(module.send, x), 0)
    v = u if module.receive is None else unit(apply(module.receive, x), 0)
    found = []
    for kernel in module.kernels:
        assert isinstance(kernel, LatentKernel)
        sent = np.maximum(apply(kernel.send, u), 0)
        received = sent if kernel.receive is None else np.maximum(apply(kernel.receive, v), 0)
        sent, received = unit(sent, 0 if kernel.receive is None else 1), unit(received, 0)
        latent = sent @ u.T
        if module.reason:
            directions = unit(latent, 1)
            latent = softmax(directions @ directions.T, 1) @ latent
        y = latent.T @ received
        found.append(y if kernel.transform is None else np.maximum(apply(kernel.transform, y), 0))
    return x + 0.5 * apply(module.up, np.concatenate(found))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"reason": False}, {"nodes": (4, 2, 7)}, {"nodes": (3, 2), "transform": True}]
)
def test_formulas(symmetric: bool, options: dict[str, Any]) -> None:
    module = build(symmetric=symmetric, **options)
    x = randn(2, 12, 3, 5, dtype=torch.float64)
    for sample, y in zip(x.flatten(2).numpy(), module(x).flatten(2), strict=True):
        np.testing.assert_allclose(y.detach().numpy(), oracle(module, sample), atol=1e-12)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("reason", [False, True])
def test_the_matrix_gives_the_context(symmetric: bool, reason: bool) -> None:
    module = build(symmetric=symmetric, reason=reason)
    x = randn(2, 12, 3, 5, dtype=torch.float64)
    matrix, u = module.operator(x), module.ends(x.flatten(2))[0]
    torch.testing.assert_close(module.context(x).flatten(2), u @ matrix.mT)
    assert torch.allclose(matrix, matrix.mT) == (symmetric and not reason)
    rows = torch.tensor([0, 14])
    torch.testing.assert_close(module.operator(x, rows), matrix[:, rows])


def test_only_directions_of_features_count() -> None:
    module = build()
    x = randn(1, 12, 3, 5, dtype=torch.float64)
    strength = torch.rand(1, 1, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    torch.testing.assert_close(module.context(x * strength), module.context(x))


@pytest.mark.parametrize(
    "options", [{}, {"symmetric": True}, {"reason": False}, {"nodes": (3, 5), "transform": True}]
)
def test_every_parameter_is_used_and_every_product_counted(options: dict[str, Any]) -> None:
    module = build(norm="batch", **options).train()
    x, cotangent = (randn(2, 12, 3, 5, seed=seed, dtype=torch.float64) for seed in range(2))
    assert all(gradient.abs().max() > 0 for gradient in gradients(module, x, cotangent).values())
    assert module.cost((2, 12, 3, 5)).multiply_adds == count(module.float(), (2, 12, 3, 5)).multiply_adds


def test_refusals() -> None:
    x = randn(1, 12, 2, 2, dtype=torch.float64)
    for options in ({"nodes": (2, 3)}, {"transform": True}):
        with pytest.raises(NoOperator, match="one matrix a kernel"):
            build(**options).operator(x)
    with pytest.raises(ValueError, match=r"nodes must be one or more positive numbers, got \(\)"):
        build(nodes=())
    with pytest.raises(ValueError, match="inner must be a positive number of channels, got 0"):
        build(inner=0)
