# SPDX-License-Identifier: Apache-2.0
"""From an experiment to its record: the training loop, to be read in one go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widefield.core.extras import require
from widefield.core.files import write_json
from widefield.data import load_segmentation
from widefield.data.base import SegmentationData
from widefield.lab.evidence import save_evidence
from widefield.lab.experiment import Experiment
from widefield.lab.features import FrozenFeatures
from widefield.lab.gradients import agreement
from widefield.lab.record import Record
from widefield.models.segmenter import Segmenter
from widefield.tasks.metrics import SegmentationScore
from widefield.tasks.segmentation import Segmentation

# A checkpoint is due when so many times its own cost has passed: saving never takes over a twentieth of a run.
_SAVE_SHARE = 20


@dataclass(frozen=True)
class Progress:
    """Told after every step, and while features are computed.

    Attributes:
        experiment: which run.
        step, steps: done, and in all.
        loss: of the step.
        miou: of the last validation.
        stage: "features" or "training".
    """

    experiment: Experiment
    step: int
    steps: int
    loss: float | None = None
    miou: float | None = None
    stage: str = "training"


Watcher = Callable[[Progress], None]


class Diverged(RuntimeError):
    """The loss is not finite."""


def run(
    experiment: Experiment, root: Path, *, watch: Watcher | None = None, data: SegmentationData | None = None
) -> Record:
    """Runs an experiment below `root`, or what is left of it, or nothing if its record is finished.

    Every step is a function of the experiment and its number, so a run that was killed resumes from its last
    checkpoint to the figures of an uninterrupted one.

    Args:
        experiment: what to run.
        root: its folder is made below.
        watch: told about progress.
        data: already loaded; otherwise `experiment.data` is.

    Raises:
        Diverged: the loss is not finite. And whatever building the network or reading the data raises.
    """
    record = Record.open(root, experiment)
    if record.finished:
        return record
    fabric = _fabric(experiment)
    data = data or load_segmentation(experiment.data, **experiment.data_options)
    task = build_task(experiment, data)
    model = build_model(experiment, data).to(fabric.device)
    source = _source(experiment, task, model, root.parent / "features", watch)
    optimizer = task.recipe.build(model)
    step, spent = record.load_checkpoint(model, optimizer)

    model.train()
    score: SegmentationScore | None = None
    begun, saved, saving = time.perf_counter(), time.perf_counter(), 0.0
    miou = next((line["miou"] for line in reversed(list(record.lines())) if "miou" in line), None)
    while step < experiment.steps:
        # Modules may draw random starts in training: from numbers that belong to this step.
        torch.manual_seed(experiment.seed * 1_000_003 + step)
        inputs, labels = (t.to(fabric.device) for t in source.batch(step))
        factor = task.recipe.set_rates(optimizer, step, experiment.steps)
        with fabric.autocast():
            loss = task.loss(source.logits(model, inputs, labels), labels)
        optimizer.zero_grad(set_to_none=True)
        fabric.backward(loss.value)
        if task.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.recipe.clip)
        optimizer.step()
        step += 1
        value = float(loss.value.detach())
        if not math.isfinite(value):
            raise Diverged(
                f"the loss of {experiment.module} (seed {experiment.seed}) is {value} at step {step}; "
                "lower the learning rate (--lr) or look at the data"
            )
        if step % 10 == 0 or step == experiment.steps:
            record.log(step=step, loss=value, rate=factor, valid_pixels=int(loss.valid))
        if step % experiment.evaluate_every == 0 or step == experiment.steps:
            score = evaluate(model, task, source, fabric.device)
            miou = score.miou
            record.log(step=step, miou=None if math.isnan(miou) else miou)
            model.train()
        if watch:
            watch(Progress(experiment, step, experiment.steps, value, miou))
        now = time.perf_counter()
        if now - saved >= _SAVE_SHARE * saving and step < experiment.steps:
            record.save_checkpoint(model, optimizer, step, spent + now - begun)
            saved = time.perf_counter()
            saving = saved - now

    assert score is not None  # the last step is always validated, and no checkpoint is written after it
    seconds = spent + time.perf_counter() - begun
    features = save_evidence(record.folder, model, task, source, fabric.device)
    write_json(record.folder / "timing.json", {"seconds": round(seconds, 3)})
    record.finish(_result(model, score, task) | {"gradients": agreement(model.context, features)}, model)
    return record


class Pictures:
    """Batches of pictures, through the whole network."""

    def __init__(self, task: Segmentation) -> None:
        self.task = task

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return self.task.batch(step)

    def batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        return self.task.batches(split)

    def features(self, model: Segmenter, inputs: Tensor) -> Tensor:
        """What the context sees."""
        return model.forward_features(inputs)

    def logits(self, model: Segmenter, inputs: Tensor, labels: Tensor) -> Tensor:
        return model.forward_head(model.forward_context(self.features(model, inputs)), size=labels.shape[-2:])


class Cached(Pictures):
    """Batches of a frozen backbone's features, through what follows it."""

    def __init__(self, task: Segmentation, frozen: FrozenFeatures) -> None:
        super().__init__(task)
        self.frozen = frozen

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return self.frozen.batch(step)

    def batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        return self.frozen.batches(split)

    def features(self, model: Segmenter, inputs: Tensor) -> Tensor:
        return model.reduce(inputs)


def build_task(experiment: Experiment, data: SegmentationData) -> Segmentation:
    """The task of an experiment."""
    task = Segmentation(data, batch_size=experiment.batch_size, crop=experiment.crop, seed=experiment.seed)
    if experiment.lr is not None:
        task.recipe = replace(task.recipe, lr=experiment.lr)
    return task


def build_model(experiment: Experiment, data: SegmentationData) -> Segmenter:
    """The network of an experiment, its gates set."""
    model = Segmenter(
        experiment.backbone,
        experiment.module,
        data.num_classes,
        width=experiment.width,
        output_stride=experiment.output_stride,
        pretrained=experiment.pretrained,
        context_options=dict(experiment.options),
        seed=experiment.seed,
    )
    if experiment.gate is not None:
        open_gate: Any = getattr(model.context, "open_gate_", None)
        if open_gate is not None:
            open_gate(experiment.gate)
    if experiment.freeze_backbone:
        model.freeze_backbone()
    return model


@torch.no_grad()
def evaluate(model: Segmenter, task: Segmentation, source: Pictures, device: torch.device) -> SegmentationScore:
    """The score on the validation split; the model is left in eval mode."""
    model.eval()
    metrics = task.metrics()
    for inputs, labels in source.batches("val"):
        inputs, labels = inputs.to(device), labels.to(device)
        metrics.update(source.logits(model, inputs, labels), labels)
    return metrics.compute()


def _source(
    experiment: Experiment, task: Segmentation, model: Segmenter, root: Path, watch: Watcher | None
) -> Pictures:
    if not experiment.freeze_backbone:
        return Pictures(task)

    def told(done: int, total: int) -> None:
        if watch:
            watch(Progress(experiment, done, total, stage="features"))

    key = repr((experiment.data, experiment.data_state, sorted(experiment.data_options.items())))
    return Cached(task, FrozenFeatures(task, model, root, key, watch=told))


def _fabric(experiment: Experiment) -> Any:
    fabric = require("lightning_fabric", "lab")
    kinds = {"cpu": "cpu", "cuda": "cuda", "auto": "cuda" if torch.cuda.is_available() else "cpu"}
    return fabric.Fabric(
        accelerator=kinds.get(experiment.device, experiment.device), devices=1, precision=experiment.precision
    )


def _result(model: Segmenter, score: SegmentationScore, task: Segmentation) -> dict[str, Any]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return {
        "score": score.as_dict(),
        "parameters": {
            "context": sum(p.numel() for p in model.context.parameters()),
            "trained": sum(p.numel() for p in trained),
            "total": sum(p.numel() for p in model.parameters()),
        },
        "weights": model.weights_note,
        "recipe": dict(task.recipe.as_dict()),
        "crop": list(task.crop),
    }
