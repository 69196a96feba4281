# SPDX-License-Identifier: Apache-2.0
"""What a decomposition is, apart from how it is differentiated.

    X (c x n)  ~  D C^T        D: bases (c x r), C: codes (n x r)

A method has a start, a step and a finish, all pure. `decompose` runs the step through the fixed-point loop;
which gradient is taken is chosen there and nowhere else.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from widefield.core.errors import unknown
from widefield.core.status import Status
from widefield.implicit.fixed_point import GRADIENTS, fixed_point

State = tuple[Tensor, ...]

CODES_ONLY = "codes_only"
HAM_GRADIENTS = (*GRADIENTS, CODES_ONLY)


class Factors(NamedTuple):
    """A decomposition and how the iteration went.

    Attributes:
        bases: `(b, c, r)`, D.
        codes: `(b, n, r)`, C.
        status: None unless it was asked for.
    """

    bases: Tensor
    codes: Tensor
    status: Status | None = None


def reconstruct(bases: Tensor, codes: Tensor) -> Tensor:
    """`D C^T`: `(b, c, r)`, `(b, n, r)` to `(b, c, n)`, of rank r at most."""
    return bases @ codes.mT


def similarities(x: Tensor, bases: Tensor) -> Tensor:
    """`X^T D`: `(b, c, n)`, `(b, c, r)` to `(b, n, r)`."""
    # Differentiated, the transposed product: its gradient for X then lies in memory as X does.
    return (bases.mT @ x).mT if torch.is_grad_enabled() else x.mT @ bases


class Method(Protocol):
    """An optimiser for `X ~ D C^T`; frozen, without tensors of its own."""

    @property
    def nonnegative(self) -> bool:
        """Whether X must not be negative."""
        ...

    def draw(self, uniform: Tensor, /) -> Tensor:
        """Turns numbers in (0, 1), `(..., c, r)`, into starting bases."""
        ...

    def prepare(self, x: Tensor, /) -> Any:
        """What every step wants to know of x, computed once; x itself for most."""
        ...

    def start(self, prepared: Any, bases: Tensor, /) -> State: ...

    def step(self, state: State, prepared: Any, /) -> State: ...

    def finish(self, state: State, prepared: Any, /) -> Factors:
        """The final codes: differentiable in the state and in x."""
        ...

    def finish_codes_only(self, state: State, prepared: Any, /) -> Factors:
        """The final codes with the state, and whatever else the released code holds constant, held constant."""
        ...

    def step_cost(self, c: int, n: int, r: int) -> int: ...

    def finish_cost(self, c: int, n: int, r: int) -> int: ...

    def start_cost(self, c: int, n: int, r: int) -> int: ...


def decompose(
    method: Method,
    x: Tensor,
    bases: Tensor,
    *,
    steps: int = 6,
    gradient: str = "one_step",
    terms: int = 5,
    watch: bool = False,
) -> Factors:
    """Factors of x, `(b, c, n)`, found in `steps` steps from the given bases, `(b, c, r)`.

    Args:
        method: which decomposition.
        x: the matrix; not negative where the method demands it.
        bases: where to start.
        steps: of the optimiser; each updates codes and bases once. Zero returns codes for the start.
        gradient: "one_step" (the last step over the whole state, as the pseudo-code of arXiv:2109.04553),
            "unrolled", "neumann", "implicit", or "codes_only": bases and codes found by the steps are
            constants and only the closing update of the codes is differentiated, as the released code does.
            Then no gradient passes from one position's output to another's input.
            The default is "one_step" by measurement: on the embedded scenes "codes_only" hardly beats a network
            without context, "unrolled" is better with NMF and does not train with CD at temperature 0.01, and its
            memory grows with the steps; "one_step" trains all of them (table in the README, and how to repeat it).
        terms: of the Neumann series.
        watch: fill in the status.

    Raises:
        UnknownName: no such gradient. ValueError: shapes that do not fit.
    """
    if gradient not in HAM_GRADIENTS:
        raise unknown("gradient", gradient, HAM_GRADIENTS)
    if x.dim() != 3 or bases.dim() != 3 or bases.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"x must be (b, c, n) and bases (b, c, r) with the same b and c, "
            f"got {tuple(x.shape)} and {tuple(bases.shape)}"
        )
    prepared = method.prepare(x)
    if gradient == "unrolled":
        start = method.start(prepared, bases)
    else:
        with torch.no_grad():
            start = method.start(prepared, bases)
    if gradient == CODES_ONLY:
        with torch.no_grad():
            state, status, _ = fixed_point(method.step, start, prepared, steps=steps, watch=watch)
        return method.finish_codes_only(state, prepared)._replace(status=status)
    state, status, _ = fixed_point(
        method.step, start, prepared, steps=steps, gradient=gradient, terms=terms, watch=watch
    )
    return method.finish(state, prepared)._replace(status=status)
