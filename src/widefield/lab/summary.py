# SPDX-License-Identifier: Apache-2.0
"""From the outcomes of a comparison to its table: means, intervals, paired differences, costs, and a sentence."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from widefield._version import __version__
from widefield.core.files import read_json, write_json
from widefield.core.registry import create, entry
from widefield.data.base import SegmentationData
from widefield.lab.engine import Outcome
from widefield.lab.experiment import Experiment
from widefield.lab.record import Record
from widefield.lab.statistics import estimate, verdict
from widefield.measure import cost

BASELINE = "none"

# So many modules a sentence can name; the table has the others.
NAMED = 8


def summarise(
    modules: Sequence[str],
    base: Experiment,
    data: SegmentationData,
    outcomes: Sequence[Outcome],
    shape: tuple[int, ...],
    weights_note: str,
    out: Path,
    *,
    told: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The table and everything around it, as plain data.

    Args:
        modules: labels, in the order in which the outcomes of each seed come.
        base: what all runs share.
        data: of the runs.
        outcomes: of all runs.
        shape: `(1, c, h, w)` of what the modules see, for their cost.
        weights_note: of the backbone.
        out: folder of the comparison.
        told: given a line when measuring begins.
    """
    by_module: dict[str, list[Outcome]] = {}
    for index, outcome in enumerate(outcomes):
        by_module.setdefault(modules[index % len(modules)], []).append(outcome)
    scores = {label: _scores(group) for label, group in by_module.items()}
    baseline = BASELINE if BASELINE in modules else modules[0]
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
            "seeds": sorted({o.experiment.seed for o in outcomes}),
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
        named = [f"{r['module']} ({r['difference']['mean']:+.3f})" for r in chosen[:NAMED]]
        more = [f"and {len(chosen) - NAMED} more, down to {chosen[-1]['difference']['mean']:+.3f}"]
        return ", ".join(named + more * (len(chosen) > NAMED))

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
        said.append(f"Nothing to compare with: name at least one module beside {baseline}.")
    elif not {"better", "worse", "cannot tell"} & set(groups):
        said.insert(0, f"On {data}, within this many steps, no context module can be told from {baseline}.")
    failed = [row["module"] for row in rows if row["status"] != "finished"]
    if failed:
        said.append(f"Not finished: {', '.join(failed)}.")
    return " ".join(said)
