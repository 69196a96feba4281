# SPDX-License-Identifier: Apache-2.0
"""Intervals against scipy, verdicts by hand."""

import pytest
from scipy import stats

from widefield.lab.statistics import Estimate, estimate, verdict


def test_the_interval_is_students():
    values = [0.71, 0.74, 0.69, 0.75]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 3, loc=found.mean, scale=stats.sem(values))
    assert found.mean - found.half_width == pytest.approx(low)
    assert found.mean + found.half_width == pytest.approx(high)


def test_one_seed_has_no_interval():
    assert estimate([0.5]) == Estimate(0.5, None, 1)
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


@pytest.mark.parametrize(
    ("mean", "half", "said"),
    [
        (0.2, 0.1, "better"),
        (-0.2, 0.1, "worse"),
        (0.1, 0.1, "no difference"),
        (0.0, 0.0, "no difference"),
        (0.3, None, "cannot tell"),
    ],
)
def test_verdicts(mean, half, said):
    assert verdict(Estimate(mean, half, 2)) == said
