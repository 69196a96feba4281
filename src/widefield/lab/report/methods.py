# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison of reconstruction methods: the table, the scenes, what each method makes of one."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from widefield.core.files import write_text

from . import units
from .cube_picture import draw_cube
from .page import _environment, _source


def write_methods_report(summary: Mapping[str, Any], out: Path) -> Path:
    """Writes `out / "report.html"`, whole or not at all; an example that cannot be read is left out.

    Args:
        summary: as `widefield.lab.methods.compare_methods` returns it.
        out: its folder.

    Returns:
        The path of the page.
    """
    rows = [_row(row) for row in summary["rows"]]
    finished = [row for row in summary["rows"] if row["status"] == "finished"]
    names = list(finished[0]["scenes"]) if finished else []
    scenes = [
        (name, [f"{row['scenes'][name]['psnr']:.2f}" if name in row["scenes"] else units.DASH for row in finished])
        for name in names
    ]
    page = _environment().get_template("methods.html.j2")
    path = Path(out) / "report.html"
    write_text(
        path,
        page.render(
            title=f"Reconstruction of {summary['data']['name']}", summary=summary, rows=rows, scenes=scenes,
            pictures=_pictures(finished, Path(out)), style=_source("style.css"),
        ),
    )  # fmt: skip
    return path


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    if row["status"] != "finished":
        return {"method": row["method"], "failed": row.get("error", "failed")}
    difference = row.get("difference")
    trains = row["trains"]
    return {
        "method": row["method"],
        "failed": "",
        "psnr": _interval(row["psnr"], 2),
        "difference": f"{_interval(difference, 2, sign=True)} {difference['verdict']}"
        if difference
        else "baseline",
        "verdict": difference["verdict"] if difference else "",
        "ssim": _interval(row["ssim"], 3),
        "sam": _interval(row["sam"], 2),
        "parameters": f"{row['parameters'] / 1e6:.3f} M" if trains else units.DASH,
        "multiply_adds": f"{row['multiply_adds'] / 1e9:.2f} G" if trains else units.DASH,
        "seconds": f"{row['seconds']:.0f} s" if row.get("seconds") is not None else units.DASH,
    }


def _interval(found: Mapping[str, Any], digits: int, *, sign: bool = False) -> str:
    mean, half = found["mean"], found.get("half_width")
    text = f"{mean:+.{digits}f}" if sign else f"{mean:.{digits}f}"
    return text + (f" ± {half:.{digits}f}" if half is not None else "")


def _pictures(rows: list[Mapping[str, Any]], out: Path) -> list[tuple[str, str]]:
    found = []
    for row in rows:
        path = out / "runs" / row["folders"][0] / "evidence.npz"
        try:
            with np.load(path, allow_pickle=False) as file:
                estimate, truth = file["estimate"].astype(np.float32), file["truth"].astype(np.float32)
        except (OSError, ValueError, KeyError):
            continue
        buffer = io.BytesIO()
        draw_cube(estimate, truth=truth).save(buffer, "PNG")
        found.append((row["method"], base64.b64encode(buffer.getvalue()).decode()))
    return found
