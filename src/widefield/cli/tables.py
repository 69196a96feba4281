# SPDX-License-Identifier: Apache-2.0
"""Tables on a terminal, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None) -> None:
    """A table; the first column is text, the others are right-aligned. Never truncated when piped."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(caption=caption, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def million(value: float | None) -> str:
    if value is not None and value < 1e4:
        return f"{value:,}"
    return "-" if value is None else f"{value / 1e6:.3f} M" if value < 1e8 else f"{value / 1e6:.1f} M"


def giga(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.3g} G" if value >= 1e8 else f"{value / 1e6:.3g} M"


def mega_bytes(value: float | None) -> str:
    return (
        "-" if value is None else f"{value / 2**20:.1f} MiB" if value < 100 * 2**20 else f"{value / 2**20:.0f} MiB"
    )


def duration(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def score(mean: float | None, half_width: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.3f}" + (f" ± {half_width:.3f}" if half_width is not None else "")


def signed(mean: float, half_width: float | None) -> str:
    return ("+" if mean > 0 else "") + score(mean, half_width)
