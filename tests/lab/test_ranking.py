# SPDX-License-Identifier: Apache-2.0
"""Orders worked out by hand: exact scores, clear gaps, gaps inside the interval, single seeds."""

import pytest

from widefield.lab.ranking import PUBLISHED_PSNR, compare_scores, ranking
from widefield.models.spectral import list_networks


def row(method: str, *values: float, trains: bool = True) -> dict:
    return {
        "method": method,
        "trains": trains,
        "psnr": {"mean": sum(values) / len(values), "values": list(values)},
    }


def test_two_exact_scores_differ_exactly():
    found = compare_scores({0: 33.0}, {0: 15.5}, exact=True)
    assert (found.mean, found.half_width) == (17.5, 0.0)


def test_an_exact_score_is_held_against_every_seed():
    found = compare_scores({0: 30.0, 1: 31.0, 2: 32.0}, {0: 30.0}, exact=False)
    assert found.mean == pytest.approx(1.0)
    assert found.half_width == pytest.approx(4.302652729911275 / 3**0.5)  # t(0.975, 2), deviation 1


def test_the_published_order():
    rows = [row("mst-s", 34.0, 34.1), row("gap-tv", 24.0, trains=False), row("dauhst-2stg", 36.0, 36.1)]
    said = ranking(rows)
    assert "order here: dauhst-2stg > mst-s > gap-tv" in said
    assert said.endswith("the published order appears here")


def test_a_reversed_order_and_one_inside_the_interval():
    rows = [
        row("gap-tv", 33.0, trains=False),
        row("mst-s", 19.0, 20.0, 19.5),
        row("dauhst-2stg", 19.9, 19.2, 19.6),
        row("first-estimate", 15.0, trains=False),
    ]
    said = ranking(rows)
    assert "gap-tv > dauhst-2stg = mst-s > first-estimate" in said
    assert "published (KAIST): dauhst-2stg > mst-s > gap-tv" in said
    assert "0 of 3 pairs stand as published" in said
    assert "reversed: dauhst-2stg over gap-tv, mst-s over gap-tv" in said
    assert "no difference: dauhst-2stg over mst-s" in said


def test_one_seed_cannot_tell_and_one_method_has_no_order():
    assert "mst-s ? gap-net" in ranking([row("gap-net", 20.0), row("mst-s", 21.0)])
    assert ranking([row("gap-net", 20.0)]) == ""


def test_every_published_size_has_its_figure():
    assert set(list_networks()) <= set(PUBLISHED_PSNR)
