# SPDX-License-Identifier: Apache-2.0
"""Reconstruction methods side by side: the same scenes, mask, crops and seeds for all; one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from widefield.core.errors import unknown
from widefield.core.files import write_json
from widefield.data.cube_sets import CubeData
from widefield.imaging import dispersed_width
from widefield.lab.comparison import parse_options
from widefield.lab.loop import Watcher
from widefield.lab.ranking import compare_scores, ranking
from widefield.lab.reconstruction import (
    Estimator,
    ReconstructionPlan,
    build_task,
    list_methods,
    make_estimator,
    network_estimator,
    run_reconstruction,
)
from widefield.lab.record import Record
from widefield.lab.statistics import estimate, verdict
from widefield.measure import count
from widefield.models.spectral import create_network, list_networks, load_weights

MEASURES = ("psnr", "ssim", "sam")
Told = Callable[[str], None]


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """`name+option=value+...` to the name and its options.

    Raises:
        UnknownName: no such method. ValueError: an option without a value.
    """
    text, methods = text.strip(), list_methods()
    # A name may hold a plus itself: mst++.
    name = max((m for m in methods if text == m or text.startswith(f"{m}+")), key=len, default=None)
    if name is None:
        raise unknown("reconstruction method", text.partition("+")[0], methods)
    return name, parse_options(name, [part for part in text.removeprefix(name).split("+") if part])


@dataclass(frozen=True)
class MethodComparison:
    """Which methods, on what, how often.

    Attributes:
        methods: `name` or `name+option=value`; the first is what the others are held against.
        seeds: how many, from 0, of every method that trains.
        base: everything of the plans but method, options and seed.
    """

    methods: tuple[str, ...]
    seeds: int
    base: ReconstructionPlan

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if not self.methods:
            raise ValueError("no method given; give at least one")
        twice = {m for m in self.methods if self.methods.count(m) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} stands twice in the list of methods; name each once")

    def plans(self) -> list[tuple[str, ReconstructionPlan]]:
        """All runs; the first seed of every method first. What does not train runs once."""
        runs = []
        for seed in range(self.seeds):
            for text in self.methods:
                name, options = parse_method(text)
                plan = replace(self.base, method=name, options=options, seed=seed)
                if plan.trains or seed == 0:
                    runs.append((text, plan))
        return runs


def compare_methods(
    comparison: MethodComparison,
    data: CubeData,
    out: Path,
    *,
    command: str = "",
    watch: Watcher | None = None,
    told: Told | None = None,
) -> dict[str, Any]:
    """Runs what is not finished below `out`, writes `table.json`; a method that fails does not stop the others."""
    plans = comparison.plans()
    task = build_task(comparison.base, data)
    for _, plan in plans[: len(comparison.methods)]:  # a wrong option is said before hours of training
        if plan.trains:
            with torch.device("meta"):
                create_network(plan.method, bands=data.bands, step=plan.dispersion, **plan.options)
        else:
            make_estimator(plan.method, data.bands, plan.dispersion, plan.options)
    records: dict[str, list[tuple[int, Record]]] = {text: [] for text in comparison.methods}
    errors: dict[str, str] = {}
    for text, plan in plans:
        try:
            records[text].append((plan.seed, run_reconstruction(plan, out / "runs", watch=watch, data=data)))
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            errors[text] = f"{type(error).__name__}: {error}"
            if told:
                told(f"{text} (seed {plan.seed}) failed: {errors[text]}")
    first = records[comparison.methods[0]]
    plan_of = dict(reversed(plans))
    trains = plan_of[comparison.methods[0]].trains
    rows = [
        _row(text, plan_of[text], records[text], first, trains, data, errors.get(text))
        for text in comparison.methods
    ]
    base = comparison.base
    summary = {
        "schema": 1, "task": "reconstruction", "rows": rows, "baseline": comparison.methods[0], "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {"name": data.name, "bands": data.bands, "train": list(data.train.names),
                 "val": list(data.val.names), "problems": list(data.problems)},
        "setting": {
            "steps": base.steps, "batch_size": base.batch_size, "seeds": comparison.seeds, "loss": base.loss,
            "crop": list(task.crop), "mask": base.mask, "dispersion": base.dispersion, "noise": base.noise,
            "protocol": task.protocol, "threads": torch.get_num_threads(),
        },
    }  # fmt: skip
    summary["verdict"] = _verdict(summary)
    write_json(out / "table.json", summary)
    return summary


def network_cost(name: str, options: Mapping[str, Any], shape: Sequence[int], step: int) -> dict[str, int]:
    """Parameters, and multiply-adds of one scene `(l, h, w)`, without computing anything."""
    bands, height, width = shape
    with torch.device("meta"):
        network = create_network(name, bands=bands, step=step, **options).eval()
        wide = dispersed_width(width, bands, step)
    found = count(network, ((1, height, wide), (bands, height, wide)))
    return {"parameters": sum(p.numel() for p in network.parameters()), "multiply_adds": found.multiply_adds}


def load_estimator(
    text: str, bands: int, step: int, *, weights: Path | None = None, device: str = "auto"
) -> Estimator:
    """A method by name, its weights read where it has some: `(b, h, w')` and `phi` to `(b, l, h, w)`.

    Raises:
        ValueError: weights missing, or given to a method without. And as `parse_method` and `load_weights`.
    """
    name, options = parse_method(text)
    if name not in list_networks():
        if weights is not None:
            raise ValueError(f"{name} has no weights; leave --weights out")
        return make_estimator(name, bands, step, options)
    if weights is None:
        raise ValueError(
            f"{name} needs --weights FILE: a published .pth, or what `widefield train --task reconstruction "
            f"--model {name}` writes; 'gap-tv' needs none"
        )
    network = create_network(name, bands=bands, step=step, **options)
    load_weights(network, weights)
    kind = "cuda" if device == "auto" and torch.cuda.is_available() else device
    return network_estimator(network.to("cpu" if kind == "auto" else kind))


def _row(
    text: str,
    plan: ReconstructionPlan,
    records: list[tuple[int, Record]],
    first: list[tuple[int, Record]],
    baseline_trains: bool,
    data: CubeData,
    error: str | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {"method": text, "trains": plan.trains, "status": "finished" if records else "failed"}
    if error:
        row["error"] = error
    if not records:
        return row
    scores = {seed: record.result["score"] for seed, record in records}
    for measure in MEASURES:
        found = estimate([score[measure] for score in scores.values()])
        row[measure] = {
            "mean": found.mean,
            "half_width": found.half_width,
            "values": [s[measure] for s in scores.values()],
        }
    # A method without training is the same for every seed.
    against = {seed: record.result["score"]["psnr"] for seed, record in first}
    if records is not first and against:
        ours = {seed: score["psnr"] for seed, score in scores.items()}
        difference = compare_scores(ours, against, exact=not plan.trains and not baseline_trains)
        row["difference"] = {
            "mean": difference.mean, "half_width": difference.half_width, "verdict": verdict(difference)
        }  # fmt: skip
    scenes = {s["name"]: s for s in next(iter(scores.values()))["scenes"]}
    row["scenes"] = scenes
    seconds = [record.seconds for _, record in records]
    row["seconds"] = sum(seconds) / len(seconds) if plan.trains else None
    shape = tuple(data.val[0].shape)
    row |= network_cost(plan.method, plan.options, shape, plan.dispersion) if plan.trains else {"parameters": 0}
    row["folders"] = [record.folder.name for _, record in records]
    return row


def _verdict(summary: dict[str, Any]) -> str:
    better, equal, worse, unknown_ = [], [], [], []
    for row in summary["rows"]:
        found = row.get("difference")
        if found:
            {"better": better, "no difference": equal, "worse": worse}.get(found["verdict"], unknown_).append(
                row["method"]
            )
    baseline = summary["baseline"]
    parts = [f"better than {baseline}: {', '.join(better)}"] if better else []
    parts += [f"worse: {', '.join(worse)}"] if worse else []
    parts += [f"no difference: {', '.join(equal)}"] if equal else []
    parts += [f"cannot tell from one seed: {', '.join(unknown_)}"] if unknown_ else []
    finished = [row for row in summary["rows"] if row["status"] == "finished"]
    parts += [order] if (order := ranking(finished)) else []
    return "; ".join(parts) or "nothing to compare"
