# SPDX-License-Identifier: Apache-2.0
"""Modules that let every position of a feature map see all the others, and the instruments that compare them.

>>> import torch, widefield
>>> module = widefield.create("hamburger-nmf", 512, rank=64)
>>> module(torch.rand(1, 512, 32, 32)).shape
torch.Size([1, 512, 32, 32])
"""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from widefield._version import __version__ as __version__
from widefield.core import Context as Context
from widefield.core import Cost as Cost
from widefield.core import Facts as Facts
from widefield.core import NoOperator as NoOperator
from widefield.core import Outcome as Outcome
from widefield.core import Status as Status
from widefield.core import UnknownName as UnknownName
from widefield.core import UnknownOption as UnknownOption
from widefield.core import create as create
from widefield.core import describe as describe
from widefield.core import list_modules as list_modules
from widefield.core import register as register

# Rooms that need more than torch are imported when they are first asked for.
_ROOMS = (
    "attention",
    "data",
    "decomposition",
    "graph",
    "imaging",
    "implicit",
    "lab",
    "measure",
    "mixing",
    "models",
    "pooling",
    "tasks",
    "testing",
    "weights",
)


def __getattr__(name: str) -> _ModuleType:
    if name in _ROOMS:
        return _import_module(f"widefield.{name}")
    raise AttributeError(f"module 'widefield' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS])
