# SPDX-License-Identifier: Apache-2.0
"""The search for the largest size, on answers that are known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from widefield.measure.capacity import Gallop, StepByStep
from widefield.measure.capacity.search import half, isotonic


def probes(search, fits):
    """Everything a search asks for, `fits(size, attempt)` answering."""
    asked = []
    while (found := search.next()) is not None:
        assert len(asked) < 10_000
        asked.append(found)
        search.tell(found[0], fits(*found))
    return asked


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 3000), st.integers(1, 3000), st.integers(1, 50), st.floats(1.1, 4), st.integers(0, 3))
def test_an_exact_search_finds_a_threshold_exactly(answer, ceiling, start, growth, repeats):
    search = Gallop(start=start, growth=growth, tolerance=0, repeats=repeats).fresh(ceiling)
    asked = probes(search, lambda size, attempt: size <= answer)
    assert search.fitted == min(answer, ceiling)
    assert max(size for size, _ in asked) <= ceiling
    # The edge is tried again as often as promised, each time as another attempt.
    if answer < ceiling:
        assert [a for size, a in asked if size == answer + 1] == list(range(repeats + 1))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 100_000), st.floats(0.01, 0.5))
def test_within_the_tolerance_in_logarithmically_many_probes(answer, tolerance):
    search = Gallop(start=8, tolerance=tolerance, repeats=0).fresh(1_000_000)
    asked = probes(search, lambda size, attempt: size <= answer)
    assert search.fitted <= answer
    assert answer < search.fitted + max(1, math.floor(tolerance * search.fitted)) + 1e-9
    assert len(asked) <= 2 * math.log2(answer + 8) + math.log2(1 / tolerance) + 6


def test_one_unlucky_failure_at_the_edge_does_not_end_the_search():
    unlucky = {(100, 0)}
    answer = 340

    def fits(size, attempt):
        return size <= answer and (size, attempt) not in unlucky

    once = Gallop(start=100, tolerance=0.05, repeats=0).fresh(1000)
    probes(once, fits)
    assert once.fitted < 100
    again = Gallop(start=100, tolerance=0.05, repeats=1).fresh(1000)
    probes(again, fits)
    assert 0.95 * answer <= again.fitted <= answer


def test_everything_fits():
    search = Gallop(start=8).fresh(30)
    assert [size for size, _ in probes(search, lambda size, attempt: True)] == [8, 16, 30]
    assert search.fitted == 30


def test_step_by_step_ends_at_the_first_failure():
    search = StepByStep(start=2, step=3).fresh(100)
    assert [size for size, _ in probes(search, lambda size, attempt: size <= 9 or size > 20)] == [2, 5, 8, 11]
    assert search.fitted == 8


def test_step_by_step_may_try_what_failed_again():
    search = StepByStep(start=2, step=3, repeats=1).fresh(100)
    asked = probes(search, lambda size, attempt: size <= 9 and (size, attempt) != (5, 0))
    assert asked == [(2, 0), (5, 0), (5, 1), (8, 0), (11, 0), (11, 1)]


def test_step_by_step_by_a_ratio():
    search = StepByStep(start=4, ratio=1.5).fresh(20)
    assert [size for size, _ in probes(search, lambda size, attempt: True)] == [4, 6, 9, 13, 19, 20]


@pytest.mark.parametrize("options", [{"start": 0}, {"growth": 1.0}, {"tolerance": 1.0}, {"tolerance": -0.1},
                                     {"repeats": -1}])  # fmt: skip
def test_gallop_refuses(options):
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        Gallop(**options)


@pytest.mark.parametrize("options", [{"start": 0}, {"step": 0}, {"ratio": 0.9}])
def test_step_by_step_refuses(options):
    with pytest.raises(ValueError, match="at least 1"):
        StepByStep(**options)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 5)), min_size=1, max_size=20))
def test_isotonic_as_scikit_learn(pairs):
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    expected = IsotonicRegression(increasing=False).fit_transform(
        range(len(values)), values, sample_weight=weights
    )
    np.testing.assert_allclose(isotonic(values, weights), expected, atol=1e-9)


def test_half_of_a_curve():
    assert half([10, 20, 40], [1.0, 0.5, 0.0]) == 20
    assert half([10, 40], [1.0, 0.0]) == pytest.approx(20)  # half way on a logarithmic scale
    assert half([10, 20], [1.0, 0.75]) == 20
    assert half([10, 20], [0.25, 0.0]) == 0
    # 0.4 and 0.8 are pooled to 0.6; from there to 0 a sixth of the way to one half.
    assert half([10, 20, 40], [0.4, 0.8, 0.0]) == pytest.approx(20 * 2 ** (1 / 6))
