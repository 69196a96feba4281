# SPDX-License-Identifier: Apache-2.0
"""What capacities of one run say about the findings of Shwartz-Ziv et al., arXiv:2406.11463.

Ratios are paired over seeds, their interval is Student's on the logarithm. "cannot tell" if the interval spans the
bound, if there is one seed, or if a value that is only known to be "at least" stands on the wrong side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from widefield.core.extras import require
from widefield.lab.statistics import Estimate, estimate

_Row = Mapping[str, Any]
SLOPES = (0.6, 1.2)


def ratio(a: _Row, b: _Row) -> Estimate | None:
    """Mean and interval of `log(a / b)` over seeds; None where a seed fitted nothing."""
    pairs = list(zip(a["capacity"]["values"], b["capacity"]["values"], strict=True))
    if any(min(pair) == 0 for pair in pairs):
        return None
    return estimate([math.log(x / y) for x, y in pairs])


def above(
    found: Estimate | None, bound: float, *, top_censored: bool = False, bottom_censored: bool = False
) -> str:
    """Whether a ratio exceeds a bound: "holds", "does not hold", "cannot tell"."""
    if found is None or found.half_width is None:
        return "cannot tell"
    low, high = found.mean - found.half_width, found.mean + found.half_width
    # "At least" above makes the ratio larger still, "at least" below makes it smaller.
    if low > math.log(bound) and not bottom_censored:
        return "holds"
    if high < math.log(bound) and not top_censored:
        return "does not hold"
    return "cannot tell"


def inequalities(rows: Sequence[_Row]) -> list[dict[str, Any]]:
    """Every finding that the rows of a run have something to say about."""
    done = [row for row in rows if row["status"] == "finished"]
    by_key = {(row["model"], row["optimizer"], row["variant"]): row for row in done}
    found = []
    for model, optimizer in dict.fromkeys((row["model"], row["optimizer"]) for row in done):
        mine = {variant: row for (m, o, variant), row in by_key.items() if (m, o) == (model, optimizer)}
        label = f"{model} {optimizer}"
        if "semantic" in mine and "random" in mine:
            found.append(_ratio(f"{label}: true labels fit more than twice as many as random ones",
                                mine["semantic"], mine["random"], 2))  # fmt: skip
        if "random" in mine:
            found.append(_below_parameters(label, mine["random"]))
        if "gaussian" in mine and "random" in mine:
            found.append(_ratio(f"{label}: Gaussian inputs fit no fewer than real ones with random labels",
                                mine["gaussian"], mine["random"], 1, or_equal=True))  # fmt: skip
        if "permuted" in mine and "semantic" in mine:
            found.append(_ratio(f"{label}: permuted pixels fit fewer", mine["semantic"], mine["permuted"], 1))
    found += _slopes(done)
    found += _optimizers(by_key)
    gain = _gain_against_gap(by_key)
    return [*found, gain] if gain else found


def _ratio(statement: str, a: _Row, b: _Row, bound: float, *, or_equal: bool = False) -> dict[str, Any]:
    difference = ratio(a, b)
    tops, bottoms = a["capacity"]["censored"], b["capacity"]["censored"]
    verdict = above(difference, bound, top_censored=tops, bottom_censored=bottoms)
    if or_equal and verdict == "cannot tell" and difference and difference.half_width is not None:
        # An interval that holds equality contradicts nothing; what it does not exclude is said.
        verdict = "not contradicted"
    return {"statement": statement, "verdict": verdict, **_figures(difference)}


def _figures(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {"ratio": None, "interval": None}
    half = found.half_width
    span = None if half is None else [math.exp(found.mean - half), math.exp(found.mean + half)]
    return {"ratio": math.exp(found.mean), "interval": span}


def _below_parameters(label: str, row: _Row) -> dict[str, Any]:
    values = row["capacity"]["values"]
    found = None if min(values) == 0 else estimate([math.log(row["parameters"] / v) for v in values])
    verdict = above(found, 1, bottom_censored=row["capacity"]["censored"])
    shown = None if found is None else Estimate(-found.mean, found.half_width, found.count)
    return {"statement": f"{label}: random labels fit fewer samples than parameters", "verdict": verdict,
            **_figures(shown)}  # fmt: skip


def _slopes(done: Sequence[_Row]) -> list[dict[str, Any]]:
    """Of log capacity on log parameters in each family with three sizes or more; one slope a seed."""
    found = []
    groups: dict[tuple[str, str, str], list[_Row]] = {}
    for row in done:
        if not row["capacity"]["censored"] and min(row["capacity"]["values"]) > 0:
            groups.setdefault((row["model"].split("+")[0], row["optimizer"], row["variant"]), []).append(row)
    for (family, optimizer, variant), rows in groups.items():
        if len({row["parameters"] for row in rows}) < 3:
            continue
        x = [math.log(row["parameters"]) for row in rows]
        seeds = range(len(rows[0]["capacity"]["values"]))
        slopes = [_slope(x, [math.log(row["capacity"]["values"][s]) for row in rows]) for s in seeds]
        slope = estimate(slopes)
        low, high = SLOPES
        verdict = "cannot tell"
        if slope.half_width is not None:
            if low <= slope.mean - slope.half_width and slope.mean + slope.half_width <= high:
                verdict = "holds"
            elif slope.mean + slope.half_width < low or slope.mean - slope.half_width > high:
                verdict = "does not hold"
        half = slope.half_width
        found.append({
            "statement": f"{family} {optimizer} {variant}: capacity grows with the parameters to a power of "
            f"{low} to {high}",
            "verdict": verdict, "ratio": slope.mean,
            "interval": None if half is None else [slope.mean - half, slope.mean + half],
        })  # fmt: skip
    return found


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    a, b = sum(x) / len(x), sum(y) / len(y)
    return sum((u - a) * (v - b) for u, v in zip(x, y, strict=True)) / sum((u - a) ** 2 for u in x)


def _optimizers(by_key: Mapping[tuple[str, str, str], _Row]) -> list[dict[str, Any]]:
    """Stochastic against full-batch gradient descent; the sign depends on the budget, which the setting names."""
    found = []
    for (model, optimizer, variant), row in by_key.items():
        whole = by_key.get((model, "gd", variant))
        if optimizer == "sgd" and whole is not None:
            found.append(
                _ratio(f"{model} {variant}: SGD fits more than full-batch gradient descent", row, whole, 1)
            )
    return found


def _gain_against_gap(by_key: Mapping[tuple[str, str, str], _Row]) -> dict[str, Any] | None:
    """Rank correlation of the gain of true over random labels with the generalisation gap, over networks."""
    points = gains(by_key)
    if len(points) < 4:
        return None
    stats = require("scipy.stats", "tasks")
    x, y = [gain for gain, _, _ in points], [gap for _, gap, _ in points]
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    spearman = stats.spearmanr(x, y)
    value, chance = float(spearman.statistic), float(spearman.pvalue)
    verdict = "cannot tell"
    if len(points) >= 12:
        verdict = "holds" if value < -0.5 and chance < 0.05 else "does not hold" if value > -0.5 else "cannot tell"
    return {
        "statement": f"over {len(points)} networks, the larger the gain of true over random labels, the "
        "smaller the generalisation gap (rank correlation below -0.5)",
        "verdict": verdict, "ratio": value, "interval": None, "p": chance,
    }  # fmt: skip


def gains(by_key: Mapping[tuple[str, str, str], _Row]) -> list[tuple[float, float, str]]:
    """(log ratio of true to random labels, generalisation gap, name) of every network with both."""
    points = []
    for (model, optimizer, variant), row in by_key.items():
        other = by_key.get((model, optimizer, "random"))
        if variant != "semantic" or other is None or row.get("gap") is None:
            continue
        difference = ratio(row, other)
        if difference is not None:
            points.append((difference.mean, row["gap"]["mean"], f"{model} {optimizer}"))
    return points
