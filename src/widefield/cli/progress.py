# SPDX-License-Identifier: Apache-2.0
"""Progress bars of a comparison: all runs, and the one under way, with the time left."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from widefield.lab.loop import Progress as Step


class Bars:
    """Two bars on a terminal; a line a run where there is none."""

    def __init__(self, console: Console, runs: int, steps: int) -> None:
        self.console, self.runs, self.steps = console, runs, steps
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.fields[note]}"), console=console,
            disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        self.all = self.bars.add_task("all runs", total=runs * steps, note="")
        self.one = self.bars.add_task("", total=steps, note="")
        self.before, self.last, self.told = 0, ("", -1), False

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def watch(self, step: Step) -> None:
        """Told about every step of every run."""
        name = step.plan.title
        if step.stage == "features":
            if not self.told and not self.console.is_terminal:
                self.console.print(
                    f"computing the backbone's features of {step.steps} pictures, once", highlight=False
                )
            self.told = True
            self.bars.update(
                self.one, description="backbone features", completed=step.step, total=step.steps, note=""
            )
            return
        if step.stage == "pretraining":
            self.bars.update(
                self.one, description=f"{name}: auto-encoders", completed=step.step, total=step.steps,
                note=f"loss {step.loss:.3f}",
            )  # fmt: skip
            return
        run = (step.plan.key, step.steps)
        if run != self.last:
            self.before += self.steps if self.last[1] >= 0 else 0
            self.last = run
            self.bars.reset(self.one, total=step.steps, description=name)
        note = f"loss {step.loss:.3f}" + (f", {step.measure} {step.score:.3f}" if step.score is not None else "")
        self.bars.update(self.one, description=name, completed=step.step, note=note)
        self.bars.update(self.all, completed=self.before + step.step)
        if step.step == step.steps and not self.console.is_terminal:
            self.console.print(f"{name}: {note}", highlight=False)
