# SPDX-License-Identifier: Apache-2.0
"""The example pictures of the page: input, truth, and for each module its prediction and what it looks at."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import units
from .evidence import IGNORE, Evidence, Example
from .images import heat_map, label_map, photo

# Of base64, all pictures together; what goes beyond is left out, example by example, and the page says so.
BUDGET = 3_000_000
_CODES = 6
# The heat of a map lies over the grey picture, which must still be recognised.
_OVERLAY = 0.72


def example_views(
    rows_evidence: Mapping[int, Evidence], palette: Sequence[Sequence[int]], budget: int = BUDGET
) -> tuple[list[dict[str, Any]], int]:
    """Pictures to print, and how many examples were left out because the page would grow too large.

    Modules that looked at the same picture stand under one example. The first example is always there.

    Args:
        rows_evidence: by the index of a row.
        palette: a colour a class.
    """
    views, spent = [], 0
    grouped = _grouped(rows_evidence)
    for number, seen in enumerate(grouped):
        view, size = _view(seen, palette)
        spent += size
        if number and spent > budget:
            return views, len(grouped) - number
        views.append(view)
    return views, 0


def _grouped(rows_evidence: Mapping[int, Evidence]) -> list[list[tuple[int, Example]]]:
    groups: dict[bytes, list[tuple[int, Example]]] = {}
    for index, evidence in rows_evidence.items():
        for example in evidence.examples:
            content = hashlib.sha256(example.image.tobytes()).digest()
            content += hashlib.sha256(example.label.tobytes()).digest()
            groups.setdefault(content, []).append((index, example))
    return list(groups.values())


def _view(seen: Sequence[tuple[int, Example]], palette: Sequence[Sequence[int]]) -> tuple[dict[str, Any], int]:
    first = seen[0][1]
    height, width = first.image.shape[:2]
    view: dict[str, Any] = {
        "image": photo(first.image),
        "truth": label_map(first.label, palette),
        "width": width,
        "height": height,
        "pin": _pin(first),
        "modules": [_module(index, example, palette) for index, example in seen],
    }
    view["has_attention"] = any(module["attention"] for module in view["modules"])
    view["has_codes"] = any(module["codes"] for module in view["modules"])
    return view, sum(len(text) for text in _strings(view))


def _module(index: int, example: Example, palette: Sequence[Sequence[int]]) -> dict[str, Any]:
    codes = []
    if example.codes is not None:
        spread = example.codes.reshape(len(example.codes), -1).std(axis=1)
        # In the order of the file among those that vary most over the picture.
        chosen = sorted(np.argsort(-spread, kind="stable")[:_CODES].tolist())
        codes = [heat_map(example.codes[k]) for k in chosen]
    return {
        "index": index,
        "prediction": label_map(example.prediction, palette, ignored=example.label == IGNORE),
        "right": None if example.right is None else f"{example.right:.1%}",
        # The square root lifts the faint, which is what lies far away.
        "sees": None if example.sees is None else heat_map(np.sqrt(np.abs(example.sees)), opacity=_OVERLAY),
        "elsewhere": None if example.from_elsewhere is None else f"{example.from_elsewhere:.0%}",
        "attention": None if example.attention is None else heat_map(example.attention, opacity=_OVERLAY),
        "strongest": None if example.attention is None else _strongest(example.attention),
        "codes": codes,
        "codes_of": 0 if example.codes is None else len(example.codes),
        "pin": _pin(example),
    }


def _strongest(attention: np.ndarray) -> str:
    """The largest weight, as a multiple of the mean one."""
    mean = float(np.abs(attention).mean())
    return f"{units.digits(float(np.abs(attention).max()) / mean)}× mean" if mean > 0 else "all zero"


def _pin(example: Example) -> tuple[float, float] | None:
    """Where the chosen position lies, in percent from the top and from the left."""
    if example.pixel is None or example.sees is None:
        return None
    return tuple(  # type: ignore[return-value]
        round(100 * (place + 0.5) / size, 2) for place, size in zip(example.pixel, example.sees.shape, strict=True)
    )


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
