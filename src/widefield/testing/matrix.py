# SPDX-License-Identifier: Apache-2.0
"""Which registered module keeps which check, and why not where it does not: from the facts, for tests and pages.

The contract tests hold every cell, both ways: what is not excused must pass, what is excused must fail.
"""

from __future__ import annotations

import inspect

from torch import nn

from widefield.core.registry import create, describe, list_modules
from widefield.testing import CHECKS

TIED = "its weights belong to positions, so it is tied to the map size that it is built for"
ONE_STEP = "one step is differentiated, by design; exact with `gradient='unrolled'`"


def excuses(name: str) -> dict[str, str]:
    """Check to reason, for what the mathematics of a registered module forbids."""
    known = describe(name)
    facts, found = known.facts, {}
    if facts.fixed_size:
        found |= dict.fromkeys(("sizes", "exported", "onnx"), TIED)
    if not facts.exportable:
        found.setdefault("onnx", "ONNX has no operator for a part of it")
    if not facts.exact_gradient:
        found["gradcheck"] = ONE_STEP
    return found | {check: reason for check, reason in facts.limits.items() if check != "dimensions"}


def dimensions(name: str) -> tuple[str, str]:
    """The numbers of spatial dimensions of a registered module, in words, and why not all three if so."""
    module: nn.Module = create(name, 16)
    claimed = getattr(module, "space_dims", (2,))
    if "dims" in describe(name).options:
        return "1, 2 or 3", "a kernel has axes: built for one number of dimensions, by `dims`"
    return ", ".join(map(str, claimed)), describe(name).facts.limits.get("dimensions", "")


def render() -> str:
    """The matrix as Markdown."""
    columns = [check for check in CHECKS if check != "dimensions"]
    notes: list[str] = []

    def note(reason: str) -> str:
        if reason not in notes:
            notes.append(reason)
        return f"[{notes.index(reason) + 1}]"

    lines = [
        f"| module | dimensions | {' | '.join(column.replace('_', ' ') for column in columns)} |",
        "|---|" + ":---:|" * (len(columns) + 1),
    ]
    for name in list_modules():
        excused, (dims, reason) = excuses(name), dimensions(name)
        cells = [f"{dims} {note(reason)}" if reason else dims]
        cells += [note(excused[column]) if column in excused else "✓" for column in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    promises = [f"- **{name.replace('_', ' ')}**: {inspect.getdoc(check)}" for name, check in CHECKS.items()]
    numbered = [f"{number}. {reason}" for number, reason in enumerate(notes, 1)]
    return "\n".join([*lines, "", "## Notes", "", *numbered, "", "## The checks", "", *promises, ""])
