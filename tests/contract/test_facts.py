# SPDX-License-Identifier: Apache-2.0
"""Every fact of the registry, both ways: one that says too little fails like one that says too much.

`row_sum` is held to in tests/reports/test_fr04.py, `fixed_size` in test_fr12.py, `exportable` in test_fr13.py and
`identity_at_init` in test_fr14.py, over the whole registry like these.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import widefield
from registry import MOVING, NAMES, RANDOM, broken, build, facts, having, moved, own_buffers, randn, warm
from widefield.measure import count

GROWTH = {"1": 0.0, "n": 1.0, "n log n": 1.0, "n^1.5": 1.5, "n^2": 2.0}
ITERATIVE = [name for name in NAMES if facts(name).iterative]


@pytest.mark.parametrize("name", NAMES)
def test_iterative_modules_have_steps_and_a_gradient(name: str) -> None:
    options = widefield.describe(name).options
    assert facts(name).iterative == ("steps" in options and "gradient" in options)


@pytest.mark.parametrize("name", ITERATIVE)
def test_iterative_modules_compute_the_same_whatever_the_gradient(name: str) -> None:
    x = randn(1, 16, 5, 6)
    expected = build(name, 16)(x)
    for gradient in ("unrolled", "neumann", "implicit"):
        torch.testing.assert_close(build(name, 16, gradient=gradient)(x), expected)


def trained(name: str, seed: int, **options: str) -> tuple[nn.Module, Tensor]:
    module = build(name, size=(6, 7), dropout=0.0, **options).train()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return module, module(randn(2, 64, 6, 7))


@pytest.mark.parametrize("name", NAMES)
def test_state(name: str) -> None:
    def moves(**options: str) -> bool:
        return bool(moved(own_buffers(build(name, size=(6, 7), **options)), trained(name, 0, **options)[0]))

    assert (moves() or moves(**MOVING)) == facts(name).has_state


@pytest.mark.parametrize("name", NAMES)
def test_random_start(name: str) -> None:
    def varies(**options: str) -> bool:
        return not torch.equal(trained(name, 0, **options)[1], trained(name, 1, **options)[1])

    assert not varies(), "random without being asked"
    assert varies(**RANDOM) == facts(name).random_start


@pytest.mark.parametrize("name", ITERATIVE)
def test_unrolled_gradients_are_exact(name: str) -> None:
    assert not broken(name, "gradcheck", (2, 3), rank=3, gradient="unrolled", **warm(name))


@pytest.mark.parametrize("name", NAMES)
def test_linear_in_x(name: str) -> None:
    module = build(name, size=(5, 6)).double().eval()

    def linear(scale: float) -> bool:
        x, y = (scale * randn(2, 64, 5, 6, seed=seed, dtype=torch.float64) for seed in range(2))
        with torch.no_grad():
            expected = 2 * module.context(x) - 3 * module.context(y)
            found = module.context(2 * x - 3 * y)
        return torch.allclose(found, expected, rtol=0, atol=1e-10)

    # On small features no softmax is one-hot, on larger ones no neighbourhood is everything: both would be linear.
    assert all(linear(scale) for scale in (0.1, 0.5)) == facts(name).linear_in_x


def rank_of(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix[0], rtol=1e-9))


@pytest.mark.parametrize("name", NAMES)
def test_rank_over_positions(name: str) -> None:
    option, bound = facts(name).max_rank, 3
    x = randn(1, 24, 6, 7, dtype=torch.float64)

    def ranks(**options: int) -> list[int]:
        """Of the context and, where there is one, of the mixing matrix."""
        module = build(name, 24, size=(6, 7), **options).double().eval()
        context = module.context(x).flatten(2)
        try:
            return [rank_of(context), rank_of(module.operator(x))]
        except widefield.NoOperator:
            return [rank_of(context)]

    options = widefield.describe(name).options
    if option is not None:
        assert max(ranks(**{option: bound, "dual": False})) == bound, "one head, one branch"
        if "dual" in options:
            assert max(ranks(**{option: bound})) <= 2 * bound, "one head, two branches"
        if "heads" in options:
            assert max(ranks(**{option: bound, "dual": False, "heads": 2})) <= 2 * bound, "two heads"
        return
    for candidate in {"rank", "inner"} & set(options):
        assert max(ranks(**{candidate: bound})) > bound, f"{candidate} bounds the rank, which is not stated"


@pytest.mark.parametrize("name", NAMES)
def test_complexity(name: str) -> None:
    module = build(name)
    once, twice = (module.cost((1, 64, side, side)).multiply_adds for side in (1024, 2048))
    exponent = math.log(twice / once, 4) if once else 0.0
    assert abs(exponent - GROWTH[facts(name).complexity]) < 0.15


@pytest.mark.parametrize("shape", [(1, 64, 16, 16), (2, 64, 9, 40)])
@pytest.mark.parametrize("name", NAMES)
def test_cost_is_what_a_counter_counts(name: str, shape: tuple[int, ...]) -> None:
    module = build(name, size=shape[2:])
    stated, counted = module.cost(shape), count(module, shape)
    assert not counted.lower_bound
    assert stated.multiply_adds == counted.multiply_adds
    assert stated.parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", having("sub_sample"))
def test_cost_of_sub_sampled_keys(name: str) -> None:
    for shape in ((2, 64, 9, 40), (1, 64, 5, 6, 7), (2, 64, 50)):
        module = build(name, sub_sample=True)
        assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds
