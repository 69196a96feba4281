# SPDX-License-Identifier: Apache-2.0
"""What a module costs at the size of the catalogue: read from the package, measured for modules of others."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from widefield.core.registry import create, entry, list_modules

SHAPE = (1, 512, 64, 64)
FILE = "figures.json"


def figures(name: str) -> dict[str, int]:
    """Parameters, multiply-adds and peak bytes (inference; training step) at 1x512x64x64, default options."""
    known = _shipped()
    return known[name] if name in known else measured(name)


def measured(name: str) -> dict[str, int]:
    """The same by the instruments, without running the module."""
    from widefield.measure import cost

    report = cost(create(name, SHAPE[1], **entry(name).tied_to(SHAPE[2:])), SHAPE, backward=True, latency=False)
    return {
        "parameters": report.parameters,
        "multiply_adds": report.multiply_adds,
        "memory_forward": report.activation_memory_forward,
        "memory_training": int(report.activation_memory_training or 0),
    }


@cache
def _shipped() -> dict[str, Any]:
    return json.loads(files("widefield.cli").joinpath(FILE).read_text(encoding="utf-8"))


def render() -> str:
    """The shipped file, measured anew."""
    found = {name: measured(name) for name in list_modules()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(figure)}" for name, figure in found.items())
    return f"{{\n{lines}\n}}\n"
