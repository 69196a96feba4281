# SPDX-License-Identifier: Apache-2.0
"""`check_context(build)`: everything a module must stand to be put into somebody's network.

    from widefield.testing import check_context

    def test_my_module():
        check_context(lambda channels: MyModule(channels))

`build(channels)` returns a module `(b, channels, *space) -> (b, any, *space)`, any `torch.nn.Module`. All checks
run; one error lists every broken one with the input that broke it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from widefield.core.errors import unknown
from widefield.testing import behaviour, graphs, numbers, training  # noqa: F401  (register their checks)
from widefield.testing.subject import CHECKS, Broken, Build, Subject


class ContractError(AssertionError):
    """Raised by `check_context`.

    Attributes:
        broken: every broken promise, a `Broken` each.
    """

    def __init__(self, title: str, broken: Sequence[Broken]) -> None:
        self.broken = tuple(broken)
        names = list(dict.fromkeys(b.check for b in broken))
        lines = "\n".join(f"  {b}" for b in broken)
        super().__init__(f"{title} breaks {len(names)} of {len(CHECKS)} checks ({', '.join(names)}):\n{lines}")


def find_broken(
    build: Build,
    *,
    channels: int = 16,
    space: Sequence[int] = (7, 9),
    dims: Iterable[int] | None = None,
    checks: Collection[str] | None = None,
) -> list[Broken]:
    """Runs the checks and returns what is broken; arguments as `check_context`."""
    names = list(CHECKS) if checks is None else list(checks)
    for name in names:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    subject = Subject(build, channels, tuple(space), (len(space),))
    subject.check = names[0] if names else ""
    with subject.given(f"build({channels})"):
        claimed = getattr(subject.build(), "space_dims", None) if dims is None else tuple(dims)
        subject.dims = tuple(claimed) if claimed else (len(space),)
    if subject.broken:
        return subject.broken
    for name in names:
        subject.check = name
        CHECKS[name](subject)
    return subject.broken


def check_context(
    build: Build,
    *,
    channels: int = 16,
    space: Sequence[int] = (7, 9),
    dims: Iterable[int] | None = None,
    checks: Collection[str] | None = None,
    excused: Mapping[str, str] | None = None,
) -> None:
    """Holds a module to the contract.

    Args:
        build: from a number of channels to a fresh module, any `torch.nn.Module`.
        channels: to build it with.
        space: size of the map in most checks; for a module tied to a size, that size.
        dims: numbers of spatial dimensions that it takes (None: its attribute `space_dims`, or that of `space`).
        checks: names of `CHECKS` to run (None: all).
        excused: check to reason, for what the mathematics forbids; each must be broken indeed.

    Raises:
        ContractError: with every broken check, the input that broke it and what happened.
        UnknownName: a check that does not exist.
    """
    excused = dict(excused or {})
    for name in excused:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    broken = find_broken(build, channels=channels, space=space, dims=dims, checks=checks)
    failed = {b.check for b in broken}
    ran = set(CHECKS if checks is None else checks)
    wrong = [b for b in broken if b.check not in excused]
    wrong += [
        Broken(name, "all inputs", f"kept, although excused ({reason}); take the excuse away")
        for name, reason in excused.items()
        if name in ran and name not in failed
    ]
    if wrong:
        raise ContractError(getattr(build, "__name__", type(build).__name__), wrong)
