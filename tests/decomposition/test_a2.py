# SPDX-License-Identifier: Apache-2.0
"""Double attention against its formulas and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

import widefield
from registry import randn
from widefield.core.pointwise import Pointwise
from widefield.decomposition import DoubleAttention


def build(**options: Any) -> DoubleAttention:
    torch.manual_seed(0)
    return DoubleAttention(8, **{"inner": 5, "rank": 3, **options}).double()


def apply(part: Pointwise, x: np.ndarray) -> np.ndarray:
    assert part.bias is not None
    return part.weight.detach().numpy() @ x + part.bias.detach().numpy()[:, None]


@pytest.mark.parametrize("space", [(1, 1), (1, 9), (4, 5), (7,), (2, 3, 2)])
def test_formulas(space: tuple[int, ...]) -> None:
    module = build()
    assert module.out is not None
    x = randn(2, 8, *space, dtype=torch.float64)
    y, matrices = module(x).flatten(2).detach().numpy(), module.operator(x).detach().numpy()
    for found, matrix, sample in zip(y, matrices, x.flatten(2).numpy(), strict=True):
        values = apply(module.value, sample)
        gathering = softmax(apply(module.gather, sample), 1)
        distributing = softmax(apply(module.distribute, sample), 0)
        descriptors = sum(np.outer(values[:, i], gathering[:, i]) for i in range(values.shape[1]))
        context = np.stack([descriptors @ distributing[:, i] for i in range(values.shape[1])], 1)
        np.testing.assert_allclose(found, sample + apply(module.out, context))
        np.testing.assert_allclose(values @ matrix.T, context)


def test_one_descriptor_is_the_same_mean_everywhere() -> None:
    module = build(rank=1)
    torch.nn.init.zeros_(module.gather.weight)
    x = randn(2, 8, 4, 5, dtype=torch.float64)
    expected = module.value(x).mean((2, 3), keepdim=True).expand(2, 5, 4, 5)
    torch.testing.assert_close(module.context(x), expected)


def test_without_reconstruction_the_context_is_returned() -> None:
    module, x = build(reconstruct=False), randn(2, 8, 4, 5, dtype=torch.float64)
    assert module.out_channels == 5
    assert torch.equal(module(x), module.context(x))


def test_the_row_of_the_hamburger_paper() -> None:
    """A2 with inner width C: 1.01 M parameters in units of 2^20, biases apart, and 25.7 G multiply-adds."""
    stated = widefield.create("a2", 512, inner=512).cost((1, 512, 128, 128))
    assert stated.multiply_adds == 6 * 512**2 * 128**2
    assert stated.multiply_adds / 1e9 == pytest.approx(25.7, abs=0.1)
    assert stated.parameters == 4 * (512**2 + 512)


def test_options() -> None:
    assert (DoubleAttention(64).inner, DoubleAttention(64).rank) == (16, 16)
    assert DoubleAttention(64, inner=8).rank == 8
    with pytest.raises(ValueError, match="inner and rank must be positive numbers, got inner=0"):
        DoubleAttention(8, inner=0)
