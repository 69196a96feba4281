# SPDX-License-Identifier: Apache-2.0
"""How an iteration went, as a value: nobody has to guess whether a solver converged."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


class Outcome(IntEnum):
    """The four ways an iteration can end, per sample."""

    CONVERGED = 0
    BUDGET_SPENT = 1
    DIVERGED = 2
    NON_FINITE = 3

    @property
    def meaning(self) -> str:
        """What it says, and what to do about it."""
        return {
            Outcome.CONVERGED: "the residual is below the tolerance",
            Outcome.BUDGET_SPENT: "the residual still shrinks: allow more steps or a larger tolerance",
            Outcome.DIVERGED: "the residual grew: the map is not a contraction here; damp it or scale its input",
            Outcome.NON_FINITE: "the iterate is not finite: check the input and the map",
        }[self]


class Status(NamedTuple):
    """Per sample: how the iteration ended, its last relative residual, the steps it used.

    Attributes:
        outcome: `(b,)` int64, values of `Outcome`.
        residual: `(b,)` |z_t - z_{t-1}| / |z_t| at the last step.
        steps: `(b,)` int64, steps used until this sample stopped.
    """

    outcome: Tensor
    residual: Tensor
    steps: Tensor

    @property
    def converged(self) -> Tensor:
        """`(b,)` bool."""
        return self.outcome == Outcome.CONVERGED

    def summary(self) -> str:
        """One line for a training log."""
        counts = {o.name.lower(): int((self.outcome == o).sum()) for o in Outcome}
        said = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
        finite = self.residual[torch.isfinite(self.residual)]
        worst = f"{float(finite.max()):.1e}" if finite.numel() else "not finite"
        return f"{said}; worst residual {worst}; at most {int(self.steps.max())} steps"
