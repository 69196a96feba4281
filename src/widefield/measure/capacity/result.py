# SPDX-License-Identifier: Apache-2.0
"""What a measurement of capacity found: every probe, the size of each seed, and the mean with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from widefield.core.statistics import Estimate, estimate

from .search import half


@dataclass(frozen=True)
class Probe:
    """One set, tried: all its rates and restarts.

    Attributes:
        seed, size: of the set.
        attempt: how often it was tried before.
        fitted: whether a training had every sample right.
        wrong: the smallest share of wrong samples that any training reached.
        rate: of the training that fitted, or came nearest.
        ending: of that training; "conflicting labels" where no training was needed to know.
        steps: updates of all its trainings together.
        updates: of the training that fitted, or came nearest.
        convergence: of the nearest training, where the set was not fitted; see `Convergence`.
    """

    seed: int
    size: int
    attempt: int
    fitted: bool
    wrong: float
    rate: float
    ending: str
    steps: int
    updates: int
    convergence: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields, for records."""
        return asdict(self)


@dataclass(frozen=True)
class SeedCapacity:
    """The answer of one seed.

    Attributes:
        seed: of the order, the variant and the initialisations.
        size: the largest fitted set.
        limit: "" where a larger set failed; "data" where every sample was fitted, so that the capacity is at least
            this; "labels" where the next set holds equal inputs with different labels, which nothing can fit.
        edge: verdict of the convergence checks on the smallest failed set above, or how its training ended where
            nothing was checked; "" if none was trained.
    """

    seed: int
    size: int
    limit: str
    edge: str


@dataclass(frozen=True)
class Capacity:
    """Effective Model Complexity of a network under a procedure on samples.

    Attributes:
        parameters: that are trained.
        seeds: the answer of each.
        probes: everything that was tried, in order.
        samples: how many there are.
        num_classes: 0 for a regression.
        setting: procedure, search, variant; everything that was chosen.
        notes: what a reader has to know.
    """

    parameters: int
    seeds: tuple[SeedCapacity, ...]
    probes: tuple[Probe, ...]
    samples: int
    num_classes: int
    setting: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The largest fitted set of each seed."""
        return tuple(seed.size for seed in self.seeds)

    @property
    def logarithm(self) -> Estimate | None:
        """Mean and interval of the natural logarithms; None where a seed fitted nothing at all."""
        return estimate([math.log(size) for size in self.sizes]) if min(self.sizes) > 0 else None

    @property
    def mean(self) -> float:
        """Geometric mean over seeds; 0 where a seed fitted nothing."""
        found = self.logarithm
        return math.exp(found.mean) if found else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the mean over seeds; None for one seed, or where a seed fitted nothing."""
        found = self.logarithm
        if found is None or found.half_width is None:
            return None
        return math.exp(found.mean - found.half_width), math.exp(found.mean + found.half_width)

    @property
    def median(self) -> float:
        """Over seeds."""
        return float(statistics.median(self.sizes))

    @property
    def censored(self) -> bool:
        """Whether some seed fitted all data, so that the capacity is at least the mean."""
        return any(seed.limit == "data" for seed in self.seeds)

    @property
    def steps(self) -> int:
        """Updates of all trainings together."""
        return sum(probe.steps for probe in self.probes)

    @property
    def per_parameter(self) -> float:
        """Parameter efficiency."""
        return self.mean / self.parameters

    @property
    def bits_per_parameter(self) -> float | None:
        """`n log2 K / P`: what the fitted labels say, if each is equally likely; None for a regression."""
        return self.per_parameter * math.log2(self.num_classes) if self.num_classes else None

    def curve(self) -> list[tuple[int, float]]:
        """The share of the seeds that fit each size that was tried.

        A seed that did not try a size is taken to fit it if it fitted a larger one.
        """
        fitted: dict[tuple[int, int], bool] = {}
        for probe in self.probes:
            key = (probe.seed, probe.size)
            fitted[key] = fitted.get(key, False) or probe.fitted
        curve = []
        for size in sorted({probe.size for probe in self.probes}):
            votes = [fitted.get((seed.seed, size), size <= seed.size) for seed in self.seeds]
            curve.append((size, sum(votes) / len(votes)))
        return curve

    @property
    def half(self) -> float:
        """Where the curve, made falling, crosses one half."""
        curve = self.curve()
        return half([size for size, _ in curve], [share for _, share in curve]) if curve else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        interval = self.interval
        return {
            "parameters": self.parameters,
            "capacity": {
                "mean": self.mean, "interval": list(interval) if interval else None, "median": self.median,
                "half": self.half, "values": list(self.sizes), "censored": self.censored,
                "per_parameter": self.per_parameter, "bits_per_parameter": self.bits_per_parameter,
            },
            "seeds": [asdict(seed) for seed in self.seeds],
            "probes": [probe.as_dict() for probe in self.probes],
            "samples": self.samples, "num_classes": self.num_classes, "steps": self.steps,
            "setting": dict(self.setting), "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        at_least = "at least " if self.censored else ""
        interval = self.interval
        span = f" ({interval[0]:.0f} to {interval[1]:.0f})" if interval else ""
        found = f"{at_least}{self.mean:.0f}{span} samples, {self.per_parameter:.2f} a parameter"
        return "; ".join([f"{found}, {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}", *self.notes])
