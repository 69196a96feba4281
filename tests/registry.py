# SPDX-License-Identifier: Apache-2.0
"""Every registered module, built small: what the tests over the whole registry share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import widefield
from widefield.testing import Broken, find_broken
from widefield.testing.behaviour import gradients as gradients

NAMES = widefield.list_modules()
# Options that keep a module small at any number of channels; each is given where a module has it. One that is tied
# to a map size is built for 16 x 16; a test with other maps gives `size`, which the other modules do not have.
SMALL: dict[str, Callable[[int], Any]] = {
    "rank": lambda channels: 8,
    "out_channels": lambda channels: channels,
    "size": lambda channels: (16, 16),
}
# Documented options that make training move a buffer, and that start from fresh random numbers.
MOVING = {"bases": "online"}
RANDOM = {"bases": "random"}


def facts(name: str) -> widefield.Facts:
    return widefield.describe(name).facts


def having(*options: str, names: list[str] = NAMES) -> list[str]:
    """The modules that have all of these options."""
    return [name for name in names if set(options) <= set(widefield.describe(name).options)]


def build(name: str, channels: int = 64, *, gate: float | None = 1.0, seed: int = 0, **options: Any) -> Any:
    """A module with its gate open (None: as it starts), its parameters drawn from a seed.

    Options that the module does not have are left out.
    """
    accepted = widefield.describe(name).options
    wanted = {option: size(channels) for option, size in SMALL.items()} | options
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = widefield.create(name, channels, **{k: v for k, v in wanted.items() if k in accepted})
        if gate is not None:
            module.open_gate_(gate)
    return module


def warm(name: str) -> dict[str, float]:
    """Softer assignments: at the default temperature, on a small map, they have no derivative left to compare."""
    return {} if name.endswith("nmf") else {"temperature": 0.3}


def broken(name: str, check: str, space: tuple[int, int] = (7, 9), **options: Any) -> list[Broken]:
    """What one check of `widefield.testing` finds of a registered module."""
    fixed = {"size": space, "dropout": 0.0} | options
    return find_broken(lambda channels: build(name, channels, **fixed), checks=[check], space=space)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """The `x` of the field reports."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers that are no running statistics of a norm."""
    norms = [prefix for prefix, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    return {
        name: buffer.detach().clone()
        for name, buffer in module.named_buffers()
        if name.rpartition(".")[0] not in norms
    }


def moved(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    """The names of its buffers that changed."""
    return {name for name, buffer in own_buffers(module).items() if not torch.equal(buffer, before[name])}


def relative(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|, in float64."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())
