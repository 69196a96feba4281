# SPDX-License-Identifier: Apache-2.0
"""From a classification plan to its record, and networks side by side: the same batches and seeds for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widefield.core.files import write_json
from widefield.data.classification import ClassificationData, load_classification
from widefield.lab.capacity import parse_network
from widefield.lab.experiment import Plan, check_crop
from widefield.lab.loop import Watcher, Work, make_fabric, train
from widefield.lab.record import Record
from widefield.lab.statistics import estimate, verdict
from widefield.measure import count
from widefield.models.sized import create_sized
from widefield.tasks.classification import Classification, ClassificationScore


@dataclass(frozen=True)
class ClassificationPlan(Plan):
    """Train one network on one data set, from one seed, and score it on the validation split.

    Attributes:
        model: of `widefield.models.sized.create_sized`.
        options: of the network.
        data, data_options, data_state: as for `load_classification`, and the fingerprint.
        crop: height and width that pictures are brought to; None: their own.
        augment: of the task.
        optimizer: of the recipe; None: the task's.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    data_state: str = ""
    crop: tuple[int, int] | None = None
    augment: str | None = None
    optimizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_crop(self.crop)

    @property
    def label(self) -> str:
        return self.model.replace(":", "_")

    @property
    def title(self) -> str:
        options = "".join(f"+{name}={value}" for name, value in self.options.items())
        return f"{self.model}{options} seed {self.seed}"

    def check_result(self, result: Any) -> None:
        super().check_result(result)
        _ = result["score"]["accuracy"]


def build_task(plan: ClassificationPlan, data: ClassificationData) -> Classification:
    """The task of a plan."""
    task = Classification(data, batch_size=plan.batch_size, size=plan.crop, augment=plan.augment, seed=plan.seed)
    changes: dict[str, Any] = {"lr": plan.lr, "optimizer": plan.optimizer}
    task.recipe = replace(task.recipe, **{k: v for k, v in changes.items() if v is not None})
    return task


def build_network(plan: ClassificationPlan, task: Classification) -> nn.Module:
    """The network of a plan, from its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        return create_sized(plan.model, task.shape, task.data.num_classes, **plan.options)


def run_classification(
    plan: ClassificationPlan, root: Path, *, watch: Watcher | None = None, data: ClassificationData | None = None
) -> Record:
    """Runs a plan below `root`, or what is left of it, or nothing if its record is finished.

    Raises:
        Diverged: the loss is not finite. And whatever building the network or reading the data raises.
    """
    record = Record.open(root, plan)
    if record.finished:
        return record
    fabric = make_fabric(plan)
    data = data or load_classification(plan.data, **plan.data_options)
    task = build_task(plan, data)
    network = build_network(plan, task).to(fabric.device)

    def loss(step: int) -> tuple[Tensor, dict[str, Any]]:
        x, labels = (t.to(fabric.device) for t in task.batch(step))
        return task.loss(network(x), labels), {}

    def validate() -> dict[str, float | None]:
        score = evaluate(network, task, fabric.device)
        return {"accuracy": score.accuracy, "val_loss": score.loss}

    work = Work(loss, validate, measure="accuracy", key="accuracy")
    seconds = train(record, plan, network, task.recipe, work, fabric, watch=watch)
    score = evaluate(network, task, fabric.device)
    write_json(record.folder / "timing.json", {"seconds": round(seconds, 3)})
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    result = {
        "score": score.as_dict(),
        "parameters": {"total": sum(p.numel() for p in network.parameters()), "trained": trained},
        "recipe": dict(task.recipe.as_dict()), "shape": list(task.shape), "augment": task.augment,
    }  # fmt: skip
    record.finish(result, network)
    return record


@torch.no_grad()
def evaluate(network: nn.Module, task: Classification, device: torch.device | str = "cpu") -> ClassificationScore:
    """The score on the validation split; the network is left in eval mode."""
    network.eval()
    metrics = task.metrics()
    for x, labels in task.batches("val"):
        metrics.update(network(x.to(device)), labels)
    return metrics.compute()


@dataclass(frozen=True)
class ClassifierComparison:
    """Which networks, on what, how often.

    Attributes:
        models: `name` or `name+option=value`; the first is what the others are held against.
        seeds: how many, from 0.
        base: everything of the plans but model, options and seed.
    """

    models: tuple[str, ...]
    seeds: int
    base: ClassificationPlan

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        twice = sorted({m for m in self.models if self.models.count(m) > 1})
        if not self.models or twice:
            raise ValueError(f"models: at least one, each once; got {', '.join(self.models) or 'none'}")

    def plans(self) -> list[tuple[str, ClassificationPlan]]:
        """All runs; the first seed of every model first."""
        runs = []
        for seed in range(self.seeds):
            for text in self.models:
                name, options = parse_network(text)
                runs.append((text, replace(self.base, model=name, options=options, seed=seed)))
        return runs


def compare_classifiers(
    comparison: ClassifierComparison,
    data: ClassificationData,
    out: Path,
    *,
    command: str = "",
    watch: Watcher | None = None,
    told: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Runs what is not finished below `out`, writes `table.json`; one that fails does not stop the others."""
    plans = comparison.plans()
    task = build_task(comparison.base, data)
    costs = {
        text: _cost(plan, task) for text, plan in plans[: len(comparison.models)]
    }  # wrong options, said first
    records: dict[str, list[tuple[int, Record]]] = {text: [] for text in comparison.models}
    errors: dict[str, str] = {}
    for text, plan in plans:
        try:
            records[text].append((plan.seed, run_classification(plan, out / "runs", watch=watch, data=data)))
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            errors[text] = f"{type(error).__name__}: {error}"
            if told:
                told(f"{text} (seed {plan.seed}) failed: {errors[text]}")
    first = records[comparison.models[0]]
    rows = [_row(text, records[text], first, costs[text], errors.get(text)) for text in comparison.models]
    base = comparison.base
    summary = {
        "schema": 1, "task": "classification", "rows": rows, "baseline": comparison.models[0], "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {"name": data.name, "classes": list(data.classes), "train": len(data.train), "val": len(data.val),
                 "problems": list(data.problems)},
        "setting": {
            "shape": list(task.shape), "augment": task.augment, "steps": base.steps, "batch_size": base.batch_size,
            "epochs": round(base.steps / task.steps_per_epoch, 2), "seeds": comparison.seeds,
            "recipe": dict(task.recipe.as_dict()), "threads": torch.get_num_threads(),
        },
    }  # fmt: skip
    summary["verdict"] = _verdict(summary)
    write_json(out / "table.json", summary)
    return summary


def _cost(plan: ClassificationPlan, task: Classification) -> dict[str, int]:
    network = build_network(plan, task).eval()
    macs = count(network, (1, *task.shape)).multiply_adds
    return {"parameters": sum(p.numel() for p in network.parameters()), "multiply_adds": macs}


def _row(
    text: str,
    records: list[tuple[int, Record]],
    first: list[tuple[int, Record]],
    cost: Mapping[str, int],
    error: str | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {"model": text, "status": "finished" if records else "failed", **cost}
    if error:
        row["error"] = error
    if not records:
        return row
    scores = {seed: record.result["score"] for seed, record in records}
    for measure in ("accuracy", "balanced"):
        values = [score[measure] for score in scores.values()]
        found = estimate(values)
        row[measure] = {"mean": found.mean, "half_width": found.half_width, "values": values}
    against = {seed: record.result["score"]["accuracy"] for seed, record in first}
    shared = [seed for seed in scores if seed in against]
    if records is not first and shared:
        difference = estimate([scores[seed]["accuracy"] - against[seed] for seed in shared])
        row["difference"] = {
            "mean": difference.mean, "half_width": difference.half_width, "verdict": verdict(difference)
        }  # fmt: skip
    row["per_class"] = next(iter(scores.values()))["per_class"]
    row["curves"] = [
        {"steps": [line["step"] for line in record.lines() if "accuracy" in line],
         "accuracy": [line["accuracy"] for line in record.lines() if "accuracy" in line]}
        for _, record in records
    ]  # fmt: skip
    seconds = [record.seconds for _, record in records]
    row["seconds"] = sum(seconds) / len(seconds)
    row["folders"] = [record.folder.name for _, record in records]
    return row


def _verdict(summary: Mapping[str, Any]) -> str:
    groups: dict[str, list[str]] = {"better": [], "worse": [], "no difference": [], "cannot tell": []}
    for row in summary["rows"]:
        if row.get("difference"):
            groups[row["difference"]["verdict"]].append(row["model"])
    said = {"better": f"better than {summary['baseline']}", "worse": "worse", "no difference": "no difference",
            "cannot tell": "cannot tell from one seed"}  # fmt: skip
    return "; ".join(f"{said[key]}: {', '.join(names)}" for key, names in groups.items() if names) or (
        "one network, nothing to compare"
    )
