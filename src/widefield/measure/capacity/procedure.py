# SPDX-License-Identifier: Apache-2.0
"""How a network is trained when its capacity is measured: the part of the measure that is not the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from widefield.core.errors import unknown

OPTIMIZERS = ("sgd", "gd", "adam", "adamw", "shampoo", "lbfgs")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Procedure:
    """A training procedure. A set counts as fitted when any of its trainings has every sample right at a check.

    The published protocol leaves most of these numbers open; what is chosen here is printed with every result.

    Attributes:
        optimizer: "sgd" (momentum), "gd" (the same on the whole set), "adam", "adamw", "shampoo", or "lbfgs"
            (the whole set; for problems that have to be solved exactly).
        rates: learning rates, each tried; the best counts.
        restarts: fresh initialisations of each rate.
        updates: budget of a training; with `budget="passes"` it is the number of passes over the set instead.
        budget: equal updates for sets of all sizes, or equal passes. The comparison of optimisers depends on it.
        batch_size: a set that is smaller is trained whole.
        schedule: "cosine" to zero, or "constant".
        momentum: of sgd and gd.
        weight_decay: 0 in the published protocol.
        check_every: updates between two looks at the whole set.
        tolerance: a regression is fitted when no target is missed by more than this share of their standard
            deviation.
        hopeless: a training is given up as failed when, at a share f of its budget from a quarter on, more than
            two samples and more than `hopeless * 4 (1 - f)^2` of them are wrong, or when it takes far longer than
            the largest set fitted so far; None never. In pilots no training that was over half its budget and then
            fitted had come near this line; and the edge is settled by whole trainings in any case.
        flat: the loss no longer falls when its relative fall over the last fifth of the checks is below this.
        gradient: the gradient vanishes when its norm is below this share of its norm at the start.
        curvature: a minimum has no Hessian eigenvalue below minus this share of the largest in magnitude.
        dtype: "float32" or "float64".

    Raises:
        ValueError: a number out of range. UnknownName: no such optimiser, schedule, budget or dtype.
    """

    optimizer: str = "adam"
    rates: tuple[float, ...] = (0.01, 0.003)
    restarts: int = 1
    updates: int = 2000
    budget: Literal["updates", "passes"] = "updates"
    batch_size: int = 64
    schedule: Literal["cosine", "constant"] = "cosine"
    momentum: float = 0.9
    weight_decay: float = 0.0
    check_every: int = 50
    tolerance: float = 1e-3
    hopeless: float | None = 0.15
    flat: float = 0.01
    gradient: float = 0.01
    curvature: float = 0.01
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        for what, given, accepted in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("budget", self.budget, ("updates", "passes")),
            ("schedule", self.schedule, ("cosine", "constant")),
            ("dtype", self.dtype, tuple(DTYPES)),
        ):
            if given not in accepted:
                raise unknown(what, given, accepted)
        for what in ("restarts", "updates", "batch_size", "check_every"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} must be at least 1, got {getattr(self, what)}")
        if not self.rates or any(not 0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates must be positive and finite, at least one; got {self.rates}")
        if len(set(self.rates)) != len(self.rates):
            raise ValueError(f"each learning rate once, got {self.rates}")
        if self.weight_decay < 0 or not 0 <= self.momentum < 1 or self.tolerance <= 0:
            raise ValueError(
                f"weight_decay must not be negative, momentum in [0, 1), tolerance positive; got "
                f"{self.weight_decay}, {self.momentum}, {self.tolerance}"
            )
        if self.hopeless is not None and not 0 < self.hopeless <= 1:
            raise ValueError(f"hopeless is a share of wrong samples in (0, 1], or None; got {self.hopeless}")

    @property
    def whole_set(self) -> bool:
        """Whether every update sees the whole set."""
        return self.optimizer in ("gd", "lbfgs")

    def batch(self, size: int) -> int:
        """Samples of an update, for a set of a size."""
        return size if self.whole_set else min(self.batch_size, size)

    def steps(self, size: int) -> int:
        """Updates of a training, for a set of a size."""
        return self.updates if self.budget == "updates" else math.ceil(self.updates * size / self.batch(size))

    def factor(self, step: int, steps: int) -> float:
        """Of the learning rate at a step."""
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))

    def allowed(self, step: int, steps: int, size: int) -> float:
        """How many samples of a set may be wrong at a step of a training that is not given up."""
        done = step / steps
        if self.hopeless is None or done < 0.25:
            return size
        return max(2.0, self.hopeless * 4 * (1 - done) ** 2 * size)

    def as_dict(self) -> Mapping[str, Any]:
        """The fields, for records."""
        return asdict(self) | {"rates": list(self.rates)}
