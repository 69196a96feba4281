# SPDX-License-Identifier: Apache-2.0
"""Mean, interval and verdict over seeds. A difference inside the interval is called none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from widefield.core.extras import require

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with the half-width of its 95% Student interval (None for a single seed)."""

    mean: float
    half_width: float | None
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and interval of independent values.

    Raises:
        ValueError: no value.
    """
    if not values:
        raise ValueError("an estimate needs at least one value, got none")
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, 1)
    quantile = float(require("scipy.stats", "tasks").t.ppf(0.5 + CONFIDENCE / 2, count - 1))
    return Estimate(mean, quantile * statistics.stdev(values) / math.sqrt(count), count)


def verdict(difference: Estimate) -> str:
    """ "better", "worse" or "no difference", by the interval of a difference; "cannot tell" from one seed."""
    if difference.half_width is None:
        return "cannot tell"
    if abs(difference.mean) <= difference.half_width:
        return "no difference"
    return "better" if difference.mean > 0 else "worse"
