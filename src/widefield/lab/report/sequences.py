# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison of networks over sequences: the table, learning curves, what each makes of one
sequence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widefield.core.files import write_text

from . import units
from .curves import curve_svg, read_curves
from .heat import example_pictures
from .page import _environment, _source

_BITS = ("copy", "repeat-copy", "associative-recall", "music")


def write_sequence_report(summary: Mapping[str, Any], out: Path) -> Path:
    """Writes `out / "report.html"`, whole or not at all; an example that cannot be read is left out.

    Args:
        summary: as `widefield.lab.sequence_comparison.compare_networks` returns it.
        out: its folder.

    Returns:
        The path of the page.
    """
    finished = [row for row in summary["rows"] if row["status"] == "finished"]
    others = list(dict.fromkeys(n for row in finished for n in row["scores"] if n != summary["key"]))
    curves = {row["network"]: read_curves([Path(out) / "runs" / f for f in row["folders"]], summary["key"])
              for row in finished}  # fmt: skip
    lengths = [part["length"] for part in finished[0].get("by_length", [])] if finished else []
    page = _environment().get_template("sequences.html.j2")
    path = Path(out) / "report.html"
    write_text(
        path,
        page.render(
            title=f"{summary['task']}{': ' + summary['data'] if summary['data'] else ''}", summary=summary,
            rows=[_row(row, others) for row in summary["rows"]], others=[_plain(name) for name in others],
            lengths=lengths, by_length=[(row["network"], [f"{part['bit_error']:.2%}" for part in row["by_length"]])
                                        for row in finished if row.get("by_length")],
            curves=curve_svg({n: c for n, c in curves.items() if c}, summary["measure"], summary["baselines"]),
            pictures=[(row["network"], found) for row in finished
                      if (found := example_pictures(Path(out) / "runs" / row["folders"][0] / "evidence.npz",
                                                    summary["task"] in _BITS))],
            style=_source("style.css"),
        ),
    )  # fmt: skip
    return path


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _row(row: Mapping[str, Any], others: list[str]) -> dict[str, Any]:
    if row["status"] != "finished":
        return {"network": row["network"], "failed": row.get("error", "failed")}
    difference = row.get("difference")
    return {
        "network": row["network"],
        "failed": "",
        "score": interval(row["score"]),
        "difference": f"{interval(difference, sign=True)} {difference['verdict']}" if difference else "baseline",
        "verdict": difference["verdict"] if difference else "",
        "others": [interval(row["scores"][name]) if name in row["scores"] else units.DASH for name in others],
        "parameters": f"{row['parameters']:,}",
        "seconds": f"{row['seconds']:.0f} s",
    }


def interval(found: Mapping[str, Any], *, sign: bool = False) -> str:
    """Four digits that count, and half the interval."""
    mean, half = found["mean"], found.get("half_width")
    text = f"{mean:+.4g}" if sign else f"{mean:.4g}"
    return text + (f" ± {half:.2g}" if half is not None else "")
