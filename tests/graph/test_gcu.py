# SPDX-License-Identifier: Apache-2.0
"""Beyond Grids against its formulas in loops, k-means against scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.vq import kmeans2
from scipy.special import expit, softmax
from torch import Tensor

from registry import gradients, randn, relative
from widefield.graph import GCU
from widefield.graph.gcu import k_means, project
from widefield.measure import count


def build(channels: int = 5, **options: Any) -> GCU:
    torch.manual_seed(0)
    module = GCU(channels, **{"vertices": (2, 3), "width": 4, **options}).double()
    torch.nn.init.normal_(module.scales)
    return module


def oracle(x: np.ndarray, anchors: np.ndarray, scales: np.ndarray, weight: np.ndarray, reason: bool) -> np.ndarray:
    """One unit on one sample `(c, n)`."""
    n, v = x.shape[1], anchors.shape[1]
    residuals = np.array([[(x[:, i] - anchors[:, k]) / scales[:, k] for k in range(v)] for i in range(n)])
    q = softmax([[-0.5 * (residuals[i, k] ** 2).sum() for k in range(v)] for i in range(n)], 1)
    z = np.array([(q[:, k, None] * residuals[:, k]).sum(0) / q[:, k].sum() for k in range(v)])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    nodes = np.maximum(z @ z.T @ z @ weight.T, 0) if reason else z @ weight.T
    return (q @ nodes).T


@pytest.mark.parametrize("reason", [True, False])
def test_formulas(reason: bool) -> None:
    module = build(reason=reason)
    x = randn(2, 5, 3, 4, dtype=torch.float64)
    y = module(x).detach()
    assert torch.equal(y[:, :5], x)
    anchors = module.anchors.detach().split([2, 3], 1)
    scales = module.scales.detach().split([2, 3], 1)
    for b, sample in enumerate(x.flatten(2).numpy()):
        expected = [
            oracle(sample, w.numpy(), expit(s.numpy()), part.weight.detach().numpy(), reason)
            for w, s, part in zip(anchors, scales, module.weights, strict=True)
        ]
        np.testing.assert_allclose(y[b, 5:].flatten(1).numpy(), np.concatenate(expected), atol=1e-10)


def test_a_large_common_offset_does_not_cancel() -> None:
    """Features at 1000 +- 0.1: the square as three products of the raw features would have no digit left."""
    x = 1000 + 0.1 * randn(1, 8, 50)
    anchors = 1000 + 0.1 * randn(8, 4, seed=1)
    exact, expected = project(x.double(), anchors.double(), torch.full((8, 4), 0.1).double())
    found, nodes = project(x, anchors, torch.full((8, 4), 0.1))
    assert relative(found, exact) < 2e-3
    assert relative(nodes, expected) < 2e-3


def test_a_region_that_nobody_joins_has_a_direction_and_a_gradient() -> None:
    x = randn(1, 4, 30).requires_grad_()
    anchors = torch.stack([torch.zeros(4), torch.full((4,), 40.0)], 1).requires_grad_()
    q, z = project(x, anchors, torch.full((4, 2), 0.5))
    assert q[0, 1].sum() < 1e-30
    assert z.norm(dim=1).min() > 0
    (z / z.norm(dim=1, keepdim=True)).sum().backward()
    for leaf in (x, anchors):
        assert isinstance(leaf.grad, Tensor)
        assert torch.isfinite(leaf.grad).all()


def test_k_means_is_lloyd_and_repeats() -> None:
    points = randn(200, 3, dtype=torch.float64)
    start, _ = k_means(points, 6, 0)
    for steps in (1, 5, 50):
        centres, labels = k_means(points, 6, steps)
        expected, _ = kmeans2(points.numpy(), start.numpy(), iter=steps, minit="matrix")
        np.testing.assert_allclose(centres.numpy(), expected)
        assert torch.equal(labels, torch.cdist(points, torch.from_numpy(expected)).argmin(1))


def test_initialise_finds_the_clusters_of_the_features() -> None:
    middles = torch.tensor([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]]).double()
    spread = torch.tensor([0.2, 0.4, 0.6]).double()
    points = middles.repeat_interleave(100, 0) + spread.repeat_interleave(100)[:, None] * randn(300, 2)
    module = build(2, vertices=(3, 1))
    module.initialise_(points.mT.reshape(1, 2, 30, 10))
    anchors, scales = module.anchors.detach().mT, module.scales.detach().sigmoid().mT
    order = torch.cdist(middles, anchors[:3]).argmin(1)
    assert order.unique().numel() == 3
    torch.testing.assert_close(anchors[order], middles, rtol=0, atol=0.2)
    torch.testing.assert_close(scales[order], spread[:, None].expand(3, 2), rtol=0.25, atol=0)
    torch.testing.assert_close(anchors[3], points.mean(0))
    torch.testing.assert_close(scales[3], torch.full_like(scales[3], 0.95), msg="wider than a sigmoid reaches")
    assigned, _ = project(points.mT[None], anchors[:3].mT, scales[:3].mT)
    assert torch.equal(assigned.argmax(1)[0], order.repeat_interleave(100))
    with pytest.raises(ValueError, match=r"3 vertices need at least as many positions.*got 2"):
        module.initialise_(points[:2].mT.reshape(1, 2, 1, 2))


@pytest.mark.parametrize("reason", [True, False])
def test_every_parameter_is_used_and_every_product_counted(reason: bool) -> None:
    module = build(reason=reason)
    found = gradients(module, randn(2, 5, 3, 4, dtype=torch.float64), randn(2, 13, 3, 4, dtype=torch.float64))
    assert all(gradient.abs().max() > 0 for gradient in found.values())
    assert module.cost((2, 5, 3, 4)).multiply_adds == count(module.float(), (2, 5, 3, 4)).multiply_adds


def test_options() -> None:
    assert GCU(64).out_channels == 128
    assert GCU(64, vertices=8).vertices == (8,)
    with pytest.raises(ValueError, match=r"vertices must be one or more positive numbers, got \(2, 0\)"):
        GCU(8, vertices=(2, 0))
    with pytest.raises(ValueError, match="width must be a positive number of channels, got 0"):
        GCU(8, width=0)
