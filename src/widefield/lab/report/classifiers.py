# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison of classifiers: the table, the accuracy of each class, accuracy over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widefield.core.files import write_text

from . import units
from .colours import oklch_to_hex
from .page import _digest, _environment, _plain, _source, embedded_json
from .plot import Figure, axis, library, safe


def write_classifiers_report(summary: Mapping[str, Any], out: Path) -> Path:
    """Writes `out / "report.html"`, whole or not at all.

    Args:
        summary: as `widefield.lab.classification.compare_classifiers` returns it.
        out: its folder.

    Returns:
        The path of the page.
    """
    finished = [row for row in summary["rows"] if row["status"] == "finished"]
    hues = [360 * (i * 0.38 % 1) + 40 for i in range(len(summary["rows"]))]
    figures = {"accuracy": _curves(summary["rows"])} if finished else {}
    classes = [
        (name, [units.share(row["per_class"][name]) for row in finished]) for name in summary["data"]["classes"]
    ]
    plotly, script = library(), _source("script.js")
    path = Path(out) / "report.html"
    write_text(path, _environment().get_template("classifiers.html.j2").render(
        title=f"Classification of {summary['data']['name']}", summary=summary,
        rows=[_line(row) for row in summary["rows"]], finished=[row["model"] for row in finished], classes=classes,
        figures=figures, figures_json=embedded_json(figures),
        colours=[(oklch_to_hex(0.52, 0.14, hue), oklch_to_hex(0.76, 0.12, hue)) for hue in hues],
        setting=[(name.replace("_", " "), _plain(value)) for name, value in summary["setting"].items()],
        style=_source("style.css"), plotly=plotly, script=script,
        policy=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
    ))  # fmt: skip
    return path


def _line(row: Mapping[str, Any]) -> dict[str, str]:
    if row["status"] != "finished":
        return {"model": row["model"], "failed": row.get("error", "failed")}
    difference = row.get("difference")
    return {
        "model": row["model"], "failed": "", "accuracy": _interval(row["accuracy"]),
        "difference": f"{_interval(difference, sign=True)} {difference['verdict']}" if difference else "baseline",
        "verdict": difference["verdict"].replace(" ", "-") if difference else "",
        "balanced": _interval(row["balanced"]), "parameters": units.count(row["parameters"]),
        "multiply_adds": units.count(row["multiply_adds"]), "seconds": units.duration(row["seconds"]),
    }  # fmt: skip


def _interval(found: Mapping[str, Any], *, sign: bool = False) -> str:
    half = found.get("half_width")
    return units.share(found["mean"], sign=sign) + (f" ± {units.share(half)}" if half is not None else "")


def _curves(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A line a seed."""
    traces = [
        {
            "type": "scatter", "mode": "lines+markers", "x": curve["steps"], "y": curve["accuracy"],
            "name": safe(row["model"]), "line": {"color": f"--m{index}", "width": 1.6}, "marker": {"size": 5},
            "hovertemplate": f"<b>{safe(row['model'])}</b><br>step %{{x}}: %{{y:.3f}}<extra></extra>",
        }
        for index, row in enumerate(rows)
        for curve in row.get("curves") or []
    ]  # fmt: skip
    return {"data": traces, "layout": {"xaxis": axis("step"), "yaxis": axis(""), "hovermode": "closest"}}
