# SPDX-License-Identifier: Apache-2.0
"""The main job: several context modules, one network, one data set, the same seeds; one table.

Same backbone, width, data order, recipe and initialisation for every module, gates open at the start, seeds
shared so that differences are paired. Parameters are not forced to match; the table shows them.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from widefield._version import __version__
from widefield.core.files import read_json, write_json
from widefield.core.registry import create, entry
from widefield.data.base import SegmentationData
from widefield.lab.engine import Engine, LocalEngine, Outcome
from widefield.lab.experiment import Experiment
from widefield.lab.record import Record
from widefield.lab.run import Watcher, build_model
from widefield.lab.statistics import estimate, verdict
from widefield.measure import cost

BASELINE = "none"
DEFAULT_MODULES = (
    "none",
    "global-average",
    "nonlocal",
    "hamburger-nmf",
    "hamburger-nmf+gradient=codes_only",
    "hamburger-cd",
)


def parse_module(text: str) -> tuple[str, dict[str, Any]]:
    """`name+option=value+option=value` to the name and its options.

    Raises:
        UnknownName, UnknownOption: as `create`. ValueError: an option without a value.
    """
    name, *parts = text.strip().split("+")
    known = entry(name)
    options: dict[str, Any] = {}
    for part in parts:
        option, sign, value = part.partition("=")
        if not sign:
            raise ValueError(f"{text!r}: write options as name=value, got {part!r}; e.g. {name}+{option}=...")
        options[option] = _literal(value)
    create(name, 8, **{k: v for k, v in options.items() if k not in known.options})  # names the unknown ones
    return name, options


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Comparison:
    """Which modules, on what, how often.

    Attributes:
        modules: `name` or `name+option=value`, in the order of the table.
        seeds: how many, from 0.
        base: everything of the experiments but module, options and seed.
        rank: of every module whose rank is an option and not given; None: half of the width, at most 64.
        gradient: of every iterative module that does not say its own; None: the module's default.
    """

    modules: tuple[str, ...]
    seeds: int
    base: Experiment
    rank: int | None = None
    gradient: str | None = None
    labels: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if not self.modules:
            raise ValueError("no modules to compare; give at least one")
        twice = {m for m in self.modules if self.modules.count(m) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} stands twice in the list of modules; name each once")

    def options(self, text: str, width: int) -> tuple[str, dict[str, Any]]:
        """Name and options of one module of the list, with the comparison's rank and gradient."""
        name, options = parse_module(text)
        facts, accepted = entry(name).facts, entry(name).options
        if "rank" in accepted and "rank" not in options:
            options["rank"] = max(1, min(64, width // 2)) if self.rank is None else self.rank
        if facts.iterative and self.gradient is not None and "gradient" not in options:
            options["gradient"] = self.gradient
        return name, options

    def experiments(self, width: int) -> list[Experiment]:
        """All runs; the first seed of every module first, so that a table fills early."""
        runs = []
        for seed in range(self.seeds):
            for text in self.modules:
                name, options = self.options(text, width)
                runs.append(replace(self.base, module=name, options=options, seed=seed))
        return runs


def compare(
    comparison: Comparison,
    data: SegmentationData,
    out: Path,
    *,
    command: str = "",
    watch: Watcher | None = None,
    engine: Engine | None = None,
    told: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Runs what is not finished below `out`, measures costs, and writes `table.json`.

    Args:
        comparison: what to compare.
        data: loaded from `comparison.base.data`.
        out: folder of the comparison.
        command: how to run it again, for the report.
        watch: told about every step.
        engine: where to run; None: here.
        told: given a line when something other than training begins or fails.

    Returns:
        The summary that `widefield.lab.report.write_report` draws.
    """
    (out / "runs").mkdir(parents=True, exist_ok=True)
    probe = build_model(replace(comparison.base, module="none", options={}, seed=0), data)
    width = probe.width
    experiments = comparison.experiments(width)
    for experiment in experiments[: len(comparison.modules)]:
        create(experiment.module, width, **experiment.options)  # a wrong option is said before hours of training
    engine = engine or LocalEngine(data)
    outcomes = list(engine.map(experiments, out / "runs", watch=watch))
    for outcome in outcomes:
        if outcome.error and told:
            told(f"{outcome.experiment.module} (seed {outcome.experiment.seed}) failed: {outcome.error}")
    size = data.val.sizes[0] if comparison.base.crop is None else comparison.base.crop
    shape = _feature_shape(probe, size)
    summary = summarise(comparison, data, outcomes, shape, probe.weights_note, out, told=told)
    summary |= {"command": command, "created": datetime.now(UTC).isoformat(timespec="seconds")}
    write_json(out / "table.json", summary)
    return summary


def _feature_shape(probe: Any, size: Sequence[int]) -> tuple[int, ...]:
    with torch.no_grad():
        probe.eval()
        return tuple(probe.forward_features(torch.zeros(1, 3, *size)).shape)


def summarise(
    comparison: Comparison,
    data: SegmentationData,
    outcomes: Sequence[Outcome],
    shape: tuple[int, ...],
    weights_note: str,
    out: Path,
    *,
    told: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The table and everything around it, as plain data."""
    base = comparison.base
    by_module: dict[str, list[Outcome]] = {}
    for index, outcome in enumerate(outcomes):
        by_module.setdefault(comparison.modules[index % len(comparison.modules)], []).append(outcome)
    scores = {label: _scores(group) for label, group in by_module.items()}
    baseline = BASELINE if BASELINE in comparison.modules else comparison.modules[0]
    if told:
        told("measuring cost and gradients")
    rows = [
        _row(label, group, scores[label], scores[baseline] if label != baseline else None, shape, out)
        for label, group in by_module.items()
    ]
    recipe = next((o.record.result["recipe"] for o in outcomes if o.record), {})
    return {
        "title": f"Context modules on {data.name}",
        "version": __version__,
        "data": {
            "name": data.name,
            "summary": data.summary(),
            "classes": list(data.classes),
            "palette": [list(colour) for colour in data.palette],
            "problems": list(data.problems),
        },
        "setting": {
            "backbone": base.backbone,
            "weights_note": weights_note,
            "width": shape[1],
            "steps": base.steps,
            "batch_size": base.batch_size,
            "seeds": list(range(comparison.seeds)),
            "frozen_backbone": base.freeze_backbone,
            "input_size": list(data.val.sizes[0]),
            "feature_shape": list(shape),
            "gates": _gates(base.gate, by_module),
            "recipe": recipe,
            "machine": f"{platform.machine()} {platform.system()}, torch {torch.__version__}",
            "threads": torch.get_num_threads(),
        },
        "baseline": baseline,
        "rows": rows,
        "gradients": _gradients(by_module, rows),
        "verdict": sentence(rows, baseline, data.name),
    }


def _scores(group: Sequence[Outcome]) -> dict[int, dict[str, Any]]:
    return {o.experiment.seed: o.record.result["score"] for o in group if o.record is not None}


def _row(
    label: str,
    group: Sequence[Outcome],
    scores: Mapping[int, dict[str, Any]],
    baseline: Mapping[int, dict[str, Any]] | None,
    shape: tuple[int, ...],
    out: Path,
) -> dict[str, Any]:
    first = group[0].experiment
    known = entry(first.module)
    errors = [o.error for o in group if o.error]
    row: dict[str, Any] = {
        "module": label,
        "name": first.module,
        "family": known.family,
        "title": known.title,
        "paper": known.paper,
        "year": known.year,
        "options": dict(first.options),
        "gradient": first.options.get("gradient", known.options.get("gradient"))
        if known.facts.iterative
        else None,
        "status": "failed" if errors and not scores else "unfinished" if errors else "finished",
        "error": errors[0] if errors else None,
    }
    values = [s["miou"] for s in scores.values() if s["miou"] is not None]
    accuracies = [s["pixel_accuracy"] for s in scores.values() if s["pixel_accuracy"] is not None]
    quality, accuracy = (estimate(v) if v else None for v in (values, accuracies))
    row |= {
        "values": values,
        "mean": quality.mean if quality else None,
        "half_width": quality.half_width if quality else None,
        "accuracy_mean": accuracy.mean if accuracy else None,
        "accuracy_half_width": accuracy.half_width if accuracy else None,
        "per_class": _per_class(list(scores.values())),
        "difference": _difference(scores, baseline),
    }
    records = [o.record for o in group if o.record is not None]
    row["seconds"] = round(sum(r.seconds for r in records), 1)
    row["parameters_total"] = records[0].result["parameters"]["total"] if records else None
    row["curves"] = [_curve(o.experiment.seed, o.record) for o in group if o.record is not None]
    evidence = next((r.evidence for r in records if r.evidence), None)
    row["evidence"] = str(evidence.relative_to(out)) if evidence else None
    return row | _cost(first, shape, out)


def _per_class(scores: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in scores[0]["iou"] if scores else ():
        present = [s["iou"][name] for s in scores if s["iou"][name] is not None]
        found[name] = sum(present) / len(present) if present else None
    return found


def _difference(
    scores: Mapping[int, dict[str, Any]], baseline: Mapping[int, dict[str, Any]] | None
) -> dict[str, Any] | None:
    if baseline is None:
        return None
    shared = [s for s in scores if s in baseline]
    pairs = [(scores[s]["miou"], baseline[s]["miou"]) for s in shared]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    if not differences:
        return None
    found = estimate(differences)
    return {"mean": found.mean, "half_width": found.half_width, "verdict": verdict(found)}


def _curve(seed: int, record: Record) -> dict[str, Any]:
    lines = list(record.lines())
    losses = [line for line in lines if "loss" in line]
    scores = [line for line in lines if line.get("miou") is not None]
    return {
        "seed": seed,
        "steps": [line["step"] for line in losses],
        "loss": [line["loss"] for line in losses],
        "eval_steps": [line["step"] for line in scores],
        "eval_miou": [line["miou"] for line in scores],
    }


def _cost(experiment: Experiment, shape: tuple[int, ...], out: Path) -> dict[str, Any]:
    """Measured once a comparison and kept: times differ from one measurement to the next."""
    key = hashlib.sha256(repr((experiment.module, sorted(experiment.options.items()), shape)).encode()).hexdigest()
    path = out / "cost" / f"{experiment.module}-{key[:10]}.json"
    if not _whole(path, "parameters"):
        module = create(experiment.module, shape[1], **experiment.options)
        write_json(path, cost(module, shape, backward=True).as_dict())
    measured = read_json(path)
    return {
        "parameters": measured["parameters"],
        "multiply_adds": measured["multiply_adds"],
        "lower_bound": measured["lower_bound"],
        "activation_memory_forward": measured["activation_memory_forward"],
        "activation_memory_training": measured["activation_memory_training"],
        "latency_forward": measured["latency_forward_s"],
        "latency_training": measured["latency_training_s"],
    }


def _whole(path: Path, key: str) -> bool:
    """Whether a kept measurement can be read; one that cannot is made again."""
    try:
        return key in dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return False


def _gates(gate: float | None, by_module: Mapping[str, Sequence[Outcome]]) -> str:
    gated = [
        label for label, group in by_module.items() if entry(group[0].experiment.module).facts.identity_at_init
    ]
    if not gated:
        return "no module here starts with a closed gate"
    state = "left closed at the start, as published" if gate is None else f"opened to {gate:g} at the start"
    return f"{state}: {', '.join(gated)}"


def _gradients(by_module: Mapping[str, Sequence[Outcome]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How the policies of each iterative module agree with the unrolled one, and the score of the one used."""
    found = []
    for row, group in zip(rows, by_module.values(), strict=True):
        record = next((o.record for o in group if o.record is not None), None)
        for line in record.result["gradients"] if record else ():
            used = line["policy"] == row["gradient"]
            score = {k: row[k] if used else None for k in ("values", "mean", "half_width")}
            found.append({"module": row["module"], **line, **score})
    return found


def sentence(rows: Sequence[dict[str, Any]], baseline: str, data: str) -> str:
    """What the table says, in plain words."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["difference"]:
            groups.setdefault(row["difference"]["verdict"], []).append(row)

    def listed(kind: str) -> str:
        chosen = sorted(groups[kind], key=lambda r: -r["difference"]["mean"])
        return ", ".join(f"{r['module']} ({r['difference']['mean']:+.3f})" for r in chosen)

    said = []
    if "better" in groups:
        said.append(f"On {data}, better than {baseline} by more than the interval: {listed('better')} in mIoU.")
    if "worse" in groups:
        said.append(f"Worse by more than the interval: {listed('worse')}.")
    if "no difference" in groups:
        said.append(f"No difference from {baseline} outside the interval: {listed('no difference')}.")
    if "cannot tell" in groups:
        said.append(f"From one seed nothing can be told: {listed('cannot tell')}; run at least two.")
    if not groups:
        said.append("There is nothing to compare yet.")
    elif "better" not in groups and "cannot tell" not in groups:
        said.insert(0, f"On {data}, within this many steps, no context module can be told from {baseline}.")
    failed = [row["module"] for row in rows if row["status"] != "finished"]
    if failed:
        said.append(f"Not finished: {', '.join(failed)}.")
    return " ".join(said)
