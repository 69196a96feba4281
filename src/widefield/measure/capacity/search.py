# SPDX-License-Identifier: Apache-2.0
"""Which size to try next, for one seed: galloping and bisection, or growing step by step as published.

Neither knows of networks: they are asked for a size, and told whether it was fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


class Search(Protocol):
    """Asks for sizes, one at a time.

    Attributes:
        fitted: the largest size fitted so far; 0 before any.
        ceiling: no larger size exists.
    """

    fitted: int
    ceiling: int

    def next(self) -> tuple[int, int] | None:
        """A size, and how often it was tried before; None when it is found."""
        ...

    def tell(self, size: int, fitted: bool) -> None:
        """What came of the last one asked for."""
        ...

    def patient(self, attempt: int) -> bool:
        """Whether the trainings of an attempt run to the end of their budget even where there is little hope."""
        ...

    def settings(self) -> dict[str, Any]:
        """What was chosen, for records."""
        ...

    def fresh(self, ceiling: int) -> Search:
        """A new search with these settings, up to a ceiling."""
        ...


@dataclass
class Gallop:
    """Doubles until a size fails, halves the bracket on a logarithmic scale, and tries the failed edge again.

    Whether a size is fitted is noisy, and not always monotone. The smallest failed size above the largest fitted
    one is therefore tried from new initialisations, by trainings that are not given up early; if it is fitted
    after all, the search goes on above it.

    Attributes:
        start: the first size.
        growth: factor of the gallop.
        tolerance: the bracket is closed to this share of the fitted size; 0 finds the size exactly.
        repeats: how often the failed edge is tried again.
        ceiling: no larger size exists; `capacity` fills it in.

    Raises:
        ValueError: a number out of range.
    """

    start: int = 8
    growth: float = 2.0
    tolerance: float = 0.05
    repeats: int = 1
    ceiling: int = 0
    fitted: int = field(default=0, init=False)
    failures: dict[int, int] = field(default_factory=dict, init=False)
    upset: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.start < 1 or self.growth <= 1 or not 0 <= self.tolerance < 1 or self.repeats < 0:
            raise ValueError(
                "start must be at least 1, growth above 1, tolerance in [0, 1), repeats not negative; got "
                f"{self.start}, {self.growth}, {self.tolerance}, {self.repeats}"
            )

    def settings(self) -> dict[str, Any]:
        """What was chosen, for records."""
        return {"method": "gallop", "start": self.start, "growth": self.growth, "tolerance": self.tolerance,
                "repeats": self.repeats}  # fmt: skip

    def fresh(self, ceiling: int) -> Gallop:
        """A new search with these settings."""
        return replace(self, ceiling=ceiling)

    def next(self) -> tuple[int, int] | None:
        if self.fitted >= self.ceiling:
            return None
        failed = min((size for size in self.failures if size > self.fitted), default=None)
        if failed is None:
            return min(max(self._onward(), self.fitted + 1), self.ceiling), 0
        if failed - self.fitted > self.width:
            middle = round(math.sqrt(max(self.fitted, 1) * failed))
            return min(max(middle, self.fitted + 1), failed - 1), 0
        tries = self.failures[failed]
        return (failed, tries) if tries <= self.repeats else None

    def tell(self, size: int, fitted: bool) -> None:
        if not fitted:
            self.failures[size] = self.failures.get(size, 0) + 1
            return
        # An edge that fitted after all: from here the gallop starts again, with short steps.
        self.upset += self.upset > 0 or size in self.failures
        self.fitted = max(self.fitted, size)

    def patient(self, attempt: int) -> bool:
        """The edge is settled by whole trainings; what only narrows the bracket may end early."""
        return attempt > 0

    @property
    def width(self) -> int:
        """To which the bracket is closed."""
        return max(1, math.floor(self.tolerance * self.fitted))

    def _onward(self) -> int:
        if self.upset:
            return self.fitted + self.width * 2 ** (self.upset - 1)
        return self.start if not self.fitted else math.ceil(self.fitted * self.growth)


@dataclass
class StepByStep:
    """The published protocol: a larger set each time, until the first failure.

    Attributes:
        start: the first size.
        step: how many samples are added.
        ratio: by which the set grows, if that is more than the step.
        repeats: how often a size that failed is tried again before it ends the search; 0 in the publication.
        ceiling: no larger size exists; `capacity` fills it in.

    Raises:
        ValueError: a number out of range.
    """

    start: int = 1
    step: int = 1
    ratio: float = 1.0
    repeats: int = 0
    ceiling: int = 0
    fitted: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.start < 1 or self.step < 1 or self.ratio < 1 or self.repeats < 0:
            raise ValueError(
                "start, step and ratio must be at least 1, repeats not negative; got "
                f"{self.start}, {self.step}, {self.ratio}, {self.repeats}"
            )

    def settings(self) -> dict[str, Any]:
        """What was chosen, for records."""
        return {"method": "step by step", "start": self.start, "step": self.step, "ratio": self.ratio,
                "repeats": self.repeats}  # fmt: skip

    def fresh(self, ceiling: int) -> StepByStep:
        """A new search with these settings."""
        return replace(self, ceiling=ceiling)

    def next(self) -> tuple[int, int] | None:
        if self.failed > self.repeats or self.fitted >= self.ceiling:
            return None
        larger = max(self.fitted + self.step, math.floor(self.fitted * self.ratio))
        return min(self.start if not self.fitted else larger, self.ceiling), self.failed

    def patient(self, attempt: int) -> bool:
        return True

    def tell(self, size: int, fitted: bool) -> None:
        self.failed = 0 if fitted else self.failed + 1
        self.fitted = size if fitted else self.fitted


def half(sizes: list[int], fractions: list[float], weights: list[float] | None = None) -> float:
    """Where a falling curve through the fractions that fit crosses one half; the curve is isotonic.

    Args:
        sizes: ascending.
        fractions: of the seeds that fit each.
        weights: of the sizes.
    """
    values = isotonic(fractions, weights or [1.0] * len(fractions))
    above = [i for i, value in enumerate(values) if value >= 0.5]
    if not above:
        return 0.0
    i = above[-1]
    if i + 1 == len(sizes) or values[i] == 0.5:
        return float(sizes[i])
    share = (values[i] - 0.5) / (values[i] - values[i + 1])
    return math.exp(math.log(sizes[i]) + share * (math.log(sizes[i + 1]) - math.log(sizes[i])))


def isotonic(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence in least squares that never rises, by pooling neighbours that do."""
    pools: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            b, a = pools.pop(), pools.pop()
            total = a[1] + b[1]
            pools.append([(a[0] * a[1] + b[0] * b[1]) / total, total, a[2] + b[2]])
    return [value for value, _, count in pools for _ in range(int(count))]
