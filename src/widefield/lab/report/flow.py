# SPDX-License-Identifier: Apache-2.0
"""The page of a study of gradient flow: the table, gradients and Jacobians against the distance, spectra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widefield.core.files import write_text

from . import units
from .curves import curve_svg
from .page import _environment, _source


def write_flow_report(summary: Mapping[str, Any], out: Path) -> Path:
    """Writes `out / "report.html"`, whole or not at all.

    Args:
        summary: as `widefield.lab.flow.study_flow` returns it.
        out: its folder.

    Returns:
        The path of the page.
    """
    finished = [row for row in summary["rows"] if row["status"] == "finished"]
    gradients, norms, bounds, spectra = {}, {}, {}, {}
    for row in finished:
        for when in ("new", "trained"):
            if when not in row:
                continue
            name = row["model"] if when == "new" else f"{row['model']}, trained"
            found = row[when]
            gradients[name] = list(zip(found["lags"], found["gradient"], strict=True))
            norms[name] = list(zip(found["jacobian_lags"], found["jacobian"], strict=True))
            if "bound" in found and when == "new":
                bounds[f"bound of {name}"] = list(zip(found["lags"], found["bound"], strict=True))
            if found["spectrum"]:
                spectra[name] = [(i + 1, value) for i, value in enumerate(found["spectrum"])]
    distance = {row["model"]: row["orthogonality"] for row in finished if row.get("orthogonality")}
    page = _environment().get_template("flow.html.j2")
    path = Path(out) / "report.html"
    write_text(
        path,
        page.render(
            title="How gradients travel back", summary=summary, rows=[flow_row(row) for row in summary["rows"]],
            trained=any("trained" in row for row in finished), style=_source("style.css"),
            gradient=curve_svg(gradients, "gradient", below="steps back", logarithmic=True),
            jacobian=curve_svg(norms | bounds, "norm", below="steps back", logarithmic=True, dashed=list(bounds)),
            spectrum=curve_svg(spectra, "singular value", below="index", logarithmic=True, floor=1e-4),
            distance=curve_svg(distance, "distance", below="step of the training") if distance else "",
        ),
    )  # fmt: skip
    return path


def flow_row(row: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a line of the table."""
    if row["status"] != "finished":
        return {"model": row["model"], "failed": row.get("error", "failed")}
    found = {"model": row["model"], "failed": ""}
    for when in ("new", "trained"):
        part = row.get(when)
        found[when] = power(part.get("decades"), zero=True) if part else units.DASH
        found[f"{when}_rate"] = f"{part['rate']:.3f}" if part and part["rate"] is not None else units.DASH
        factor = part.get("factor") if part else None
        decades = None if factor is None else {"mean": factor["decades"], "half_width": factor["half_width"]}
        found[f"{when}_factor"] = power(decades) if factor else units.DASH
    curve = row.get("orthogonality")
    found["distance"] = f"{curve[0][1]:.3f} to {curve[-1][1]:.3f}" if curve else units.DASH
    return found


def power(decades: Mapping[str, Any] | None, *, zero: bool = False) -> str:
    """`2.1e-07 (1e-07 to 4e-07)` from a mean and an interval of base-10 logarithms."""
    if decades is None:
        return "0" if zero else units.DASH
    mean, half = decades["mean"], decades["half_width"]
    text = _number(mean)
    return text if half is None else f"{text} ({_number(mean - half)} to {_number(mean + half)})"


def _number(decades: float) -> str:
    return f"{10.0**decades:.2g}" if abs(decades) < 300 else f"10^{decades:.0f}"
