# SPDX-License-Identifier: Apache-2.0
"""Modules by name, with the facts that the tests hold them to.

A module registers itself beside its class; third parties do so through the entry point group
`widefield.contexts` (each entry point names a module whose import registers).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from torch import nn

from widefield.core.errors import UnknownOption, unknown

FAMILIES = ("none", "attention", "decomposition", "graph", "pooling", "mixing", "sequence")


@dataclass(frozen=True)
class Facts:
    """What a module is. Each fact is a claim that a test checks: too modest fails as well as too bold.

    Attributes:
        fixed_size: tied to the map size it was built for.
        iterative: runs an optimiser inside; has the options `steps` and `gradient`.
        has_state: keeps buffers that training moves.
        random_start: can start from fresh random numbers (in training, when asked for).
        exact_gradient: the default backward is the exact derivative of the forward (gradcheck passes).
        linear_in_x: the context is linear in x.
        row_sum: what each row of the mixing matrix sums to; None where there is no such matrix.
        identity_at_init: a closed gate makes a new module return its input (or its ReLU).
        exportable: to ONNX. `torch.export`, and so compilation, takes every module.
        max_rank: option that bounds the rank over positions of the context (of the mixing matrix too, where there
            is one), for each head and each branch; None where nothing but the width of the context does.
        complexity: order of the multiply-adds in n, the number of positions (of a square map, for "n^1.5"); "1"
            where they do not grow.
        limits: check of `widefield.testing` to the reason why the mathematics forbids it, where no fact above says
            so; "dimensions" for a module that does not take one, two and three of them.
    """

    fixed_size: bool = False
    iterative: bool = False
    has_state: bool = False
    random_start: bool = False
    exact_gradient: bool = True
    linear_in_x: bool = False
    row_sum: float | None = None
    identity_at_init: bool = False
    exportable: bool = True
    max_rank: str | None = None
    complexity: str = "n"
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A registered module: how to build it and what is known of it."""

    name: str
    build: Callable[..., nn.Module]
    family: str
    title: str
    paper: str
    year: int
    facts: Facts

    @property
    def options(self) -> dict[str, Any]:
        """The keyword options with their defaults (`inspect.Parameter.empty` where one is required)."""
        parameters = list(inspect.signature(self.build).parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def tied_to(self, space: Iterable[int]) -> dict[str, Any]:
        """The option that ties a module of fixed size to maps of that size; none for others."""
        return {"size": list(space)} if self.facts.fixed_size else {}

    def check(self, options: Iterable[str]) -> None:
        """Raises `UnknownOption` for the first that the module does not have."""
        accepted = self.options
        for option in options:
            if option not in accepted:
                raise UnknownOption(str(unknown(f"option of {self.name}", option, accepted)))


@dataclass(frozen=True)
class Description:
    """What `describe` returns: everything a person needs to decide and to build."""

    name: str
    family: str
    title: str
    paper: str
    year: int
    facts: Facts
    options: dict[str, Any]
    text: str

    def __str__(self) -> str:
        source = f"{self.paper}, {self.year}" if self.year else self.paper
        shown = "\n".join(
            f"  {name} = {default!r}" for name, default in self.options.items() if name not in ("device", "dtype")
        )
        facts = "\n".join(f"  {f.name} = {getattr(self.facts, f.name)!r}" for f in fields(self.facts))
        return (
            f"{self.name}  ({self.family})\n{self.title}. {source}\n\n{self.text}\n\n"
            f"options\n{shown or '  none'}\n\nfacts\n{facts}"
        )


_ENTRIES: dict[str, Entry] = {}
_Build = TypeVar("_Build", bound=Callable[..., nn.Module])


def register(
    name: str, *, family: str, title: str, paper: str, year: int, **facts: Any
) -> Callable[[_Build], _Build]:
    """Registers the class (or function) below it under `name`.

    Args:
        name: lower case, words joined by hyphens.
        family: one of `FAMILIES`.
        title: the paper's title.
        paper: arXiv id or venue.
        year: of publication.
        facts: fields of `Facts`.

    Raises:
        ValueError: the name is taken or the family unknown. TypeError: a fact that does not exist.
    """
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    known = Facts(**facts)

    def add(build: _Build) -> _Build:
        if name in _ENTRIES and _ENTRIES[name].build is not build:
            raise ValueError(f"the name {name!r} is taken by {_ENTRIES[name].build!r}; choose another")
        _ENTRIES[name] = Entry(name, build, family, title, paper, year, known)
        return build

    return add


@cache
def _load() -> None:
    for room in ("attention", "decomposition", "graph", "pooling"):
        importlib.import_module(f"widefield.{room}")
    for point in entry_points(group="widefield.contexts"):
        point.load()


def entry(name: str) -> Entry:
    """The entry registered under `name`.

    Raises:
        UnknownName: with the nearest names.
    """
    _load()
    if name not in _ENTRIES:
        raise unknown("module", name, _ENTRIES)
    return _ENTRIES[name]


def create(name: str, channels: int, **options: Any) -> nn.Module:
    """Builds a registered module: `(b, channels, *space) -> (b, out_channels, *space)`.

    Args:
        name: one of `list_modules()`.
        channels: of the input.
        options: those that `describe(name)` lists.

    Raises:
        UnknownName: no such module. UnknownOption: no such option. ValueError: an option out of range.
    """
    found = entry(name)
    found.check(options)
    return found.build(channels, **options)


def list_modules(pattern: str = "*", *, family: str | None = None) -> list[str]:
    """Sorted names that match a glob, of one family if given.

    Raises:
        UnknownName: a family that does not exist.
    """
    _load()
    if family is not None and family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    return sorted(
        name for name, found in _ENTRIES.items() if fnmatchcase(name, pattern) and family in (None, found.family)
    )


def describe(name: str) -> Description:
    """Title, source, options with defaults, facts and the docstring of a registered module.

    Raises:
        UnknownName: no such module.
    """
    found = entry(name)
    text = inspect.getdoc(found.build) or ""
    return Description(name, found.family, found.title, found.paper, found.year, found.facts, found.options, text)
