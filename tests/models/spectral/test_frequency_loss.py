# SPDX-License-Identifier: Apache-2.0
"""The frequency loss against the transform written out, and where it could go wrong."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from widefield.models.spectral.frequency_loss import frequency_domain_loss


def cubes(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    prediction, truth = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
    return prediction, truth


def dft(x: list[list[float]]) -> list[complex]:
    """Orthonormal two-dimensional Fourier transform, term by term."""
    h, w = len(x), len(x[0])
    return [
        sum(x[i][j] * cmath.exp(-2j * math.pi * (u * i / h + v * j / w)) for i in range(h) for j in range(w))
        / math.sqrt(h * w)
        for u in range(h)
        for v in range(w)
    ]


@pytest.mark.parametrize("logarithm", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_term_by_term(logarithm: bool, shared: bool, alpha: float) -> None:
    prediction, truth = cubes(2, 1, 4, 6)
    difference = (prediction - truth).mean(0)[0]
    patches = [dft(difference[i : i + 2, j : j + 3].tolist()) for i in (0, 2) for j in (0, 3)]
    weights = [[abs(d) ** alpha for d in patch] for patch in patches]
    if logarithm:
        weights = [[math.log(1 + w) for w in patch] for patch in weights]
    largest = [max(max(patch) for patch in weights) if shared else max(patch) for patch in weights]
    terms = [
        w / top * abs(d) ** 2
        for patch, ws, top in zip(patches, weights, largest, strict=True)
        for d, w in zip(patch, ws, strict=True)
    ]
    found = frequency_domain_loss(
        prediction, truth, alpha=alpha, patch_factor=2, log_matrix=logarithm, batch_matrix=shared
    )
    assert found.item() == pytest.approx(0.7 * sum(terms) / 24, rel=1e-12)


def test_one_frequency_is_the_mean_square() -> None:
    """Constant differences have one frequency, whose weight is 1: Parseval does the rest."""
    _, truth = cubes(1, 3, 8, 8)
    assert frequency_domain_loss(truth + 0.3, truth, weight=1.0).item() == pytest.approx(0.09, rel=1e-12)


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_never_above_the_mean_square(height: int, width: int, average: bool) -> None:
    prediction, truth = cubes(2, 2, height, width)
    loss = frequency_domain_loss(prediction, truth, weight=1.0, ave_spectrum=average)
    difference = prediction - truth
    assert 0 <= loss <= (difference.mean(0) if average else difference).square().mean() * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shared", [True, False])
def test_no_difference_no_gradient(dtype: torch.dtype, shared: bool) -> None:
    truth = torch.rand(2, 3, 5, 7).to(dtype)
    prediction = truth.clone().requires_grad_()
    loss = frequency_domain_loss(prediction, truth, batch_matrix=shared)
    loss.backward()
    assert loss == 0
    assert prediction.grad is not None
    assert not prediction.grad.any()


def test_the_weights_have_no_gradient() -> None:
    """With one patch of one pixel, loss = weight d^2 where the weight is 1: gradient 2 weight d."""
    prediction = torch.tensor([[[[0.7]]]], dtype=torch.float64, requires_grad=True)
    frequency_domain_loss(prediction, torch.zeros_like(prediction), patch_factor=1).backward()
    assert prediction.grad is not None
    assert prediction.grad.item() == pytest.approx(0.7 * 2 * 0.7)


def test_other_shapes_are_refused() -> None:
    prediction, truth = cubes(1, 2, 4, 4)
    with pytest.raises(ValueError, match="two cubes"):
        frequency_domain_loss(prediction, truth[:, :1])
    with pytest.raises(ValueError, match="patch_factor"):
        frequency_domain_loss(prediction, truth, patch_factor=0)
