# SPDX-License-Identifier: Apache-2.0
"""The rows of a comparison as the page uses them: checked, ordered, with what is missing made None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import units

VERDICTS = ("better", "no difference", "worse", "cannot tell")
_SHOWN_AT_FIRST = 8
_LEADERS = 5


@dataclass(frozen=True)
class Cost:
    """One kind of cost: the key in a row, its name, what it means, and how a value reads."""

    key: str
    name: str
    meaning: str
    text: Callable[[float | None], str]


COSTS = (
    Cost("multiply_adds", "Multiply-adds", "multiply-adds of the module", units.count),
    Cost("parameters", "Parameters", "parameters of the module", units.count),
    Cost("activation_memory_forward", "Memory, inference", "activation memory, inference", units.memory),
    Cost("activation_memory_training", "Memory, training", "activation memory, training step", units.memory),
    Cost("latency_forward", "Time, inference", "time of an inference", units.duration),
    Cost("latency_training", "Time, training", "time of a training step", units.duration),
)


@dataclass(frozen=True)
class Difference:
    """Paired difference to the baseline over the seeds."""

    mean: float | None
    half_width: float | None
    verdict: str


@dataclass(frozen=True)
class Row:
    """One module of the comparison; None stands for what was not measured or is not finite.

    Attributes:
        index: place in the table as it is first shown; also names the module's colour.
        label: the module's name, with its gradient where a module occurs more than once.
        values: mIoU of each seed that has one.
        costs: by the keys of `COSTS`.
        source: the row as given, for what is only printed.
    """

    index: int
    label: str
    module: str
    family: str
    status: str
    values: tuple[float, ...]
    mean: float | None
    half_width: float | None
    accuracy: float | None
    accuracy_half_width: float | None
    difference: Difference | None
    costs: dict[str, float | None]
    source: dict[str, Any]

    @property
    def finished(self) -> bool:
        """The run is complete and has a quality."""
        return self.status == "finished" and self.mean is not None

    @property
    def short(self) -> str:
        """The label where room is scarce: `hamburger-nmf codes_only` for `hamburger-nmf+gradient=codes_only`."""
        return self.label.replace("+gradient=", " ").replace("+", " ")

    @property
    def colour(self) -> str:
        """The style property that holds the module's colour."""
        return f"--m{self.index}"

    def cost_text(self, cost: Cost) -> str:
        """A cost with its unit; with a sign where it is a lower bound."""
        value = self.costs[cost.key]
        bound = value is not None and cost.key == "multiply_adds" and bool(self.source.get("lower_bound"))
        return ("≥ " if bound else "") + cost.text(value)


def read_rows(summary: dict[str, Any]) -> list[Row]:
    """The rows, best mean first; unfinished ones and failures come last.

    Raises:
        TypeError, ValueError: the summary is no dict, or a row names no module.
    """
    if not isinstance(summary, dict):
        raise TypeError(f"a report needs the summary of a comparison, a dict, got {type(summary).__name__}")
    given = summary.get("rows") or []
    for place, row in enumerate(given):
        if not isinstance(row, dict) or not row.get("module"):
            raise ValueError(f"row {place} of the summary names no module; accepted is a dict with 'module'")
    names = Counter(str(row["module"]) for row in given)

    def rank(row: dict[str, Any]) -> tuple[bool, float]:
        mean = units.finite(row.get("mean"))
        return row.get("status", "finished") != "finished" or mean is None, -(mean or 0.0)

    return [_read(row, index, names) for index, row in enumerate(sorted(given, key=rank))]


def _read(row: dict[str, Any], index: int, names: Counter[str]) -> Row:
    module, gradient = str(row["module"]), row.get("gradient")
    values = [units.finite(value) for value in row.get("values") or []]
    return Row(
        index=index,
        label=f"{module} ({gradient})" if names[module] > 1 and gradient else module,
        module=module,
        family=str(row.get("family") or "other"),
        status=str(row.get("status") or "finished"),
        values=tuple(value for value in values if value is not None),
        mean=units.finite(row.get("mean")),
        half_width=units.finite(row.get("half_width")),
        accuracy=units.finite(row.get("accuracy_mean")),
        accuracy_half_width=units.finite(row.get("accuracy_half_width")),
        difference=_difference(row.get("difference")),
        costs={cost.key: units.finite(row.get(cost.key)) for cost in COSTS},
        source=row,
    )


def _difference(given: dict[str, Any] | None) -> Difference | None:
    if not given:
        return None
    return Difference(
        units.finite(given.get("mean")),
        units.finite(given.get("half_width")),
        str(given.get("verdict") or "cannot tell"),
    )


def clear_best(rows: Sequence[Row], value: Callable[[Row], tuple[float | None, float | None]]) -> int | None:
    """Index of the row whose whole interval lies above all others'; None if there is no such row.

    Args:
        value: mean and half width of a row.
    """
    known = [(row.index, *value(row)) for row in rows if row.finished]
    spans = [
        (mean - half, mean + half, index) for index, mean, half in known if mean is not None and half is not None
    ]
    # A row without an interval could be anywhere, so nothing is known to lie above it.
    if len(spans) < 2 or len(spans) < len(known):
        return None
    spans.sort(reverse=True)
    return spans[0][2] if all(spans[0][0] > high for _, high, _ in spans[1:]) else None


def shown_at_first(rows: Sequence[Row], baseline: str) -> set[int]:
    """Modules drawn before the reader chooses: all of a few, else the leaders and the baseline."""
    usable = [row for row in rows if row.status != "failed"]
    if len(usable) <= _SHOWN_AT_FIRST:
        return {row.index for row in usable}
    return {row.index for row in usable[:_LEADERS]} | {row.index for row in usable if row.module == baseline}
