# SPDX-License-Identifier: Apache-2.0
"""External attention and its double normalisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax

import widefield
from registry import randn
from widefield.attention import ExternalAttention, double_normalise


@pytest.mark.parametrize("guard", [0.0, 1e-9, 0.1])
def test_double_normalisation(guard: float) -> None:
    logits = 3 * randn(2, 5, 7, dtype=torch.float64)
    expected = softmax(logits.numpy(), -1)
    expected = expected / (guard + expected.sum(1, keepdims=True))
    np.testing.assert_allclose(double_normalise(logits, guard).numpy(), expected)


def test_a_position_that_no_row_wants_keeps_digits_and_gradient() -> None:
    """Its entries of the first softmax underflow together; divided by their sum they would be 0 / 0."""
    logits = torch.zeros(1, 3, 4)
    logits[:, :, 0] = torch.tensor([-150.0, -151.0, -152.0])
    logits.requires_grad_()
    codes = double_normalise(logits, guard=0.0)
    torch.testing.assert_close(codes[0, :, 0], torch.tensor([0.0, -1.0, -2.0]).softmax(0))
    codes[0, 0, 0].backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0, 0] > 0.1


def test_with_equal_logits_every_row_of_the_memory_weighs_the_same() -> None:
    codes = double_normalise(torch.full((1, 5, 7), 3.0, dtype=torch.float64), guard=0.01)
    total = 5 / 7
    torch.testing.assert_close(codes, torch.full_like(codes, 1 / 7 / (0.01 + total)))


@pytest.mark.parametrize("space", [(1, 1), (3, 5), (7,), (2, 3, 4)])
def test_formula(space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = ExternalAttention(6, rank=4, norm="none").double()
    x = randn(2, 6, *space, dtype=torch.float64)
    tokens = x.numpy().reshape(2, 6, -1)
    lower, keys, values, upper = (
        p.weight.detach().numpy() for p in (module.lower, module.keys, module.values, module.upper)
    )
    logits = np.einsum(
        "rc,bcn->brn", keys, np.einsum("oc,bcn->bon", lower, tokens) + module.lower.bias.detach().numpy()[:, None]
    )
    codes = softmax(logits, -1)
    codes = codes / (1e-9 + codes.sum(1, keepdims=True))
    context = np.einsum("cr,brn->bcn", values, codes)
    np.testing.assert_allclose(module.context(x).flatten(2).detach().numpy(), context)
    y = np.maximum(tokens + np.einsum("oc,bcn->bon", upper, context), 0)
    np.testing.assert_allclose(module(x).flatten(2).detach().numpy(), y)
    n = math.prod(space)
    one_by_one, composed = 2 * n * (2 * 6 * 6 + 2 * 6 * 4), 4 * 6 * (6 + 1) + 6 * 6 * 4 + 2 * n * 2 * 6 * 4
    assert module.cost(x.shape).multiply_adds == (one_by_one if n == 1 else composed)


def test_options_out_of_range() -> None:
    with pytest.raises(ValueError, match="ExternalAttention: rank must be a positive integer, got 0"):
        widefield.create("external-attention", 8, rank=0)
    with pytest.raises(ValueError, match="guard must not be negative, got -1"):
        widefield.create("external-attention", 8, guard=-1)
    with pytest.raises(widefield.NoOperator):
        widefield.create("external-attention", 8).operator(randn(1, 8, 3, 3))
