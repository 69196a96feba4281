# SPDX-License-Identifier: Apache-2.0
"""What all figures share. A figure is plotly's JSON as a plain dict.

A colour is the name of a style property of the page (`--m3`), which the page's script replaces by its value, so
that figures follow the light and the dark scheme. A trace that belongs to a module carries its index as
`meta.module`; the script shows the chosen modules only. `meta.label` is written beside the trace, where there is
room.
"""

from __future__ import annotations

import html
import math
from typing import Any

from widefield.core.extras import require

Figure = dict[str, Any]
_FACTORS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))
# An axis reaches beyond the data by this part of their span.
PADDING = 0.08


def safe(text: str) -> str:
    """Text for plotly, which reads some HTML tags."""
    return html.escape(text, quote=False)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title, which makes its own room."""
    return {"title": {"text": title, "standoff": 10}, "automargin": True, **more}


def round_places(low: float, high: float) -> list[float]:
    """Round numbers between two positive ones for a logarithmic axis: the coarsest choice that gives four."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    slack = (high / low) ** PADDING
    places: list[float] = []
    for factors in _FACTORS:
        every = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        places = [place for place in every if low / slack <= place <= high * slack]
        if len(places) >= 4:
            break
    # Too narrow for any round number: the ends say it all.
    return places if len(places) > 1 else sorted({low, high})


def library() -> str:
    """The source of plotly.js, to be embedded."""
    return require("plotly.offline", "lab").get_plotlyjs()
