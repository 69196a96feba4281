# SPDX-License-Identifier: Apache-2.0
"""Learning curves and singular spectra as plotly figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import units
from .evidence import Evidence
from .plot import Figure, axis, round_places, safe
from .rows import Row

_POINTS = 60
_SPECTRUM_POINTS = 160
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def curve_figures(rows: Sequence[Row], shown: set[int]) -> dict[str, Figure]:
    """Loss and validation mIoU over the steps: a faint line a seed, a strong one for their mean."""
    kinds = {
        "loss": ("steps", "loss", "log"),
        "miou": ("eval_steps", "eval_miou", "linear"),
    }
    figures = {}
    for key, (steps_key, values_key, scale) in kinds.items():
        traces = []
        for row in rows:
            curves = [_curve(curve, steps_key, values_key) for curve in row.source.get("curves") or []]
            curves = [curve for curve in curves if len(curve[0])]
            if scale == "log":
                curves = [(x[y > 0], y[y > 0]) for x, y in curves if (y > 0).any()]
            dash = _DASHES[sum(other.family == row.family for other in rows[: row.index]) % len(_DASHES)]
            traces += _curve_traces(row, curves, row.index in shown, dash)
        if traces:
            layout = {"xaxis": axis("step"), "yaxis": _values_axis(traces, scale), "hovermode": "closest"}
            figures[key] = {"data": traces, "layout": layout}
    return figures


def _values_axis(traces: Sequence[dict[str, Any]], scale: str) -> dict[str, Any]:
    values = [value for trace in traces for value in trace["y"]]
    if scale == "linear" or max(values) < 2 * min(values):
        pad = max(0.06 * (max(values) - min(values)), 0.01)
        return axis("", range=[min(values) - pad, max(values) + pad])
    places = round_places(min(values), max(values))
    return axis("", type="log", tickvals=places, ticktext=[f"{place:g}" for place in places])


def _curve(curve: Mapping[str, Any], steps_key: str, values_key: str) -> tuple[np.ndarray, np.ndarray]:
    """The points that are numbers, averaged down to so many as a screen can show."""
    pairs = zip(curve.get(steps_key) or [], curve.get(values_key) or [], strict=False)
    points = [(x, y) for x, y in ((units.finite(a), units.finite(b)) for a, b in pairs) if None not in (x, y)]
    if not points:
        return np.empty(0), np.empty(0)
    both = np.asarray(points, dtype=np.float64)
    parts = np.array_split(both, min(len(both), _POINTS))
    mean = np.stack([part.mean(0) for part in parts])
    return mean[:, 0], mean[:, 1]


def _curve_traces(
    row: Row, curves: Sequence[tuple[np.ndarray, np.ndarray]], visible: bool, dash: str
) -> list[dict[str, Any]]:
    if not curves:
        return []
    # The mean is drawn where every seed has been; a run that stopped early must not bend it.
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = next(x for x, _ in curves if x[-1] == end)
    grid = grid[grid >= start]
    mean = np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)
    faint = [_line(row, x, y, {"color": row.colour, "width": 1}, visible, opacity=0.28) for x, y in curves]
    strong = _line(row, grid, mean, {"color": row.colour, "width": 2.2, "dash": dash}, visible, labelled=True)
    strong["hovertemplate"] = f"<b>{safe(row.short)}</b><br>step %{{x:.0f}}: %{{y:.3f}}<extra></extra>"
    return [*(faint if len(curves) > 1 else []), strong]


def _line(
    row: Row, x: np.ndarray, y: np.ndarray, line: dict[str, Any], visible: bool, *,
    labelled: bool = False, opacity: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    meta: dict[str, Any] = {"module": row.index}
    if labelled:
        meta["label"] = safe(row.short)
    trace: dict[str, Any] = {
        # A line through one point would be invisible.
        "type": "scatter", "mode": "lines" if len(x) > 1 else "markers", "name": safe(row.short),
        "visible": visible, "line": line, "meta": meta,
        "x": [float(f"{value:.6g}") for value in x], "y": [float(f"{value:.5g}") for value in y],
    }  # fmt: skip
    if not labelled:
        trace |= {"opacity": opacity, "hoverinfo": "skip"}
    return trace


def spectrum_figures(rows: Sequence[Row], evidence: Mapping[int, Evidence], shown: set[int]) -> dict[str, Figure]:
    """Cumulative energy of the singular values, and the effective rank, before and after each module."""
    traces, ranks = [], []
    for row in rows:
        found = evidence.get(row.index)
        if found is None:
            continue
        for side, curve in (("before", found.before), ("after", found.after)):
            if curve is None:
                continue
            keep = np.unique(np.geomspace(1, len(curve), min(len(curve), _SPECTRUM_POINTS)).astype(int))
            after = side == "after"
            line = {"color": row.colour, "width": 2.2 if after else 1.4, "dash": "solid" if after else "dot"}
            trace = _line(row, keep, curve[keep - 1], line, row.index in shown, labelled=after)
            trace.pop("hoverinfo", None)
            # All curves end at 1, so the names stand where they begin.
            trace["meta"]["at"] = "start"
            trace["hovertemplate"] = (
                f"<b>{safe(row.short)}</b>, {side}<br>first %{{x}} hold %{{y:.1%}} of the energy<extra></extra>"
            )
            traces.append(trace)
        if found.rank_before is not None and found.rank_after is not None:
            ranks.append((row, found.rank_before, found.rank_after))
    figures = {}
    if traces:
        places = round_places(1, max(trace["x"][-1] for trace in traces))
        x = axis(
            "number of singular values", type="log", tickvals=places, ticktext=[f"{place:g}" for place in places]
        )
        y = axis("", tickformat=".0%", range=[0, 1.03], side="right")
        figures["energy"] = {"data": traces, "layout": {"xaxis": x, "yaxis": y, "hovermode": "closest"}}
    if ranks:
        figures["rank"] = _rank_figure(ranks)
    return figures


def _rank_figure(ranks: Sequence[tuple[Row, float, float]]) -> Figure:
    """A line a module from its effective rank before (ring) to after (dot)."""
    traces = []
    for place, (row, before, after) in enumerate(ranks):
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": safe(row.short),
            "x": [before, after], "y": [place, place],
            "line": {"color": row.colour, "width": 2},
            "marker": {
                "color": ["--surface", row.colour], "size": [9, 11], "opacity": 1,
                "line": {"color": row.colour, "width": 2},
            },
            "hovertemplate": f"<b>{safe(row.short)}</b><br>{before:.1f} before, {after:.1f} after<extra></extra>",
        })  # fmt: skip
    y = axis(
        "", tickvals=list(range(len(ranks))), ticktext=[safe(row.short) for row, _, _ in ranks],
        range=[len(ranks) - 0.4, -0.6], showgrid=False, zeroline=False,
    )  # fmt: skip
    layout = {
        "xaxis": axis("effective rank", rangemode="tozero"), "yaxis": y, "hovermode": "closest",
        "height": 110 + 24 * len(ranks),
    }  # fmt: skip
    return {"data": traces, "layout": layout}
