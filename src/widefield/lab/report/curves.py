# SPDX-License-Identifier: Apache-2.0
"""Lines over steps as SVG, without a script: learning curves, gradients against distance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from .plot import round_places, safe

COLOURS = ("#2a5db0", "#b4540a", "#1b7f79", "#a3261f", "#7a4fa3", "#5d636e", "#a07b00", "#c0448f")
DASHES = ("", "7 3", "2 3")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 380, 66, 190, 14, 44
Line = Sequence[tuple[float, float]]


def read_curves(folders: Sequence[Path], key: str) -> list[tuple[float, float]]:
    """The mean over runs of a logged score, at the steps that all have."""
    found: list[dict[int, float]] = []
    for folder in folders:
        points: dict[int, float] = {}
        try:
            for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
                values = json.loads(line)
                if isinstance(values.get(key), (int, float)):
                    points[int(values["step"])] = float(values[key])
        except (OSError, ValueError, KeyError):
            continue
        found.append(points)
    if not found:
        return []
    steps = sorted(set.intersection(*(set(points) for points in found)))
    return [(step, fmean(points[step] for points in found)) for step in steps]


def curve_svg(
    lines: Mapping[str, Line],
    title: str,
    levels: Mapping[str, float] | None = None,
    *,
    below: str = "step",
    logarithmic: bool = False,
    floor: float = 1e-12,
    dashed: Sequence[str] = (),
) -> str:
    """One drawing.

    Args:
        lines: name to points.
        title: of the vertical axis.
        levels: names and heights of level lines.
        below: title of the horizontal axis.
        logarithmic: the vertical axis; values below `floor` stand on it.
        floor: smallest value drawn.
        dashed: names of lines that are no measurements.

    Returns:
        An `<svg>` element, or nothing where there is no point.
    """
    levels = dict(levels or {})
    drawn = {name: [(x, y) for x, y in line if math.isfinite(y)] for name, line in lines.items()}
    drawn = {name: line for name, line in drawn.items() if line}
    if not drawn:
        return ""
    if logarithmic:
        drawn = {name: [(x, max(y, floor)) for x, y in line] for name, line in drawn.items()}
        levels = {name: y for name, y in levels.items() if y >= floor}
    xs = [x for line in drawn.values() for x, _ in line]
    ys = [y for line in drawn.values() for _, y in line] + list(levels.values())
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys), max(ys)
    if logarithmic:
        y_high = y_high if y_high > y_low else 10 * y_low
        ticks = [p for p in round_places(y_low, y_high) if y_low <= p <= y_high]
        ticks = ticks[:: max(1, len(ticks) // 8)]
    else:
        y_high = y_high if y_high > y_low else y_low + 1
        ticks = [y_low + i * (y_high - y_low) / 4 for i in range(5)]
    x_high = x_high if x_high > x_low else x_low + 1

    def across(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        if logarithmic:
            share = math.log(max(y, floor) / y_low) / math.log(y_high / y_low)
        else:
            share = (y - y_low) / (y_high - y_low)
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    edge = WIDTH - RIGHT
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{safe(title)} against {safe(below)}">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{edge}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    for x in (x_low, (x_low + x_high) / 2, x_high):
        parts.append(f'<text x="{across(x):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{x:.4g}</text>')
    parts.append(f'<text x="{(LEFT + edge) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{safe(below)}</text>')
    labels: list[tuple[float, str, str]] = []
    for name, level in levels.items():
        parts.append(f'<line class="level" x1="{LEFT}" x2="{edge}" y1="{up(level):.1f}" y2="{up(level):.1f}"/>')
        labels.append((up(level), name, "currentColor"))
    for index, (name, line) in enumerate(drawn.items()):
        colour = COLOURS[index % len(COLOURS)]
        dash = "3 4" if name in dashed else DASHES[index // len(COLOURS) % len(DASHES)]
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" '
            f'points="{points}">'
            f"<title>{safe(name)}</title></polyline>"
        )
        labels.append((up(line[-1][1]), name, colour))
    place = -math.inf
    for height, name, colour in sorted(labels):  # names must not cover each other
        place = max(height, place + 14)
        parts.append(f'<text x="{edge + 8}" y="{place + 4:.1f}" fill="{colour}">{safe(name)}</text>')
    return "".join([*parts, "</svg>"])
