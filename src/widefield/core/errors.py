# SPDX-License-Identifier: Apache-2.0
"""How the library says no: every error is a sentence with what was given, what is accepted, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnknownName(KeyError, ValueError):
    """A name that is not in a table; the message suggests the nearest and lists the accepted ones."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


class UnknownOption(TypeError, ValueError):
    """An option that a constructor does not have."""


class NoOperator(TypeError):
    """The module has no dense position-by-position matrix, and says why."""


def require_positive(owner: str, **numbers: int | None) -> None:
    """Raises a ValueError that names the first of the options that is given and no positive integer."""
    for option, value in numbers.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{owner}: {option} must be a positive integer, got {value!r}")


def unknown(kind: str, given: str, accepted: Iterable[str]) -> UnknownName:
    """An `UnknownName` for `given`, with the nearest of the `accepted` names first."""
    names = sorted(accepted)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    return UnknownName(f"unknown {kind} {given!r}.{hint} Accepted: {', '.join(names)}")
