# SPDX-License-Identifier: Apache-2.0
"""Quality against cost as plotly figures, with the Pareto front."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from . import units
from .plot import PADDING, Figure, axis, round_places, safe
from .rows import COSTS, Cost, Row

# In decades: a cost of zero stands this far left of the smallest.
_ZERO_GAP = 0.6


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, quality) that no other beats: none is at least as good for as little.

    Sorted by cost. Of equal points, all are on the front.
    """

    def beaten(i: int) -> bool:
        cost, quality = points[i]
        return any(c <= cost and q >= quality and (c < cost or q > quality) for c, q in points)

    return sorted((i for i in range(len(points)) if not beaten(i)), key=lambda i: points[i])


def cost_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Quality against each kind of cost that was measured for two rows or more."""
    figures = {}
    for cost in COSTS:
        points = [(row, value) for row in rows if row.finished and (value := row.costs[cost.key]) is not None]
        if len(points) > 1:
            figures[cost.key] = _cost_figure(points, cost)
    return figures


def _cost_figure(points: Sequence[tuple[Row, float]], cost: Cost) -> Figure:
    positive = [value for _, value in points if value > 0]
    # Plotly's logarithmic axis has no place for zero, which is what the baseline costs.
    zero = math.log10(min(positive, default=1.0)) - _ZERO_GAP
    places = {row.index: math.log10(value) if value > 0 else zero for row, value in points}
    qualities = [(value, row.mean or 0.0) for row, value in points]
    front = [points[i][0] for i in pareto_front(qualities)]
    on_front = {row.index for row in front}
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "hoverinfo": "skip", "name": "Pareto front",
            "x": [places[row.index] for row in front], "y": [row.mean for row in front],
            "line": {"color": "--muted", "width": 1.5, "dash": "dot", "shape": "hv"},
        }
    ]  # fmt: skip
    for row, _ in points:
        front_mark = row.index in on_front
        trace: dict[str, Any] = {
            "type": "scatter", "mode": "markers", "name": safe(row.short),
            "x": [places[row.index]], "y": [row.mean],
            "meta": {"label": safe(row.short), "front": front_mark},
            "marker": {
                "color": row.colour if front_mark else "--surface", "size": 12 if front_mark else 10,
                "line": {"color": row.colour, "width": 2},
            },
            "hovertemplate": f"<b>{safe(row.short)}</b><br>mIoU {with_interval(row.mean, row.half_width)}<br>"
            f"{cost.name}: {row.cost_text(cost)}<extra></extra>",
        }  # fmt: skip
        if row.half_width is not None:
            trace["error_y"] = {
                "type": "data", "array": [row.half_width], "color": row.colour, "thickness": 1.3, "width": 4
            }  # fmt: skip
        traces.append(trace)
    ticks, texts = _ticks(positive, cost)
    if min(value for _, value in points) <= 0:
        ticks, texts = [zero, *ticks], ["0", *texts]
    layout = {
        "xaxis": axis(
            cost.meaning,
            tickvals=ticks,
            ticktext=texts,
            tickangle=0,
            zeroline=False,
            range=_padded(list(places.values()), PADDING),
        ),
        "yaxis": axis("mIoU, validation", range=_quality_range([row for row, _ in points])),
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def with_interval(mean: float | None, half_width: float | None) -> str:
    """`0.762 ± 0.011`, without the interval where there is none."""
    text = units.share(mean)
    return text if half_width is None or mean is None else f"{text} ± {units.share(half_width)}"


def _ticks(values: Sequence[float], cost: Cost) -> tuple[list[float], list[str]]:
    """Round places of a logarithmic axis: powers of two for bytes, else of ten with what lies between."""
    if not values:
        return [], []
    low, high = min(values), max(values)
    if cost.text is units.memory:
        first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
        places = [2.0**power for power in range(first, last + 1, max(1, round((last - first) / 6)))]
    else:
        places = round_places(low, high)
    return [math.log10(place) for place in places], [re.sub(r"\.0+\b", "", cost.text(place)) for place in places]


def _padded(values: Sequence[float], share: float) -> list[float]:
    low, high = min(values), max(values)
    pad = share * (high - low) or 0.5
    return [low - pad, high + pad]


def _quality_range(rows: Sequence[Row]) -> list[float]:
    """Wide enough for every interval, as far as a quality can go."""
    low = min((row.mean or 0.0) - (row.half_width or 0.0) for row in rows)
    high = max((row.mean or 0.0) + (row.half_width or 0.0) for row in rows)
    low, high = max(low, 0.0), min(high, 1.0)
    pad = max(0.08 * (high - low), 0.01)
    return [max(low - pad, -0.01), min(high + pad, 1.01)]
