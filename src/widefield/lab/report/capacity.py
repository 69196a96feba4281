# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison of capacities: the table, capacity against parameters, labels against the gap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widefield.core.files import write_text
from widefield.lab.capacity_verdicts import gains

from . import units
from .colours import oklch_to_hex
from .page import _digest, _environment, _plain, _source, embedded_json
from .plot import Figure, axis, library, round_places, safe

_HUES = (262.0, 42.0, 152.0, 325.0, 100.0, 205.0, 10.0)
# The marks of the variants; what is seen without colour.
_SYMBOLS = {"semantic": "circle", "random": "x", "gaussian": "diamond", "permuted": "square-open"}


def write_capacity_report(summary: Mapping[str, Any], out: Path) -> Path:
    """Writes `out / "report.html"`, whole or not at all.

    Args:
        summary: as `widefield.lab.capacity.measure_capacities` returns it.
        out: its folder.

    Returns:
        The path of the page.
    """
    rows = [row for row in summary["rows"] if row["status"] == "finished"]
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    figures = capacity_figures(rows, variants)
    plotly, script = library(), _source("script.js")
    path = Path(out) / "report.html"
    write_text(path, _environment().get_template("capacity.html.j2").render(
        title=f"How many samples of {summary['data']['name']} networks can fit", summary=summary,
        rows=[_line(row) for row in summary["rows"]], figures=figures, figures_json=embedded_json(figures),
        legend=[(variant, f"--m{i}", _SYMBOLS.get(variant, "circle")) for i, variant in enumerate(variants)],
        colours=[(oklch_to_hex(0.52, 0.14, hue), oklch_to_hex(0.76, 0.12, hue)) for hue in _HUES],
        setting=[(name.replace("_", " "), _plain(value)) for name, value in summary["setting"].items()],
        notes=[f"{r['model']} {r['optimizer']} {r['variant']}: {note}" for r in rows for note in r["notes"]],
        has_gap=any(row.get("gap") for row in rows), style=_source("style.css"), plotly=plotly, script=script,
        policy=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
    ))  # fmt: skip
    return path


def capacity_figures(rows: Sequence[Mapping[str, Any]], variants: Sequence[str]) -> dict[str, Figure]:
    """Capacity and its ratio to the parameters over the parameters; shares of seeds; gain against gap."""
    figures: dict[str, Figure] = {}
    shown = [row for row in rows if row["capacity"]["mean"] > 0]
    if shown:
        figures["capacity"] = _against_parameters(shown, variants, per_parameter=False)
        figures["ratio"] = _against_parameters(shown, variants, per_parameter=True)
        figures["curves"] = _curves(shown, variants)
    points = gains({(r["model"], r["optimizer"], r["variant"]): r for r in rows})
    if len(points) > 1:
        trace = {
            "type": "scatter", "mode": "markers", "x": [100 * (math.exp(g) - 1) for g, _, _ in points],
            "y": [gap for _, gap, _ in points], "text": [safe(name) for _, _, name in points],
            "marker": {"size": 9, "color": "--m0"},
            "hovertemplate": "<b>%{text}</b><br>gain %{x:.0f} %, gap %{y:.3f}<extra></extra>",
        }  # fmt: skip
        layout = {"xaxis": axis("gain of true over random labels, percent"),
                  "yaxis": axis("training minus held-out accuracy"), "hovermode": "closest"}  # fmt: skip
        figures["gap"] = {"data": [trace], "layout": layout}
    return figures


def _against_parameters(
    rows: Sequence[Mapping[str, Any]], variants: Sequence[str], *, per_parameter: bool
) -> Figure:
    traces: list[dict[str, Any]] = []
    sizes = [row["parameters"] for row in rows]
    low, high = min(sizes) / 1.3, max(sizes) * 1.3
    line = [1.0, 1.0] if per_parameter else [low, high]
    traces.append({"type": "scatter", "mode": "lines", "x": [low, high], "y": line, "hoverinfo": "skip",
                   "line": {"color": "--muted", "width": 1, "dash": "dot"}})  # fmt: skip
    # One line a family and optimiser, through its sizes.
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"].split("+")[0], row["optimizer"], row["variant"]), []).append(row)
    for (family, optimizer, variant), mine in groups.items():
        mine = sorted(mine, key=lambda row: row["parameters"])
        scale = [row["parameters"] if per_parameter else 1 for row in mine]
        means = [row["capacity"]["mean"] / s for row, s in zip(mine, scale, strict=True)]
        spans = [row["capacity"]["interval"] or [row["capacity"]["mean"]] * 2 for row in mine]
        colour = f"--m{list(variants).index(variant) % len(_HUES)}"
        symbol = _SYMBOLS.get(variant, "circle")
        traces.append({
            "type": "scatter", "mode": "lines+markers", "x": [row["parameters"] for row in mine], "y": means,
            "text": [safe(f"{row['model']} {optimizer}, {variant}"
                          + (": at least" if row["capacity"]["censored"] else "")) for row in mine],
            "line": {"color": colour, "width": 1.5}, "name": safe(f"{family} {optimizer} {variant}"),
            "marker": {"size": 9, "color": colour,
                       "symbol": ["triangle-up" if row["capacity"]["censored"] else symbol for row in mine]},
            "error_y": {"type": "data", "symmetric": False, "color": colour, "thickness": 1.2, "width": 3,
                        "array": [s[1] / k - m for s, k, m in zip(spans, scale, means, strict=True)],
                        "arrayminus": [m - s[0] / k for s, k, m in zip(spans, scale, means, strict=True)]},
            "hovertemplate": "<b>%{text}</b><br>%{x} parameters, %{y:.3~g}<extra></extra>",
        })  # fmt: skip
    # Of few seeds an interval may span powers of ten; the axis follows the means and shows that it goes on.
    values = [value for trace in traces for value in trace["y"]]
    low_y, high_y = min(values) / 2.5, max(values) * 2.5
    layout = {
        "xaxis": _log_axis("parameters", low, high),
        "yaxis": _log_axis("samples a parameter" if per_parameter else "samples fitted", low_y, high_y)
        | {"range": [math.log10(low_y), math.log10(high_y)]},
        "hovermode": "closest",
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _curves(rows: Sequence[Mapping[str, Any]], variants: Sequence[str]) -> Figure:
    traces = []
    for row in rows:
        colour = f"--m{list(variants).index(row['variant']) % len(_HUES)}"
        name = safe(f"{row['model']} {row['optimizer']} {row['variant']}")
        traces.append({
            "type": "scatter", "mode": "lines+markers", "x": [size for size, _ in row["curve"]],
            "y": [share for _, share in row["curve"]], "name": name, "line": {"color": colour, "width": 1.3},
            "marker": {"size": 5}, "hovertemplate": f"<b>{name}</b><br>%{{x}} samples: %{{y:.0%}}<extra></extra>",
        })  # fmt: skip
    every = [x for trace in traces for x in trace["x"]]
    layout = {"xaxis": _log_axis("samples", min(every), max(every)), "hovermode": "closest",
              "yaxis": axis("share of seeds that fit", tickformat=".0%", range=[-0.03, 1.03])}  # fmt: skip
    return {"data": traces, "layout": layout}


def _log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    places = round_places(low, high)
    return axis(title, type="log", tickvals=places, ticktext=[f"{place:g}" for place in places])


def _line(row: Mapping[str, Any]) -> dict[str, str]:
    line = {"model": row["model"], "optimizer": row["optimizer"], "variant": row["variant"],
            "parameters": f"{row['parameters']:,}", "failed": ""}  # fmt: skip
    if row["status"] != "finished":
        return line | {"failed": row.get("error", "failed")}
    c, gap = row["capacity"], row.get("gap")
    half = gap["half_width"] if gap else None
    edges = [edge for edge in row["edges"] if edge]
    return line | {
        "mean": ("≥ " if c["censored"] else "") + f"{c['mean']:.0f}",
        "interval": f"{c['interval'][0]:.0f} to {c['interval'][1]:.0f}" if c["interval"] else units.DASH,
        "half": f"{c['half']:.0f}", "values": ", ".join(map(str, c["values"])),
        "per_parameter": f"{c['per_parameter']:.2f}",
        "bits": f"{c['bits_per_parameter']:.2f}" if c["bits_per_parameter"] else units.DASH,
        "gap": (f"{gap['mean']:.3f}" + (f" ± {half:.3f}" if half is not None else "")) if gap else units.DASH,
        "edges": ", ".join(f"{edges.count(edge)} {edge}" for edge in dict.fromkeys(edges)) or units.DASH,
        "steps": f"{row['steps']:,}",
    }  # fmt: skip
