# SPDX-License-Identifier: Apache-2.0
"""State of the original implementations, under the names they gave it, into a widefield module.

A source is an implementation with its naming: `non-local`, `mmcv`, `danet`, `semseg`, ... For each class that
it covers, one function returns a table from our prefixes to the reference's; everything else is here: the
`module.` of DataParallel, 1x1 kernels that are plain matrices here, and one error for all that does not fit.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from widefield.core.errors import unknown

# our prefix -> the reference's; several names for a shared parameter; None for what only we have
Table = Mapping[str, "str | tuple[str, ...] | None"]
Tabulate = Callable[..., Table]
_Function = TypeVar("_Function", bound=Tabulate)


class Transposed(str):
    """The reference's name of a matrix that it stores the other way round."""


_SOURCES: dict[str, dict[type[nn.Module], Tabulate]] = {}
# Names, with * for anything, of what a reference holds and ours has no use for.
_IGNORED: dict[str, tuple[str, ...]] = {}
_COUNTER = "num_batches_tracked"


def reference(
    source: str, *classes: type[nn.Module], ignored: tuple[str, ...] = ()
) -> Callable[[_Function], _Function]:
    """Registers the table function below it: `source` names the states of modules of these `classes`.

    The function takes a module and returns a `Table`. A prefix stands for one name or for all names below it;
    the longest that fits wins; prefixes that a module does not have are ignored. `ignored` names, with * for
    anything, what such states hold beside (constants, weights of an input that is always zero).
    """

    def add(function: _Function) -> _Function:
        _IGNORED[source] = _IGNORED.get(source, ()) + ignored
        for kind in classes:
            _SOURCES.setdefault(source, {})[kind] = function
        return function

    return add


@cache
def _load() -> None:
    # Tables stand in one file a room, named as the room, where there are any.
    for room in ("attention", "decomposition", "graph", "pooling", "mixing", "sequence", "imaging"):
        if importlib.util.find_spec(f"widefield.weights.{room}"):
            importlib.import_module(f"widefield.weights.{room}")


def list_sources() -> dict[str, list[str]]:
    """Every source, with the classes that it covers."""
    _load()
    return {name: sorted(kind.__name__ for kind in _SOURCES[name]) for name in sorted(_SOURCES)}


def reference_names(module: nn.Module, source: str) -> dict[str, str]:
    """The reference's name of each parameter and buffer, to ours; a shared parameter has several.

    Raises:
        UnknownName: no such source. TypeError: the source does not cover this class. ValueError: the module holds
            something that the reference does not have.
    """
    table = _table(module, source)
    names: dict[str, str] = {}
    homeless: list[str] = []
    for ours in module.state_dict():
        prefix = max((p for p in table if ours == p or ours.startswith(f"{p}.")), key=len, default=None)
        if prefix is None:
            homeless.append(ours)
            continue
        theirs = table[prefix]
        for name in () if theirs is None else (theirs,) if isinstance(theirs, str) else theirs:
            names[name + ours[len(prefix) :]] = ours
    if homeless:
        raise ValueError(
            f"{source!r} has no {', '.join(homeless)}, which this {type(module).__name__} holds; build it with "
            "the options that the reference has"
        )
    return names


def load_reference(module: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Copies the state of an original implementation into `module`, in place, in the module's dtype.

    Strict: all or nothing. A `module.` in front of every name is dropped; batch norm's step counter may be absent;
    tensors whose shapes differ by axes of size 1 (1x1 kernels) are reshaped.

    Args:
        module: built with the options of the reference.
        state: name to tensor, as `torch.load(path, weights_only=True)` or safetensors return it.
        source: one of `list_sources()`.

    Raises:
        ValueError: names every missing, unknown and misshapen entry. And as `reference_names`.
    """
    names = reference_names(module, source)
    flipped = {str(theirs) for theirs in _table(module, source).values() if isinstance(theirs, Transposed)}
    if state and all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
    own = module.state_dict()
    found: dict[str, Tensor] = {}
    wrong: list[str] = []
    for theirs, ours in names.items():
        if theirs not in state:
            continue
        value = state[theirs].detach()
        value = value.mT if theirs in flipped else value
        if _bulk(value) != _bulk(own[ours]):
            wrong.append(f"{theirs} is {tuple(value.shape)}, ours {tuple(own[ours].shape)}")
        elif ours in found and not torch.equal(found[ours].reshape(-1), value.reshape(-1)):
            wrong.append(f"{theirs} differs from another name of the same shared parameter")
        else:
            found.setdefault(ours, value)
    missing = [t for t, ours in names.items() if ours not in found and t not in state and _required(t)]
    useless = _IGNORED[source]
    extra = [n for n in state if n not in names and not any(fnmatchcase(n, pattern) for pattern in useless)]
    if missing or extra or wrong:
        raise ValueError(
            f"this state does not fit {type(module).__name__} as {source!r}"
            + _list("missing", missing) + _list("unknown", extra) + _list("wrong shape or value", wrong)
            + "; check the source and the options of the module"
        )  # fmt: skip
    with torch.no_grad():
        for ours, value in found.items():
            own[ours].copy_(value.reshape(own[ours].shape))


def _table(module: nn.Module, source: str) -> Table:
    _load()
    if source not in _SOURCES:
        raise unknown("source of weights", source, _SOURCES)
    kinds = _SOURCES[source]
    for kind in type(module).__mro__:
        if kind in kinds:
            return kinds[kind](module)
    covered = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(f"the source {source!r} covers {covered}, not {type(module).__name__}")


def _bulk(x: Tensor) -> list[int]:
    return [size for size in x.shape if size != 1]


def _required(name: str) -> bool:
    return name.rsplit(".", 1)[-1] != _COUNTER


def _list(what: str, names: Iterable[str]) -> str:
    joined = ", ".join(names)
    return f"; {what}: {joined}" if joined else ""
