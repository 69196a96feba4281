# SPDX-License-Identifier: Apache-2.0
"""The main job: several context modules, one network, one data set, the same seeds; one table.

Same backbone, width, data order, recipe and initialisation for every module, gates open at the start, seeds
shared so that differences are paired. Parameters are not forced to match; the table shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from widefield.core.files import write_json
from widefield.core.registry import create, entry
from widefield.data.base import SegmentationData
from widefield.lab.engine import Engine, LocalEngine
from widefield.lab.experiment import Experiment
from widefield.lab.features import check_one_size
from widefield.lab.loop import Watcher
from widefield.lab.run import build_model
from widefield.lab.summary import summarise

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
    options = parse_options(name, parts)
    known.check(options)
    return name, options


def parse_options(name: str, parts: Sequence[str]) -> dict[str, Any]:
    """`option=value` texts to a dict; `1/2/3` is a list.

    Raises:
        ValueError: an option without a value.
    """
    options: dict[str, Any] = {}
    for part in parts:
        option, sign, value = part.partition("=")
        if not sign:
            raise ValueError(f"{name}+{part}: write options as name=value, got {part!r}; e.g. {name}+{option}=...")
        options[option] = [_literal(v) for v in value.split("/")] if "/" in value else _literal(value)
    return options


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

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if not self.modules:
            raise ValueError("no modules to compare; give at least one")
        twice = {m for m in self.modules if self.modules.count(m) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} stands twice in the list of modules; name each once")

    def options(self, text: str, width: int, space: Sequence[int]) -> tuple[str, dict[str, Any]]:
        """Name and options of one module of the list, with the comparison's rank, gradient and map size."""
        name, options = parse_module(text)
        facts, accepted = entry(name).facts, entry(name).options
        if "rank" in accepted and "rank" not in options:
            options["rank"] = max(1, min(64, width // 2)) if self.rank is None else self.rank
        if facts.iterative and self.gradient is not None and "gradient" not in options:
            options["gradient"] = self.gradient
        return name, entry(name).tied_to(space) | options

    def experiments(self, width: int, space: Sequence[int]) -> list[Experiment]:
        """All runs on maps of that width and size; the first seed of every module first: a table fills early."""
        runs = []
        for seed in range(self.seeds):
            for text in self.modules:
                name, options = self.options(text, width, space)
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
    if comparison.base.freeze_backbone:
        check_one_size(data)
    probe = build_model(replace(comparison.base, module="none", options={}, seed=0), data)
    size = data.val.sizes[0] if comparison.base.crop is None else comparison.base.crop
    shape = _feature_shape(probe, size)
    width = probe.width
    experiments = comparison.experiments(width, shape[2:])
    for experiment in experiments[: len(comparison.modules)]:
        create(experiment.module, width, **experiment.options)  # a wrong option is said before hours of training
    engine = engine or LocalEngine(data)
    outcomes = list(engine.map(experiments, out / "runs", watch=watch))
    for outcome in outcomes:
        if outcome.error and told:
            told(f"{outcome.experiment.module} (seed {outcome.experiment.seed}) failed: {outcome.error}")
    summary = summarise(
        comparison.modules, comparison.base, data, outcomes, shape, probe.weights_note, out, told=told
    )
    summary |= {"command": command, "created": datetime.now(UTC).isoformat(timespec="seconds")}
    write_json(out / "table.json", summary)
    return summary


def _feature_shape(probe: Any, size: Sequence[int]) -> tuple[int, ...]:
    with torch.no_grad():
        probe.eval()
        return tuple(probe.forward_features(torch.zeros(1, 3, *size)).shape)
