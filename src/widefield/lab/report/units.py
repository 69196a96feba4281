# SPDX-License-Identifier: Apache-2.0
"""Numbers as a person reads them; what is missing or not finite is a dash."""

from __future__ import annotations

import math
from typing import Any

DASH = "–"
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def finite(value: Any) -> float | None:
    """The value as a float; None for what is no number, or no finite one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def digits(value: float) -> str:
    """Three significant digits, without an exponent: 1.05, 10.5, 105."""
    if value == 0:
        return "0"
    # 0.9996 has its places counted as 1.00.
    rounded = float(f"{value:.3g}")
    places = max(2 - math.floor(math.log10(abs(rounded))), 0)
    return f"{rounded:.{min(places, 6)}f}"


def share(value: float | None, *, sign: bool = False) -> str:
    """A quality between 0 and 1, with three decimals."""
    if value is None:
        return DASH
    # A difference that rounds to nothing has no sign.
    text = f"{value:+.3f}" if sign else f"{value:.3f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def count(value: float | None) -> str:
    """A number of things, with an SI prefix: 1.05 M."""
    if value is None:
        return DASH
    for size, prefix in _SI:
        # What would round to 1000 of the smaller prefix takes the larger one.
        if abs(value) >= size * 0.9995:
            return f"{digits(value / size)} {prefix}"
    return digits(value) if value != int(value) else str(int(value))


def memory(value: float | None) -> str:
    """Bytes, with a binary prefix: 12.5 MiB."""
    if value is None:
        return DASH
    for size, prefix in _BINARY:
        if abs(value) >= size:
            return f"{digits(value / size)} {prefix}"
    return f"{int(value)} B"


def duration(value: float | None) -> str:
    """Seconds in the unit that suits: 3.40 ms, 12.0 s, 3 min 20 s, 1 h 05 min."""
    if value is None:
        return DASH
    if value < 1e-3:
        return f"{digits(value * 1e6)} µs"
    if value < 1:
        return f"{digits(value * 1e3)} ms"
    if value < 60:
        return f"{digits(value)} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
