# SPDX-License-Identifier: Apache-2.0
"""Optional dependencies: a missing one is named together with the command that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Imports `module`, or says which extra of widefield brings it.

    Raises:
        ImportError: the module is not installed; the message holds the install command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # A module that is there but broken must keep its own explanation.
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(
            f"{module!r} is needed here and is not installed: pip install 'widefield[{extra}]'"
        ) from error
