# SPDX-License-Identifier: Apache-2.0
"""Networks over sequences side by side: the same task, batches and seeds for all; one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from widefield.core.errors import unknown
from widefield.core.files import write_json
from widefield.lab.comparison import parse_options
from widefield.lab.loop import Watcher
from widefield.lab.record import Record
from widefield.lab.sequences import Data, SequencePlan, build_network, build_task, run_sequence
from widefield.lab.statistics import estimate, verdict
from widefield.models.sequences import list_sequence_networks, sequence_options

Told = Callable[[str], None]
PRETRAIN = "pretrain"  # written as an option of a network: mlp+pretrain=greedy


def parse_network(text: str) -> tuple[str, dict[str, Any]]:
    """`name+option=value+...` to the name and its options.

    Raises:
        UnknownName: no such network. ValueError: an option without a value.
    """
    name, *parts = text.strip().split("+")
    if name not in list_sequence_networks():
        raise unknown("sequence network", name, list_sequence_networks())
    options = parse_options(name, [part for part in parts if part])
    accepted = sequence_options(name)
    return name, {
        # A single number where a list belongs: hm-lstm+hidden_sizes=64.
        key: [value] if isinstance(accepted.get(key), tuple) and not isinstance(value, list) else value
        for key, value in options.items()
    }


@dataclass(frozen=True)
class SequenceComparison:
    """Which networks, on what, how often.

    Attributes:
        networks: `name` or `name+option=value`; the first is what the others are held against.
        seeds: how many, from 0.
        base: everything of the plans but method, options and seed.
    """

    networks: tuple[str, ...]
    seeds: int
    base: SequencePlan

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if not self.networks:
            raise ValueError("no network given; give at least one")
        twice = {n for n in self.networks if self.networks.count(n) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} stands twice in the list of networks; name each once")

    def plans(self) -> list[tuple[str, SequencePlan]]:
        """All runs; the first seed of every network first."""
        return [(text, self._plan(text, seed)) for seed in range(self.seeds) for text in self.networks]

    def _plan(self, text: str, seed: int) -> SequencePlan:
        name, options = parse_network(text)
        pretraining = options.pop(PRETRAIN, self.base.pretrain)
        # `none` on the command line is read as the value None.
        return replace(
            self.base,
            method=name,
            options=options,
            seed=seed,
            pretrain="none" if pretraining is None else pretraining,
        )


def compare_networks(
    comparison: SequenceComparison,
    data: Data,
    out: Path,
    *,
    command: str = "",
    watch: Watcher | None = None,
    told: Told | None = None,
) -> dict[str, Any]:
    """Runs what is not finished below `out`, writes `table.json`; a network that fails does not stop the
    others."""
    plans = comparison.plans()
    task = build_task(comparison.base, data)
    for _, plan in plans[: len(comparison.networks)]:  # a wrong option is said before hours of training
        with torch.device("meta"):
            build_network(replace(plan, pretrain="none"), task)
    records: dict[str, list[tuple[int, Record]]] = {text: [] for text in comparison.networks}
    errors: dict[str, str] = {}
    for text, plan in plans:
        try:
            records[text].append((plan.seed, run_sequence(plan, out / "runs", watch=watch, data=data)))
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            errors[text] = f"{type(error).__name__}: {error}"
            if told:
                told(f"{text} (seed {plan.seed}) failed: {errors[text]}")
    baseline = comparison.networks[0]
    first = {seed: record.result["score"][task.key] for seed, record in records[baseline]}
    sign = 1.0 if task.higher_is_better else -1.0
    rows = [_row(text, records[text], first, task.key, sign, errors.get(text)) for text in comparison.networks]
    for row in rows:
        if row["network"] == baseline:
            row.pop("difference", None)
    base = comparison.base
    summary = {
        "schema": 1, "task": base.task, "key": task.key, "measure": task.measure, "rows": rows,
        "baseline": baseline,
        "higher_is_better": task.higher_is_better, "command": command, "baselines": dict(task.baselines()),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": getattr(data, "name", ""),
        "setting": {
            "steps": base.steps, "batch_size": base.batch_size, "seeds": comparison.seeds,
            **dict(base.task_options), "lr": base.lr or task.recipe.lr, "optimizer": task.recipe.optimizer,
            "clip": task.recipe.clip, "threads": torch.get_num_threads(),
        },
    }  # fmt: skip
    summary["verdict"] = _verdict(summary)
    write_json(out / "table.json", summary)
    return summary


def _row(
    text: str,
    records: list[tuple[int, Record]],
    first: Mapping[int, float],
    key: str,
    sign: float,
    error: str | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {"network": text, "status": "finished" if records else "failed"}
    if error:
        row["error"] = error
    if not records:
        return row
    results = {seed: record.result for seed, record in records}
    names = [n for n, v in next(iter(results.values()))["score"].items() if isinstance(v, (int, float))]
    row["scores"] = {}
    for name in names:
        values = [result["score"][name] for result in results.values()]
        found = estimate(values)
        row["scores"][name] = {"mean": found.mean, "half_width": found.half_width, "values": values}
    row["score"] = row["scores"][key]
    both = [seed for seed in results if seed in first]
    if both:
        # Paired over seeds; "better" whatever the score's direction.
        gain = estimate([sign * (results[seed]["score"][key] - first[seed]) for seed in both])
        row["difference"] = {
            "mean": sign * gain.mean, "half_width": gain.half_width, "verdict": verdict(gain)
        }  # fmt: skip
    if "by_length" in results[records[0][0]]["score"]:
        row["by_length"] = results[records[0][0]]["score"]["by_length"]
    seconds = [record.seconds for _, record in records]
    row["seconds"] = sum(seconds) / len(seconds)
    row["parameters"] = results[records[0][0]]["parameters"]["total"]
    row["reconstruction_error"] = results[records[0][0]].get("reconstruction_error")
    row["folders"] = [record.folder.name for _, record in records]
    return row


def _verdict(summary: Mapping[str, Any]) -> str:
    groups: dict[str, list[str]] = {"better": [], "worse": [], "no difference": [], "cannot tell": []}
    for row in summary["rows"]:
        if found := row.get("difference"):
            groups[found["verdict"]].append(row["network"])
    baseline = summary["baseline"]
    words = {
        "better": f"better than {baseline}: ", "worse": f"worse than {baseline}: ",
        "no difference": f"no difference from {baseline}: ", "cannot tell": "cannot tell from one seed: ",
    }  # fmt: skip
    return (
        "; ".join(words[name] + ", ".join(group) for name, group in groups.items() if group)
        or "nothing to compare"
    )
