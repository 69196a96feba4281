# SPDX-License-Identifier: Apache-2.0
"""Blocks of tokens by name, with what their papers put around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from widefield.core.errors import UnknownOption, unknown
from widefield.mixing.layers import Block, layer_norm


@dataclass(frozen=True)
class MixerEntry:
    """A block, and how its network looks around it.

    Attributes:
        name: of the mixer.
        build: its class: `(width, ...)`, and `(width, tokens, ...)` where the size is fixed.
        title, paper, year: the publication.
        fixed_size: its weights belong to one number of tokens.
        prefix_tokens: how many tokens stand in front of the patches; 0: the head reads the mean of the patches.
        positions: "table" (a learned vector a token), "map" (as a map, interpolated at other grids, and a vector a
            prefix token) or "none".
        growing_drop_path: whether stochastic depth grows from block to block, or is the same in each.
        zero_head: whether the classifier starts at zero.
        norm: behind the last block, built for a width.
    """

    name: str
    build: Callable[..., Block]
    title: str
    paper: str
    year: int
    fixed_size: bool
    prefix_tokens: int
    positions: str
    growing_drop_path: bool = True
    zero_head: bool = False
    norm: Callable[[int], nn.Module] = layer_norm

    @property
    def options(self) -> dict[str, Any]:
        """The keyword options with their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


_MIXERS: dict[str, MixerEntry] = {}
_Class = TypeVar("_Class", bound=Callable[..., Block])


def register_mixer(
    name: str,
    *,
    title: str,
    paper: str,
    year: int,
    fixed_size: bool,
    prefix_tokens: int,
    positions: str,
    growing_drop_path: bool = True,
    zero_head: bool = False,
    norm: Callable[[int], nn.Module] = layer_norm,
) -> Callable[[_Class], _Class]:
    """Registers the block class below it; arguments as the attributes of `MixerEntry`.

    Raises:
        ValueError: the name is taken.
    """

    def add(build: _Class) -> _Class:
        if name in _MIXERS and _MIXERS[name].build is not build:
            raise ValueError(f"the name {name!r} is taken by {_MIXERS[name].build!r}; choose another")
        _MIXERS[name] = MixerEntry(
            name,
            build,
            title,
            paper,
            year,
            fixed_size,
            prefix_tokens,
            positions,
            growing_drop_path,
            zero_head,
            norm,
        )
        return build

    return add


def list_mixers() -> list[str]:
    """The names that `create_block` takes, sorted."""
    import_module("widefield.mixing")
    return sorted(_MIXERS)


def mixer_entry(name: str) -> MixerEntry:
    """What is known of a mixer.

    Raises:
        UnknownName: with the nearest names.
    """
    if name not in list_mixers():
        raise unknown("mixer", name, _MIXERS)
    return _MIXERS[name]


def create_block(name: str, width: int, tokens: int, **options: Any) -> Block:
    """A block by name: `(b, n, width) -> (b, n, width)`.

    Args:
        name: one of `list_mixers()`.
        width: of a token.
        tokens: n, prefix tokens included; blocks that take any n ignore it.
        options: of the class.

    Raises:
        UnknownName: no such mixer. UnknownOption: no such option. ValueError: an option out of range.
    """
    entry = mixer_entry(name)
    for option in options:
        if option not in entry.options:
            raise UnknownOption(str(unknown(f"option of {name}", option, entry.options)))
    return entry.build(width, tokens, **options) if entry.fixed_size else entry.build(width, **options)
