# SPDX-License-Identifier: Apache-2.0
"""Where experiments run. This engine: here, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from widefield.data.base import SegmentationData
from widefield.lab.experiment import Experiment
from widefield.lab.loop import Watcher
from widefield.lab.record import Record
from widefield.lab.run import run


@dataclass(frozen=True)
class Outcome:
    """What became of an experiment: its record, or the error that ended it."""

    experiment: Experiment
    record: Record | None
    error: str | None = None


class Engine(Protocol):
    """Runs experiments; yields an outcome for each, in any order. One that fails does not stop the others."""

    def map(
        self, experiments: Iterable[Experiment], root: Path, *, watch: Watcher | None = None
    ) -> Iterator[Outcome]: ...


class LocalEngine:
    """Runs in this process.

    Args:
        data: already loaded, if all experiments share it.
    """

    def __init__(self, data: SegmentationData | None = None) -> None:
        self.data = data

    def map(
        self, experiments: Iterable[Experiment], root: Path, *, watch: Watcher | None = None
    ) -> Iterator[Outcome]:
        for experiment in experiments:
            try:
                yield Outcome(experiment, run(experiment, root, watch=watch, data=self.data))
            except Exception as error:
                yield Outcome(experiment, None, f"{type(error).__name__}: {error}")
