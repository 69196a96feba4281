# SPDX-License-Identifier: Apache-2.0
"""Effective Model Complexity: the largest set that a network fits perfectly under a training procedure.

Paper: Shwartz-Ziv, Goldblum, Bansal, Bruss, LeCun, Wilson, Just How Flexible are Neural Networks in Practice?,
2024 (arXiv:2406.11463); the quantity is Nakkiran et al.'s, arXiv:1912.02292, with no error allowed.

*Differs*: the paper grows the set step by step and leaves its sizes, budget, thresholds and number of seeds open.
Here sizes are galloped and bisected, several seeds are trained as one network, and what was chosen is in the
result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from widefield.core.files import read_json, write_json

from .minimum import convergence
from .network import Builder, Copies
from .procedure import DTYPES, Procedure
from .result import Capacity, Probe, SeedCapacity
from .samples import Samples, fittable, order, without_conflicts
from .search import Gallop, Search
from .train import Fit, Job, train
from .variants import variant

# Numbers that a step of all networks together may hold, so that large networks train a few at a time.
_TOGETHER = 1 << 26
_MOST = 256
_PATIENCE = 3


@dataclass(frozen=True)
class Looking:
    """Where a measurement stands.

    Attributes:
        sizes: that are tried now, by seed.
        fitted: the largest fitted so far, by seed.
        step, steps: of the trainings under way.
        probes: done.
        finished, seeds: how many seeds are, of how many.
    """

    sizes: dict[int, int]
    fitted: dict[int, int]
    step: int
    steps: int
    probes: int
    finished: int
    seeds: int


@dataclass(frozen=True)
class _Task:
    """A size to try, and how hard."""

    size: int
    attempt: int
    patient: bool
    limit: int | None


class _Source:
    """The sets of one seed."""

    def __init__(self, samples: Samples, seed: int, nested: bool, conflicts: str) -> None:
        self.samples, self.seed, self.nested = samples, seed, nested
        if conflicts == "remove":
            self.samples = without_conflicts(samples)
        self.order = order(len(self.samples), seed)
        # A fresh set of any size may avoid the conflicts that another one holds.
        self.bound = fittable(self.samples.take(self.order)) if nested else len(self.samples)

    def set(self, size: int) -> Samples:
        rows = self.order if self.nested else order(len(self.samples), self.seed, size)
        return self.samples.take(rows[:size])


def capacity(
    build_model: Builder,
    data: Samples,
    procedure: Procedure | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    search: Search | None = None,
    variant_of_data: str = "semantic",
    nested: bool = True,
    conflicts: str = "bound",
    checks: bool = True,
    device: torch.device | str = "cpu",
    members: int | None = None,
    folder: Path | None = None,
    watch: Callable[[Looking], None] | None = None,
) -> Capacity:
    """The largest number of samples that a network fits perfectly.

    For each size a new network is initialised and trained on that many samples until it has all of them right, or
    its budget is spent. A seed stands for an order of the samples, the random part of the variant, and all
    initialisations; two calls with equal arguments agree exactly.

    Args:
        build_model: makes a freshly initialised network, `(b, *shape)` to `(b, outputs)`.
        data: what to fit.
        procedure: how to train.
        seeds: how many, from 0; or which.
        search: `Gallop`, or `StepByStep` for the published protocol.
        variant_of_data: "semantic" as they are, "random" labels, "gaussian" inputs, "permuted" pixels.
        nested: larger sets hold the smaller ones of their seed; otherwise every size draws afresh.
        conflicts: equal inputs with different labels "bound" the answer, or "remove" takes them out first.
        checks: look at gradient, slope and curvature of the trainings that failed.
        device: to train on.
        members: most networks trained at once; by their size if None.
        folder: the measurement is kept there after each round and goes on from there.
        watch: told about progress.

    Raises:
        ValueError: an output width that does not match, no seed, a folder with another measurement, all samples
            in conflict. UnknownName: no such variant.
        TypeError: `data` is no `Samples`.
    """
    if not isinstance(data, Samples):
        raise TypeError(f"data must be widefield.measure.capacity.Samples, got {type(data).__name__}")
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0:
        raise ValueError(f"seeds: at least one, none twice, none negative; got {seeds}")
    if conflicts not in ("bound", "remove"):
        raise ValueError(f"conflicts must be 'bound' or 'remove', got {conflicts!r}")
    procedure, search = procedure or Procedure(), search or Gallop()
    copies = Copies(
        build_model, data.inputs.shape[1:], data.outputs, dtype=DTYPES[procedure.dtype], device=device,
        together=procedure.optimizer != "lbfgs",
    )  # fmt: skip
    sources = {seed: _Source(variant(variant_of_data, data, seed), seed, nested, conflicts) for seed in chosen}
    searches = {seed: search.fresh(len(source.samples)) for seed, source in sources.items()}
    setting = {
        "procedure": dict(procedure.as_dict()), "search": search.settings(), "variant": variant_of_data,
        "nested": nested, "conflicts": conflicts, "checks": checks, "seeds": chosen,
        "parameters": copies.parameters, "data": data.fingerprint(),
    }  # fmt: skip
    record = _Record(folder, setting)
    most = members or max(1, min(_MOST, _TOGETHER // copies.parameters))
    while True:
        asked = {seed: size for seed, s in searches.items() if (size := s.next()) is not None}
        if not asked:
            break
        known = record.take(asked)
        if known is None:
            told = _teller(watch, asked, searches, record)
            tasks = {
                seed: _Task(
                    size, attempt, searches[seed].patient(attempt), _limit(record.done, seed, size, procedure)
                )
                for seed, (size, attempt) in asked.items()
            }
            known = _try(copies, procedure, sources, tasks, checks, most, told)
            record.add(known)
        for probe in known:
            searches[probe.seed].tell(probe.size, probe.fitted)
    answers = tuple(_answer(searches[seed], sources[seed], record.done) for seed in chosen)
    return Capacity(
        copies.parameters, answers, tuple(record.done), len(data), data.num_classes, setting,
        _notes(data, procedure, sources, answers),
    )  # fmt: skip


def _limit(done: Sequence[Probe], seed: int, size: int, procedure: Procedure) -> int | None:
    """After how many updates a training of a size is given up where only a bracket is narrowed.

    Larger sets take longer, up to the edge by about the square of their size; what takes three times as long as
    that will hardly fit. Only whole trainings settle the edge, so that this costs nothing but a detour where it is
    wrong.
    """
    fitted = [p for p in done if p.seed == seed and p.fitted and p.size < size]
    if procedure.hopeless is None or not fitted:
        return None
    largest = max(fitted, key=lambda p: p.size)
    updates = max(largest.updates, procedure.check_every)
    return max(4 * procedure.check_every, math.ceil(_PATIENCE * (size / largest.size) ** 2 * updates))


def _try(
    copies: Copies,
    procedure: Procedure,
    sources: dict[int, _Source],
    asked: dict[int, _Task],
    checks: bool,
    members: int,
    told: Callable[[int, int], None] | None,
) -> list[Probe]:
    """One round: a set of every seed that is not finished, all trained together."""
    sets, jobs, places = {}, [], {}
    for seed, task in asked.items():
        if task.size > sources[seed].bound or (
            not sources[seed].nested and _conflicts(sources[seed].set(task.size))
        ):
            continue
        sets[seed] = sources[seed].set(task.size)
        places[seed] = len(jobs)
        for restart in range(procedure.restarts):
            start = _entropy(seed, task.size, task.attempt, restart)
            jobs += [Job(sets[seed], rate, start, seed, task.patient, task.limit) for rate in procedure.rates]
    fits = train(copies, procedure, jobs, members=members, watch=told) if jobs else []
    found = []
    each = procedure.restarts * len(procedure.rates)
    for seed, task in asked.items():
        size, attempt = task.size, task.attempt
        if seed not in sets:
            found.append(Probe(seed, size, attempt, False, 1.0, 0.0, "conflicting labels", 0, 0))
            continue
        mine = fits[places[seed] : places[seed] + each]
        best = min(mine, key=_nearness)
        looked = None
        if checks and not best.fitted and best.ending != "given up":
            looked = convergence(copies, procedure, sets[seed], best).as_dict()
        found.append(
            Probe(
                seed, size, attempt, best.fitted, best.wrong, best.rate, best.ending,
                sum(fit.steps for fit in mine), best.steps, looked,
            )
        )  # fmt: skip
    return found


def _nearness(fit: Fit) -> tuple[bool, float, float]:
    return not fit.fitted, fit.wrong, fit.loss if fit.loss == fit.loss else float("inf")


def _entropy(*numbers: int) -> int:
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _conflicts(samples: Samples) -> bool:
    return fittable(samples) < len(samples)


def _answer(search: Search, source: _Source, probes: list[Probe]) -> SeedCapacity:
    limit, edge = "", ""
    mine = [p for p in probes if p.seed == source.seed and not p.fitted and p.size > search.fitted]
    if search.fitted >= search.ceiling:
        limit = "data"
    elif mine:
        smallest = min(p.size for p in mine)
        last = [p for p in mine if p.size == smallest][-1]
        limit = "labels" if last.ending == "conflicting labels" else ""
        edge = "" if limit else str((last.convergence or {}).get("verdict", last.ending))
    return SeedCapacity(source.seed, search.fitted, limit, edge)


def _notes(
    data: Samples, procedure: Procedure, sources: dict[int, _Source], answers: Sequence[SeedCapacity]
) -> tuple[str, ...]:
    notes = []
    if len(data) < procedure.batch_size and not procedure.whole_set:
        notes.append(
            f"the {len(data)} samples are fewer than a batch of {procedure.batch_size}: every update sees the "
            "whole set"
        )
    bound = [answer for answer in answers if answer.limit == "labels"]
    if bound:
        notes.append(
            f"bounded by the labels for {len(bound)} of {len(answers)} seeds: equal inputs have different labels, "
            "which no function fits; conflicts='remove' takes them out"
        )
    taken = {len(data) - len(source.samples) for source in sources.values()}
    if max(taken):
        notes.append(f"{max(taken)} samples whose copies have other labels were taken out")
    full = [answer for answer in answers if answer.limit == "data"]
    if full:
        notes.append(f"all data fitted by {len(full)} of {len(answers)} seeds: the capacity is at least this")
    unsure = [answer for answer in answers if answer.edge in ("still falling", "cannot tell")]
    if unsure:
        notes.append(
            f"at the edge of {len(unsure)} of {len(answers)} seeds the training had not come to a minimum: a "
            "larger budget may fit more"
        )
    return tuple(notes)


def _teller(
    watch: Callable[[Looking], None] | None,
    asked: dict[int, tuple[int, int]],
    searches: dict[int, Search],
    record: _Record,
) -> Callable[[int, int], None] | None:
    if watch is None:
        return None
    sizes, fitted = {s: size for s, (size, _) in asked.items()}, {s: f.fitted for s, f in searches.items()}

    def told(step: int, steps: int) -> None:
        watch(Looking(sizes, fitted, step, steps, len(record.done), len(searches) - len(asked), len(searches)))

    return told


class _Record:
    """The probes on disk, written whole after each round: a killed measurement goes on with the next one."""

    def __init__(self, folder: Path | None, setting: dict[str, Any]) -> None:
        self.path = None if folder is None else Path(folder) / "probes.json"
        self.setting, self.done, self.stored = setting, [], []
        if self.path is not None and self.path.exists():
            found = read_json(self.path)
            if not isinstance(found, dict) or found.get("setting") != setting:
                raise ValueError(f"{self.path} holds another measurement; choose another folder or delete it")
            self.stored = [[Probe(**probe) for probe in probes] for probes in found["rounds"]]
        self.rounds = list(self.stored)

    def take(self, asked: dict[int, tuple[int, int]]) -> list[Probe] | None:
        """The next stored round; None when they are used up."""
        if not self.stored:
            return None
        found = self.stored.pop(0)
        if {p.seed: (p.size, p.attempt) for p in found} != asked:
            raise ValueError(f"{self.path} was written by another version; delete it")
        self.done += found
        return found

    def add(self, found: list[Probe]) -> None:
        """Keeps a round."""
        self.done += found
        self.rounds.append(found)
        if self.path is not None:
            write_json(
                self.path, {"setting": self.setting, "rounds": [[p.as_dict() for p in r] for r in self.rounds]}
            )
