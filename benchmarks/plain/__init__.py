# SPDX-License-Identifier: Apache-2.0
"""Every module's equation written out plainly: what a careful person types from the paper with torch alone.

A plain version takes one of our modules, for its parameters, and an input, and computes the same numbers in the
straightforward way: whole maps, unfolded windows, loops over rates. It is what `python -m benchmarks.run` measures
the modules against; a test holds it to their outputs and gradients.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

Plain = Callable[[Any, Tensor], Tensor]

_PLAIN: dict[str, Plain] = {}


def plain(*names: str) -> Callable[[Plain], Plain]:
    """Registers the function below it as the plain version of these modules."""

    def add(function: Plain) -> Plain:
        for name in names:
            _PLAIN[name] = function
        return function

    return add


@cache
def plain_versions() -> dict[str, Plain]:
    """The plain version of each module, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_PLAIN.items()))
