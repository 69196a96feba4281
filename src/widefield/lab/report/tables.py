# SPDX-License-Identifier: Apache-2.0
"""What the tables of the page show: the main one, classes, gradient policies; as values ready to print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import units
from .cost_figures import with_interval
from .rows import COSTS, VERDICTS, Row, clear_best

_SIGNS = {"better": "▲", "worse": "▼", "no difference": "=", "cannot tell": "?"}
# A class that differs by less than this never takes the full colour, however small all differences are.
_FULL_COLOUR = 0.1


@dataclass(frozen=True)
class Cell:
    """A figure as printed, and the number it is sorted by (None: last)."""

    text: str
    sort: float | None
    best: bool = False


@dataclass(frozen=True)
class Whisker:
    """A mean with its interval and its seeds, as places in percent of a scale that all rows share."""

    mean: float
    low: float | None
    high: float | None
    seeds: tuple[float, ...]


@dataclass(frozen=True)
class Scale:
    """The part of 0 .. 1 that the whiskers span."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Percent of the scale; what lies outside is put on its end."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def whisker(self, mean: float | None, half_width: float | None, values: Sequence[float]) -> Whisker | None:
        """None without a mean."""
        if mean is None:
            return None
        spread = half_width is not None
        return Whisker(
            self.place(mean),
            self.place(mean - half_width) if spread else None,
            self.place(mean + half_width) if spread else None,
            tuple(self.place(value) for value in values),
        )


def scale_of(spans: Sequence[tuple[float | None, float | None, Sequence[float]]]) -> Scale:
    """A scale that holds every mean, seed and interval, as far as a quality can go; round ends."""
    every = [0.5]
    known = [(mean, half or 0.0, values) for mean, half, values in spans if mean is not None]
    if known:
        every = [end for mean, half, values in known for end in (mean - half, mean + half, *values)]
    low, high = max(min(every), 0.0), min(max(every), 1.0)
    low, high = int(low * 20) / 20, -int(-high * 20 // 1) / 20
    return Scale(low, high if high > low else low + 0.05)


def main_table(rows: Sequence[Row], baseline: str) -> dict[str, Any]:
    """Rows of figures, the scale of the whiskers, and how many verdicts of each kind there are."""
    scale = scale_of([(row.mean, row.half_width, row.values) for row in rows])
    best = clear_best(rows, lambda row: (row.mean, row.half_width))
    best_accuracy = clear_best(rows, lambda row: (row.accuracy, row.accuracy_half_width))
    reference = next((row for row in rows if row.module == baseline and row.mean is not None), None)
    lines = [_line(row, scale, row.index == best, row.index == best_accuracy, row is reference) for row in rows]
    given = Counter(row.difference.verdict for row in rows if row.finished and row.difference is not None)
    tally = [(verdict, _SIGNS[verdict], given[verdict]) for verdict in VERDICTS if given[verdict]]
    return {
        "lines": lines,
        "costs": COSTS,
        "low": f"{scale.low:.2f}",
        "high": f"{scale.high:.2f}",
        "reference": scale.place(reference.mean) if reference and reference.mean is not None else None,
        "tally": tally,
        "failed": sum(row.status == "failed" for row in rows),
        "unfinished": sum(row.status == "unfinished" for row in rows),
        "has_best": best is not None,
        "one_seed": any(row.finished for row in rows)
        and all(row.half_width is None for row in rows if row.finished),
    }


def _line(row: Row, scale: Scale, best: bool, best_accuracy: bool, is_reference: bool) -> dict[str, Any]:
    ranked = row.status == "finished"
    difference = None
    if row.difference is not None:
        mean, half = row.difference.mean, row.difference.half_width
        text = units.share(mean, sign=True)
        verdict = row.difference.verdict
        difference = {
            "cell": Cell(text if half is None else f"{text} ± {units.share(half)}", mean),
            "verdict": verdict,
            "sign": _SIGNS.get(verdict, ""),
            "kind": verdict.replace(" ", "-") if verdict in _SIGNS else "cannot-tell",
        }
    seconds = units.finite(row.source.get("seconds"))
    return {
        "row": row,
        "reference": is_reference,
        "quality": Cell(with_interval(row.mean, row.half_width), row.mean if ranked else None, best),
        "whisker": scale.whisker(row.mean, row.half_width, row.values),
        "seeds": ", ".join(units.share(value) for value in row.values),
        "accuracy": Cell(
            with_interval(row.accuracy, row.accuracy_half_width), row.accuracy if ranked else None, best_accuracy
        ),
        "difference": difference,
        "costs": [Cell(row.cost_text(cost), row.costs[cost.key]) for cost in COSTS],
        "seconds": Cell(units.duration(seconds), seconds),
        "error": str(row.source.get("error") or "no reason was recorded") if row.status != "finished" else None,
        "total": units.count(units.finite(row.source.get("parameters_total"))),
    }


def class_table(rows: Sequence[Row], classes: Sequence[str], baseline: str) -> dict[str, Any] | None:
    """IoU of every class, coloured by the difference to the baseline; None for two classes or fewer.

    Without a baseline, the mean of the modules stands in for it.
    """
    shown = [row for row in rows if isinstance(row.source.get("per_class"), dict) and row.status != "failed"]
    if len(classes) <= 2 or not shown:
        return None
    scores = {row.index: [units.finite(row.source["per_class"].get(name)) for name in classes] for row in shown}
    reference = next((row for row in shown if row.module == baseline), None)
    if reference is not None:
        level = scores[reference.index]
    else:
        columns = [[v for v in column if v is not None] for column in zip(*scores.values(), strict=True)]
        level = [sum(column) / len(column) if column else None for column in columns]
    changes = {
        index: [a - b if a is not None and b is not None else 0.0 for a, b in zip(values, level, strict=True)]
        for index, values in scores.items()
    }
    largest = max(abs(change) for values in changes.values() for change in values)
    full = max(_FULL_COLOUR, -(-largest * 20 // 1) / 20)
    lines = []
    for row in shown:
        cells = []
        for score, change in zip(scores[row.index], changes[row.index], strict=True):
            tint = round(100 * min(abs(change) / full, 1.0))
            cells.append({"text": units.share(score)[:4] if score is not None else units.DASH,
                          "title": units.share(change, sign=True) if score is not None else "",
                          "tint": tint, "gain": change >= 0})  # fmt: skip
        lines.append({"row": row, "cells": cells, "reference": row is reference})
    return {"classes": list(classes), "lines": lines, "full": f"{full:.2f}",
            "against": reference.label if reference else "the mean of all"}  # fmt: skip


def gradient_table(given: Sequence[dict[str, Any]] | None) -> dict[str, Any] | None:
    """Quality and agreement of the gradient policies of each module; None if none were compared."""
    policies = [row for row in given or [] if isinstance(row, dict)]
    if not policies:
        return None
    read = [
        (
            units.finite(row.get("mean")),
            units.finite(row.get("half_width")),
            [value for v in row.get("values") or [] if (value := units.finite(v)) is not None],
        )
        for row in policies
    ]
    scale = scale_of(read)
    lines = []
    for row, (mean, half, values) in zip(policies, read, strict=True):
        cosine, ratio = units.finite(row.get("cosine")), units.finite(row.get("norm_ratio"))
        lines.append({
            "module": str(row.get("module", "")), "policy": str(row.get("policy", "")),
            "quality": Cell(with_interval(mean, half), mean),
            "whisker": scale.whisker(mean, half, values),
            "cosine": Cell(units.share(cosine), cosine), "ratio": Cell(units.share(ratio), ratio),
        })  # fmt: skip
    return {"lines": lines, "low": f"{scale.low:.2f}", "high": f"{scale.high:.2f}"}
