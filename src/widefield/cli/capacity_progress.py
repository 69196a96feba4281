# SPDX-License-Identifier: Apache-2.0
"""Progress bars of capacities: all measurements, and the round of trainings under way."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from widefield.lab.capacity import Measurement, Watched


class CapacityBars:
    """Two bars on a terminal; a line a measurement where there is none."""

    def __init__(self, console: Console, measurements: int) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=console, disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        self.all = self.bars.add_task("measurements", total=measurements, note="")
        self.one = self.bars.add_task("", total=1, note="")
        self.last: Measurement | None = None

    def __enter__(self) -> CapacityBars:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def watch(self, seen: Watched) -> None:
        """Told after every look at the sets that are being fitted."""
        looking = seen.looking
        if seen.measurement != self.last:
            self.last = seen.measurement
            if not self.console.is_terminal:
                self.console.print(f"{seen.place + 1} of {seen.total}: {seen.measurement.title}", highlight=False)
        sizes, fitted = sorted(looking.sizes.values()), sorted(looking.fitted.values())
        note = (
            f"fitted {_span(fitted)}, trying {_span(sizes)}; {looking.finished} of {looking.seeds} seeds, "
            f"{looking.probes} sets tried"
        )
        self.bars.update(self.all, completed=seen.place)
        self.bars.update(
            self.one, description=seen.measurement.title, completed=looking.step, total=looking.steps, note=note
        )


def _span(values: list[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]}..{values[-1]}"
