# SPDX-License-Identifier: Apache-2.0
"""The local relation layer against loops over positions, windows and groups."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

import widefield
from widefield.attention import LocalRelation
from widefield.measure import count

PHI = {
    "squared": lambda a, b: -((a - b) ** 2),
    "absolute": lambda a, b: -abs(a - b),
    "product": lambda a, b: a * b,
}


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(m: Any, x: Tensor) -> np.ndarray:
    a = x.numpy()
    q, k = (part(x).detach().numpy() for part in (m.query, m.key))
    first, second = (m.prior[i] for i in (0, 2))
    radius, space, each = m.kernel // 2, a.shape[2:], a.shape[1] // m.groups
    y = np.zeros_like(a)
    for b, g, p in itertools.product(range(len(a)), range(m.groups), np.ndindex(*space)):
        logits, values = [], []
        for offset in itertools.product(range(-radius, radius + 1), repeat=len(space)):
            there = tuple(i + o for i, o in zip(p, offset, strict=True))
            if not all(0 <= i < size for i, size in zip(there, space, strict=True)):
                continue
            where = np.array(offset) / max(1, radius)
            hidden = np.maximum(first.weight.detach().numpy() @ where + first.bias.detach().numpy(), 0)
            prior = (second.weight.detach().numpy() @ hidden + second.bias.detach().numpy())[g]
            logits.append(PHI[m.similarity](q[(b, g, *p)], k[(b, g, *there)]) + prior)
            values.append(a[(b, slice(g * each, (g + 1) * each), *there)])
        y[(b, slice(g * each, (g + 1) * each), *p)] = softmax(logits) @ np.array(values)
    return y


@pytest.mark.parametrize("similarity", PHI)
@pytest.mark.parametrize(("space", "kernel"), [((4, 5), 3), ((2, 6), 7), ((5,), 3), ((2, 3, 2), 3), ((3, 3), 1)])
def test_by_loops(space: tuple[int, ...], kernel: int, similarity: str) -> None:
    torch.manual_seed(0)
    module = LocalRelation(6, kernel=kernel, group=3, similarity=similarity, dims=len(space)).double()
    x = draw(2, 6, *space)
    expected = by_loops(module, x)
    np.testing.assert_allclose(module.context(x).detach().numpy(), expected, atol=1e-12)
    torch.testing.assert_close(module(x), module.out(torch.from_numpy(expected)))


def test_weights_sum_to_one_on_the_map_alone() -> None:
    module, x = LocalRelation(16).double(), draw(1, 16, 4, 9)
    weights = module.weights(x.flatten(2), (4, 9))
    torch.testing.assert_close(weights.sum(2), torch.ones_like(weights[:, :, 0]))
    assert (weights[:, :, 0, 0, 0] == 0).all()  # three rows above the first


def test_it_is_not_a_convolution_of_a_fixed_kernel() -> None:
    module = LocalRelation(8, kernel=3).double()
    maps = [draw(1, 8, 5, 5, seed=seed).flatten(2) for seed in range(2)]
    assert not torch.allclose(*(module.weights(x, (5, 5)) for x in maps))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kernel": 4}, "LocalRelation: kernel must be an odd positive integer, got 4"),
        ({"group": 5}, "LocalRelation: group must divide the 16 channels, got 5"),
        ({"dims": 4}, "LocalRelation: dims must be"),
        ({"similarity": "cosine"}, "absolute, product, squared"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LocalRelation(16, **options)


@pytest.mark.parametrize(
    ("options", "space"),
    [
        ({"kernel": 3, "group": 4}, (5, 6)),
        ({"dims": 1}, (9,)),
        ({"dims": 3, "kernel": 3}, (3, 2, 4)),
    ],
)
def test_cost_with_options_is_what_is_counted(options: dict[str, Any], space: tuple[int, ...]) -> None:
    module, shape = widefield.create("local-relation", 8, **options), (2, 8, *space)
    assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds
