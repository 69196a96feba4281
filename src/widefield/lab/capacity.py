# SPDX-License-Identifier: Apache-2.0
"""Capacities of networks side by side: models, optimisers, variants of one data set; one table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from widefield.core.errors import unknown
from widefield.core.files import read_json, write_json
from widefield.data.classification import ClassificationData
from widefield.lab.capacity_gap import generalisation_gap
from widefield.lab.capacity_verdicts import inequalities
from widefield.lab.comparison import parse_options
from widefield.lab.samples import Prepared, prepare
from widefield.measure.capacity import Capacity, Copies, Gallop, Looking, Procedure, StepByStep, capacity
from widefield.measure.capacity.variants import VARIANTS
from widefield.models.sized import FAMILIES, create_sized
from widefield.models.tokens import list_classifiers

RATES = {
    "sgd": (0.3, 0.1), "gd": (0.3, 0.1), "adam": (0.01, 0.003), "adamw": (0.01, 0.003), "shampoo": (0.3, 0.1),
    "lbfgs": (1.0,),
}  # fmt: skip


def parse_network(text: str) -> tuple[str, dict[str, Any]]:
    """`name+option=value+...` to the family and its options.

    Raises:
        UnknownName: no such family. ValueError: an option without a value.
    """
    name, *parts = text.strip().split("+")
    known = [*FAMILIES, *list_classifiers()]
    if name not in known and not name.startswith("timm:"):
        raise unknown("family of networks", name, known)
    return name, parse_options(name, parts)


@dataclass(frozen=True)
class CapacityComparison:
    """What to measure.

    Attributes:
        models: `name` or `name+option=value`, of `widefield.models.sized.create_sized`.
        variants: of the data.
        optimizers: each with the rates of the procedure, or its usual ones.
        procedure: all else of the training.
        search: `Gallop` or `StepByStep`.
        seeds: how many, from 0.
        rates: learning rates of every optimiser; None: its usual ones.
        components: principal components instead of the samples themselves; None: the samples.
        classes: merge classes at random into so many; None: as they are.
        samples: use so many training samples at most; None: all.
        nested, conflicts, checks: as `widefield.measure.capacity`.
        gap: also train on all samples, and measure the generalisation gap.
        device: to train on.

    Raises:
        ValueError: nothing to measure, or something twice. UnknownName: no such variant or optimiser.
    """

    models: tuple[str, ...]
    variants: tuple[str, ...] = ("semantic", "random")
    optimizers: tuple[str, ...] = ("adam",)
    procedure: Procedure = field(default_factory=Procedure)
    search: Gallop | StepByStep = field(default_factory=Gallop)
    seeds: int = 5
    rates: tuple[float, ...] | None = None
    components: int | None = None
    classes: int | None = None
    samples: int | None = None
    nested: bool = True
    conflicts: str = "bound"
    checks: bool = True
    gap: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        for what, given in (("model", self.models), ("variant", self.variants), ("optimizer", self.optimizers)):
            twice = sorted({item for item in given if given.count(item) > 1})
            if not given or twice:
                raise ValueError(f"{what}s: at least one, each once; got {', '.join(given) or 'none'}")
        for name in self.variants:
            if name not in VARIANTS:
                raise unknown("variant of the data", name, VARIANTS)
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        for optimizer in self.optimizers:
            self.procedure_of(optimizer)

    def procedure_of(self, optimizer: str) -> Procedure:
        """The procedure with one of the optimisers."""
        changed = replace(self.procedure, optimizer=optimizer)
        return replace(changed, rates=self.rates or RATES[optimizer])

    def measurements(self) -> list[Measurement]:
        """All, in order: the variants of a network follow each other."""
        return [
            Measurement(model, optimizer, variant)
            for model in self.models
            for optimizer in self.optimizers
            for variant in self.variants
        ]


@dataclass(frozen=True)
class Measurement:
    """One network under one optimiser on one variant of the data."""

    model: str
    optimizer: str
    variant: str

    @property
    def title(self) -> str:
        """For people who watch."""
        return f"{self.model} {self.optimizer} {self.variant}"


@dataclass(frozen=True)
class Watched:
    """Which measurement, of how many, and where it stands."""

    measurement: Measurement
    place: int
    total: int
    looking: Looking


Watcher = Callable[[Watched], None]


def measure_capacities(
    comparison: CapacityComparison,
    data: ClassificationData,
    out: Path,
    *,
    command: str = "",
    watch: Watcher | None = None,
    told: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measures what is not finished below `out`, writes `table.json`; one that fails does not stop the others.

    Every round of trainings is kept, so that a run that was killed goes on to the figures of an uninterrupted one.

    Raises:
        UnknownName, UnknownOption, ValueError: a model that cannot be built for these samples, before any
            training.
    """
    prepared = prepare(data, comparison.components, comparison.classes, comparison.samples)
    builders = {model: _builder(model, prepared) for model in comparison.models}
    sizes = {model: _check(build, prepared, comparison.device) for model, build in builders.items()}
    measurements, rows = comparison.measurements(), []
    for place, measurement in enumerate(measurements):
        procedure = comparison.procedure_of(measurement.optimizer)
        folder = out / "measurements" / _key(measurement, comparison, prepared)

        def looked(looking: Looking, m: Measurement = measurement, place: int = place) -> None:
            if watch:
                watch(Watched(m, place, len(measurements), looking))

        row: dict[str, Any] = {
            "model": measurement.model, "optimizer": measurement.optimizer, "variant": measurement.variant,
            "parameters": sizes[measurement.model], "folder": folder.name,
        }  # fmt: skip
        try:
            found = capacity(
                builders[measurement.model], prepared.train, procedure, seeds=comparison.seeds,
                search=comparison.search, variant_of_data=measurement.variant, nested=comparison.nested,
                conflicts=comparison.conflicts, checks=comparison.checks, device=comparison.device, folder=folder,
                watch=looked,
            )  # fmt: skip
            row |= _row(found) | {"status": "finished"}
            if comparison.gap and measurement.variant == "semantic":
                row["gap"] = _gap(folder, builders[measurement.model], prepared, procedure, comparison)
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            row |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            if told:
                told(f"{measurement.title} failed: {row['error']}")
        rows.append(row)
    summary = {
        "schema": 1, "task": "capacity", "rows": rows, "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {"name": data.name, "samples": len(prepared.train), "shape": list(prepared.train.inputs.shape[1:]),
                 "num_classes": prepared.train.num_classes, "held_out": len(prepared.val),
                 "preparation": prepared.note, "problems": list(data.problems)},
        "setting": _setting(comparison),
    }  # fmt: skip
    summary["inequalities"] = inequalities(rows)
    summary["verdict"] = _verdict(summary)
    write_json(out / "table.json", summary)
    return summary


def _builder(model: str, prepared: Prepared) -> Callable[[], nn.Module]:
    name, options = parse_network(model)
    shape, outputs = tuple(prepared.train.inputs.shape[1:]), prepared.train.outputs
    return lambda: create_sized(name, shape, outputs, **options)


def _check(build: Callable[[], nn.Module], prepared: Prepared, device: str) -> int:
    return Copies(build, prepared.train.inputs.shape[1:], prepared.train.outputs, device=device).parameters


def _key(measurement: Measurement, comparison: CapacityComparison, prepared: Prepared) -> str:
    """Everything that the probes depend on."""
    values = {
        "measurement": vars(measurement),
        "procedure": dict(comparison.procedure_of(measurement.optimizer).as_dict()),
        "search": comparison.search.settings(), "seeds": comparison.seeds, "nested": comparison.nested,
        "conflicts": comparison.conflicts, "checks": comparison.checks, "data": prepared.train.fingerprint(),
        "device": comparison.device,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
    name = "".join(c if c.isalnum() or c in "-_=+." else "_" for c in measurement.model)
    return f"{name}-{measurement.optimizer}-{measurement.variant}-{digest}"


def _row(found: Capacity) -> dict[str, Any]:
    said = found.as_dict()
    edges = [seed.edge for seed in found.seeds]
    return {
        "parameters": found.parameters, "capacity": said["capacity"], "notes": said["notes"], "steps": found.steps,
        "limits": [seed.limit for seed in found.seeds], "edges": edges, "probes": len(found.probes),
        "curve": [list(point) for point in found.curve()],
    }  # fmt: skip


def _gap(
    folder: Path,
    build: Callable[[], nn.Module],
    prepared: Prepared,
    procedure: Procedure,
    comparison: CapacityComparison,
) -> dict[str, Any]:
    """Kept beside the probes."""
    path = folder / "gap.json"
    wanted = prepared.val.fingerprint()
    if path.exists() and (found := read_json(path)).get("held_out") == wanted:
        return found
    values = generalisation_gap(build, prepared, procedure, comparison.seeds, comparison.device)
    write_json(path, values | {"held_out": wanted})
    return values | {"held_out": wanted}


def _setting(comparison: CapacityComparison) -> dict[str, Any]:
    procedure = dict(comparison.procedure.as_dict())
    del procedure["optimizer"], procedure["rates"]
    rates = {name: list(comparison.procedure_of(name).rates) for name in comparison.optimizers}
    return {
        **procedure, "optimizers": rates, "search": comparison.search.settings(), "seeds": comparison.seeds,
        "nested": comparison.nested, "conflicts": comparison.conflicts, "threads": torch.get_num_threads(),
        "device": comparison.device,
    }  # fmt: skip


def _verdict(summary: Mapping[str, Any]) -> str:
    lines = [f"{item['statement']}: {item['verdict']}" for item in summary["inequalities"]]
    return "\n".join(lines) or "one measurement, nothing to compare"
