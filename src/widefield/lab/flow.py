# SPDX-License-Identifier: Apache-2.0
"""How gradients travel through networks over sequences, new and trained, several seeds each; and through hams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from widefield.core.errors import unknown
from widefield.core.extras import require
from widefield.core.files import write_json
from widefield.core.registry import create, list_modules
from widefield.decomposition.ham import Ham
from widefield.lab.comparison import parse_options
from widefield.lab.loop import Watcher
from widefield.lab.record import Record
from widefield.lab.sequence_comparison import parse_network
from widefield.lab.sequences import SequencePlan, build_network, build_task, run_sequence
from widefield.lab.statistics import estimate
from widefield.measure.flow import (
    Flow,
    distance_from_orthogonality,
    iteration_flow,
    recurrent_matrices,
    sequence_flow,
)
from widefield.models.sequences import list_sequence_networks
from widefield.sequence import SequenceLayer

HAMS = ("ham-nmf", "ham-cd", "ham-vq")
POSITIONS, CHANNELS = 36, 8  # of the map that a ham is looked at on
Told = Callable[[str], None]


@dataclass(frozen=True)
class FlowStudy:
    """Whose gradients, how far back, how often.

    Attributes:
        models: networks over sequences, or hams; `name` or `name+option=value`. The first is what the factors are
            of.
        lag: steps back.
        seeds: how many, from 0.
        steps: of a training on the adding problem of `lag + 1` steps; 0 for new networks alone.
        sequences: over which the flow is averaged.
    """

    models: tuple[str, ...]
    lag: int = 50
    seeds: int = 3
    steps: int = 0
    sequences: int = 4

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("no model given; give at least one")
        if self.lag < 2 or self.seeds < 1 or self.steps < 0:
            raise ValueError(
                f"the lag must be at least 2, seeds at least 1, steps not negative; got {self.lag}, {self.seeds}, "
                f"{self.steps}"
            )
        for text in self.models:
            name = text.partition("+")[0]
            if name not in (*list_sequence_networks(), *HAMS):
                raise unknown("model", name, [*list_sequence_networks(), *HAMS])
            if name == "mlp":
                raise ValueError("mlp has no steps to look back through")

    def plan(self, text: str, seed: int) -> SequencePlan:
        """The training of a network."""
        name, options = parse_network(text)
        return SequencePlan(
            task="adding", method=name, options=options, task_options={"length": self.lag + 1}, seed=seed,
            batch_size=32, steps=max(1, self.steps), evaluate_every=max(1, self.steps // 10), device="cpu",
        )  # fmt: skip


def study_flow(
    study: FlowStudy, out: Path, *, command: str = "", watch: Watcher | None = None, told: Told | None = None
) -> dict[str, Any]:
    """Measures, writes `table.json` below `out`; trainings resume. A model that fails does not stop the others."""
    rows = []
    for text in study.models:
        if told:
            told(f"{text}: {'training and ' if study.steps and not _is_ham(text) else ''}measuring")
        try:
            rows.append(_row(study, text, out, watch))
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            rows.append({"model": text, "status": "failed", "error": f"{type(error).__name__}: {error}"})
            if told:
                told(f"{text} failed: {rows[-1]['error']}")
    _compare(rows)
    summary = {
        "schema": 1, "task": "gradient-flow", "rows": rows, "baseline": study.models[0], "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "setting": {"lag": study.lag, "seeds": study.seeds, "steps": study.steps, "sequences": study.sequences,
                    "inputs": f"adding problem of {study.lag + 1} steps", "precision": "float64"},
    }  # fmt: skip
    write_json(out / "table.json", summary)
    return summary


def _is_ham(text: str) -> bool:
    return text.partition("+")[0] in HAMS


def _row(study: FlowStudy, text: str, out: Path, watch: Watcher | None) -> dict[str, Any]:
    row: dict[str, Any] = {"model": text, "status": "finished"}
    flows: dict[str, list[Flow]] = {"new": []}
    distances: list[Sequence[tuple[float, float]]] = []
    if _is_ham(text):
        flows["new"] = [_ham_flow(study, text, seed) for seed in range(study.seeds)]
    for seed in range(0 if _is_ham(text) else study.seeds):
        plan = study.plan(text, seed)
        task = build_task(plan, None)
        network: Any = build_network(plan, task)
        x = next(iter(task.batches())).x[: study.sequences]
        flows["new"].append(sequence_flow(cast(SequenceLayer, network.layer), x, seed=seed))
        if study.steps:
            start = mean_distance(network)
            record = run_sequence(plan, out / "runs", watch=watch)
            network.load_state_dict(_weights(record))
            flows.setdefault("trained", []).append(sequence_flow(network.layer, x, seed=seed))
            curve = [(line["step"], line["orthogonality"]) for line in record.lines() if "orthogonality" in line]
            if start is not None:
                distances.append([(0.0, start), *curve])
            row.setdefault("scores", []).append(record.result["score"]["mse"])
    for when, found in flows.items():
        row[when] = _summary(found)
    if distances:
        row["orthogonality"] = [
            [step, sum(curve[i][1] for curve in distances) / len(distances)]
            for i, (step, _) in enumerate(distances[0])
        ]
    return row


def mean_distance(network: torch.nn.Module) -> float | None:
    """Mean distance from orthogonality of the recurrent matrices; None where there is none."""
    matrices = recurrent_matrices(network)
    if not matrices:
        return None
    return sum(distance_from_orthogonality(m) for m in matrices.values()) / len(matrices)


def _weights(record: Record) -> dict[str, Tensor]:
    return require("safetensors.torch", "weights").load_file(record.folder / "model.safetensors")


def _ham_flow(study: FlowStudy, text: str, seed: int) -> Flow:
    name, *parts = text.split("+")
    options = {"rank": 4} | parse_options(name, parts)
    if name not in list_modules():
        raise unknown("ham", name, HAMS)
    ham: Any = create(name, CHANNELS, **options)
    assert isinstance(ham, Ham)
    generator = torch.Generator().manual_seed(seed)
    # Low rank and noise: what a ham is for.
    rank = options["rank"]
    low = torch.rand(study.sequences, CHANNELS, rank, generator=generator) @ torch.rand(
        study.sequences, rank, POSITIONS, generator=generator
    )
    x = low + 0.1 * torch.rand(study.sequences, CHANNELS, POSITIONS, generator=generator)
    return iteration_flow(ham.eval().double().ham, x.double(), steps=study.lag + 1, seed=seed)


def _summary(flows: Sequence[Flow]) -> dict[str, Any]:
    """Means over seeds (geometric, of the decay), and the interval of the gradient at the last lag."""
    last = [flow.gradient[-1] for flow in flows]
    found: dict[str, Any] = {
        "lags": list(flows[0].lags),
        "gradient": [_geometric([f.gradient[k] for f in flows]) for k in flows[0].lags],
        "jacobian_lags": list(flows[0].jacobian_lags),
        "jacobian": [_geometric([f.jacobian[i] for f in flows]) for i in range(len(flows[0].jacobian_lags))],
        "spectrum": list(flows[0].spectrum), "last": last,
        "rate": None if any(f.rate is None for f in flows) else _geometric([cast(float, f.rate) for f in flows]),
    }  # fmt: skip
    if all(f.bound is not None for f in flows):
        bounds = [cast(tuple[float, ...], f.bound) for f in flows]
        found["bound"] = [_geometric([b[k] for b in bounds]) for k in flows[0].lags]
    if min(last) > 0:
        logs = estimate([math.log10(value) for value in last])
        found["decades"] = {"mean": logs.mean, "half_width": logs.half_width}
    return found


def _compare(rows: Sequence[dict[str, Any]]) -> None:
    """How many times as much of the gradient is left as with the first model: paired over seeds, on the
    logarithm."""
    first = rows[0]
    for row in rows[1:]:
        for when in ("new", "trained"):
            ours, theirs = row.get(when, {}).get("last"), first.get(when, {}).get("last")
            if not ours or not theirs or min(*ours, *theirs) <= 0:
                continue
            ratio = estimate([math.log10(a / b) for a, b in zip(ours, theirs, strict=True)])
            row[when]["factor"] = {"decades": ratio.mean, "half_width": ratio.half_width}


def _geometric(values: Sequence[float]) -> float:
    if min(values) <= 0:
        return 0.0
    return math.exp(sum(math.log(v) for v in values) / len(values))
