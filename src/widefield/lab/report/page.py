# SPDX-License-Identifier: Apache-2.0
"""The page itself: everything about a comparison in one HTML file that needs no network.

Text is escaped by the template, and a content security policy forbids the page every request and every script
but its own two, so that a class or a file named like markup stays text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from widefield.core.extras import require
from widefield.core.files import write_text

from . import units
from .colours import family_colours, module_colours
from .cost_figures import cost_figures
from .evidence import Evidence, EvidenceError, read_evidence
from .examples import example_views
from .figures import curve_figures, spectrum_figures
from .plot import library
from .rows import COSTS, Row, read_rows, shown_at_first
from .tables import class_table, gradient_table, main_table


def write_report(summary: dict[str, Any], out: Path) -> Path:
    """Writes `out / "report.html"`, whole or not at all.

    What is missing in the summary (a single seed, a failed row, a figure that is None or NaN, no evidence) is
    left out of the page, or said there; an evidence file that cannot be read is named there.

    Args:
        summary: of a comparison, plain data as in table.json.
        out: the folder of the comparison; evidence paths of the summary are relative to it.

    Returns:
        The path of the page.

    Raises:
        TypeError, ValueError: the summary is no dict, or a row of it names no module.
        ImportError: jinja2, plotly or pillow is missing; named with the install command.
    """
    path = Path(out) / "report.html"
    write_text(path, render(summary, Path(out)))
    return path


def render(summary: dict[str, Any], folder: Path) -> str:
    """The page as text; see `write_report`."""
    rows = read_rows(summary)
    baseline = str(summary.get("baseline") or "none")
    data, setting = summary.get("data") or {}, summary.get("setting") or {}
    evidence, problems = _read_all(rows, folder)
    palette = [[int(channel) for channel in colour] for colour in data.get("palette") or []]
    classes = [str(name) for name in data.get("classes") or []]
    shown = shown_at_first(rows, baseline)
    figures = {f"cost-{key}": figure for key, figure in cost_figures(rows).items()}
    figures |= curve_figures(rows, shown) | spectrum_figures(rows, evidence, shown)
    examples, left_out = example_views(evidence, palette)
    plotly, script = library(), _source("script.js")
    light, dark = module_colours([row.family for row in rows])
    page = _environment().get_template("template.html.j2")
    return page.render(
        title=str(summary.get("title") or "Comparison of context modules"),
        summary=summary,
        data=data,
        setting=_setting(setting),
        feature_shape=_size(setting.get("feature_shape")),
        rows=rows,
        baseline=baseline,
        shown=shown,
        table=main_table(rows, baseline),
        per_class=class_table(rows, classes, baseline),
        gradients=gradient_table(summary.get("gradients")),
        figures=figures,
        figures_json=embedded_json(figures),
        costs=[cost for cost in COSTS if f"cost-{cost.key}" in figures],
        examples=examples,
        examples_left_out=left_out,
        legend=[(name, palette[i] if i < len(palette) else None) for i, name in enumerate(classes)],
        evidence_problems=problems,
        families=family_colours([row.family for row in rows]),
        colours=list(zip(light, dark, strict=True)),
        style=_source("style.css"),
        plotly=plotly,
        script=script,
        policy=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
    )


def _environment():
    jinja2 = require("jinja2", "lab")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,
    )
    environment.filters["plain"] = _plain
    environment.filters["citation"] = _citation
    return environment


def _source(name: str) -> str:
    return resources.files(__package__ or "widefield.lab.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def embedded_json(value: Any) -> str:
    """JSON that may stand inside a script element: no `<`, no NaN."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _read_all(rows: Sequence[Row], folder: Path) -> tuple[dict[int, Evidence], list[str]]:
    evidence, problems = {}, []
    for row in rows:
        relative = row.source.get("evidence")
        if not relative:
            continue
        try:
            evidence[row.index] = read_evidence(folder, str(relative))
        except EvidenceError as error:
            problems.append(f"{row.label}: {relative}: {error}")
    return evidence, problems


_SETTING = {
    "backbone": "Backbone", "weights_note": "Weights", "frozen_backbone": "Backbone frozen", "width": "Width",
    "input_size": "Input", "feature_shape": "Feature map", "steps": "Training steps", "batch_size": "Batch size",
    "seeds": "Seeds", "gates": "Gates", "recipe": "Recipe", "machine": "Machine", "threads": "Threads",
}  # fmt: skip


def _setting(setting: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line; unknown keys keep their name and come last."""
    setting = {
        key: _size(value) if key in ("input_size", "feature_shape") else value for key, value in setting.items()
    }
    known = [(name, setting[key]) for key, name in _SETTING.items() if setting.get(key) is not None]
    other = [(key, value) for key, value in setting.items() if key not in _SETTING and value is not None]
    return [(str(name), value if isinstance(value, str) else _plain(value)) for name, value in known + other]


def _size(value: Any) -> Any:
    """A shape as `48 × 48`."""
    return " × ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _citation(source: Mapping[str, Any]) -> str:
    """Paper and year, the year once: "CVPR 2005" says it already."""
    paper, year = str(source.get("paper") or ""), str(source.get("year") or "")
    return ", ".join(part for part in (paper, "" if year and year in paper else year) if part)


def _plain(value: Any) -> str:
    """A value of JSON as a person writes it."""
    if value is None:
        return units.DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
