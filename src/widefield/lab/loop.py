# SPDX-License-Identifier: Apache-2.0
"""The training loop, to be read in one go; every task runs through it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widefield.core.extras import require
from widefield.lab.experiment import Plan
from widefield.lab.record import Record
from widefield.tasks.recipe import Recipe

# A checkpoint is due when so many times its own cost has passed: saving never takes over a twentieth of a run.
_SAVE_SHARE = 20


@dataclass(frozen=True)
class Progress:
    """Told after every step, and while features are computed.

    Attributes:
        plan: which run.
        step, steps: done, and in all.
        loss: of the step.
        score: of the last validation, in the units of `measure`.
        measure: what the task is scored by.
        stage: "features", "pretraining" or "training".
    """

    plan: Plan
    step: int
    steps: int
    loss: float | None = None
    score: float | None = None
    measure: str = "mIoU"
    stage: str = "training"


Watcher = Callable[[Progress], None]


class Diverged(RuntimeError):
    """The loss is not finite."""


@dataclass(frozen=True)
class Work:
    """What the loop is given of a task.

    Attributes:
        loss: step to the loss, and what to log beside it.
        evaluate: the scores of the network as it stands, to be logged; it may leave the network in eval mode.
        measure: name of the score that is watched, for people.
        key: its name among the scores.
    """

    loss: Callable[[int], tuple[Tensor, Mapping[str, Any]]]
    evaluate: Callable[[], Mapping[str, float | None]]
    measure: str
    key: str


def make_fabric(plan: Plan) -> Any:
    """Device and precision of a plan."""
    fabric = require("lightning_fabric", "lab")
    kinds = {"cpu": "cpu", "cuda": "cuda", "auto": "cuda" if torch.cuda.is_available() else "cpu"}
    return fabric.Fabric(accelerator=kinds.get(plan.device, plan.device), devices=1, precision=plan.precision)


def train(
    record: Record,
    plan: Plan,
    model: nn.Module,
    recipe: Recipe,
    work: Work,
    fabric: Any,
    *,
    watch: Watcher | None = None,
) -> float:
    """Trains what is left of a run, from its last checkpoint; the last step is evaluated.

    Every step is a function of the plan and its number, so a run that was killed resumes to the figures of an
    uninterrupted one.

    Returns:
        Seconds spent, over all attempts.

    Raises:
        Diverged: the loss is not finite.
    """
    optimizer = recipe.build(model)
    step, spent = record.load_checkpoint(model, optimizer)
    model.train()
    begun, saved, saving = time.perf_counter(), time.perf_counter(), 0.0
    score = next((line[work.key] for line in reversed(list(record.lines())) if work.key in line), None)
    while step < plan.steps:
        # Modules may draw random starts in training: from numbers that belong to this step.
        torch.manual_seed(plan.seed * 1_000_003 + step)
        factor = recipe.set_rates(optimizer, step, plan.steps)
        with fabric.autocast():
            loss, beside = work.loss(step)
        optimizer.zero_grad(set_to_none=True)
        fabric.backward(loss)
        if recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        step += 1
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(
                f"the loss of {plan.label} (seed {plan.seed}) is {value} at step {step}; "
                "lower the learning rate (--lr) or look at the data"
            )
        if step % 10 == 0 or step == plan.steps:
            record.log(step=step, loss=value, rate=factor, **beside)
        if step % plan.evaluate_every == 0 or step == plan.steps:
            scores = work.evaluate()
            score = scores[work.key]
            record.log(step=step, **{k: None if v is None or math.isnan(v) else v for k, v in scores.items()})
            model.train()
        if watch:
            watch(Progress(plan, step, plan.steps, value, score, work.measure))
        now = time.perf_counter()
        if now - saved >= _SAVE_SHARE * saving and step < plan.steps:
            record.save_checkpoint(model, optimizer, step, spent + now - begun)
            saved = time.perf_counter()
            saving = saved - now
    return spent + time.perf_counter() - begun
