# SPDX-License-Identifier: Apache-2.0
"""A module under test, what a check is, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Build = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Broken:
    """One promise that was not kept.

    Attributes:
        check: its name in `CHECKS`.
        given: the input, in words.
        found: what happened instead.
    """

    check: str
    given: str
    found: str

    def __str__(self) -> str:
        return f"{self.check}: {self.given}: {self.found}"


@dataclass
class Subject:
    """A module under test and what has been found of it so far.

    Attributes:
        maker: from a number of channels to a fresh module.
        channels: of the inputs.
        space: the map of most checks.
        dims: numbers of spatial dimensions that the module claims.
    """

    maker: Build
    channels: int
    space: tuple[int, ...]
    dims: tuple[int, ...]
    check: str = ""
    broken: list[Broken] = field(default_factory=list)

    def build(self) -> nn.Module:
        """A fresh module; its parameters are drawn from a seed, so two are equal."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.maker(self.channels)

    def randn(self, *shape: int, seed: int = 0) -> Tensor:
        """Normal numbers; without a shape those of a batch of two maps."""
        shape = shape or (2, self.channels, *self.space)
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    @contextmanager
    def given(self, words: str) -> Iterator[None]:
        """Whatever fails inside is noted as broken by this input; the next input is tried all the same."""
        try:
            yield
        except Exception as error:
            text = " ".join(str(error).split())
            found = text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text}"
            self.broken.append(Broken(self.check, words, found[:400]))


Check = Callable[[Subject], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Registers the function below it under its own name; its docstring is the promise."""
    CHECKS[function.__name__] = function
    return function
