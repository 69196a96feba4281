# SPDX-License-Identifier: Apache-2.0
"""Names, options and facts: what the registry accepts, and how it refuses."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import widefield
from registry import NAMES
from widefield.core import registry


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry that forgets what the test adds."""
    widefield.list_modules()
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    yield
    registry._load.cache_clear()


class Doubled(widefield.Context):
    """Adds itself.

    Args:
        channels: of the input.
        times: how often.
    """

    def __init__(self, channels: int, *, times: int = 1) -> None:
        super().__init__(channels)
        self.times = times

    def mix(self, tokens: torch.Tensor, space: tuple[int, ...]) -> torch.Tensor:
        return tokens * self.times


def add(name: str, **facts: object) -> None:
    widefield.register(name, family="pooling", title="Doubled", paper="arXiv:0000.00000", year=2026, **facts)(
        Doubled
    )


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(widefield.UnknownName, match="Did you mean 'hamburger-nmf'") as caught:
        widefield.create("hamburgr-nmf", 8)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, KeyError)
    assert all(name in str(caught.value) for name in NAMES)
    assert not str(caught.value).startswith(("'", '"')), "KeyError would print the repr"


def test_an_unknown_option_names_those_that_exist() -> None:
    with pytest.raises(
        widefield.UnknownOption, match=r"unknown option of nonlocal 'innr'.*Did you mean 'inner'"
    ) as caught:
        widefield.create("nonlocal", 8, innr=4)
    for option in widefield.describe("nonlocal").options:
        assert option in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(widefield.UnknownOption, match=f"option of {name} 'no_such_option'"):
        widefield.create(name, 8, no_such_option=1)


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name: str) -> None:
    first, *rest = inspect.signature(registry.entry(name).build).parameters.values()
    assert first.name == "channels"
    assert {p.kind for p in rest} <= {inspect.Parameter.KEYWORD_ONLY}, "keyword-only after channels, no **kwargs"
    assert all(p.default is not inspect.Parameter.empty for p in rest), "every option has a default"


@pytest.mark.parametrize("name", NAMES)
def test_descriptions(name: str) -> None:
    found = widefield.describe(name)
    assert found.family in registry.FAMILIES
    assert found.title
    assert found.paper
    assert found.text
    assert "Shape" in found.text or name.startswith("hamburger"), "the docstring says the shape"
    text = str(found)
    assert text.startswith(f"{name}  ({found.family})")
    assert all(f"  {option} = " in text for option in found.options if option not in ("device", "dtype"))


def test_listing() -> None:
    assert sorted(NAMES) == NAMES
    assert widefield.list_modules("danet*") == ["danet", "danet-cam", "danet-pam"]
    assert widefield.list_modules(family="none") == ["none"]
    by_family = [name for family in registry.FAMILIES for name in widefield.list_modules(family=family)]
    assert sorted(by_family) == NAMES
    with pytest.raises(widefield.UnknownName, match=r"unknown family 'atention'.*Did you mean 'attention'"):
        widefield.list_modules(family="atention")


@pytest.mark.usefixtures("scratch")
def test_a_module_of_ones_own() -> None:
    add("doubled", linear_in_x=True)
    module = widefield.create("doubled", 4, times=3)
    x = torch.ones(1, 4, 2, 2)
    assert torch.equal(module(x), 4 * x)
    assert widefield.describe("doubled").options == {"times": 1}
    assert "doubled" in widefield.list_modules(family="pooling")


@pytest.mark.usefixtures("scratch")
def test_a_name_that_is_taken() -> None:
    with pytest.raises(ValueError, match=r"the name 'nonlocal' is taken by .*NonLocal.*choose another"):
        add("nonlocal")
    add("doubled")
    add("doubled")  # the same class again, as when a module is reloaded


@pytest.mark.usefixtures("scratch")
def test_what_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match="linear"):
        add("doubled", linear=True)
    with pytest.raises(widefield.UnknownName, match=r"unknown family 'poling'.*Did you mean 'pooling'"):
        widefield.register("doubled", family="poling", title="", paper="", year=2026)
    assert "doubled" not in widefield.list_modules()


@pytest.mark.usefixtures("scratch")
def test_third_parties_register_through_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def entry_points(*, group: str) -> list[SimpleNamespace]:
        asked.append(group)
        return [SimpleNamespace(load=lambda: add("third-party"))]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry._load.cache_clear()
    assert "third-party" in widefield.list_modules()
    assert isinstance(widefield.create("third-party", 4), nn.Module)
    assert asked == ["widefield.contexts"], "looked up once"
