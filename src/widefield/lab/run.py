# SPDX-License-Identifier: Apache-2.0
"""From an experiment to its record: a segmenter with one context module, trained and looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widefield.core.files import write_json
from widefield.data import load_segmentation
from widefield.data.base import SegmentationData
from widefield.lab.evidence import save_evidence
from widefield.lab.experiment import Experiment
from widefield.lab.features import FrozenFeatures
from widefield.lab.gradients import agreement
from widefield.lab.loop import Progress, Watcher, Work, make_fabric, train
from widefield.lab.record import Record
from widefield.models.segmenter import Segmenter
from widefield.tasks.metrics import SegmentationScore
from widefield.tasks.segmentation import Segmentation


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
    fabric = make_fabric(experiment)
    data = data or load_segmentation(experiment.data, **experiment.data_options)
    task = build_task(experiment, data)
    model = build_model(experiment, data).to(fabric.device)
    source = _source(experiment, task, model, root.parent / "features", watch)
    scores: list[SegmentationScore] = []

    def loss(step: int) -> tuple[Tensor, dict[str, int]]:
        inputs, labels = (t.to(fabric.device) for t in source.batch(step))
        found = task.loss(source.logits(model, inputs, labels), labels)
        return found.value, {"valid_pixels": int(found.valid)}

    def validate() -> dict[str, float | None]:
        scores.append(evaluate(model, task, source, fabric.device))
        return {"miou": scores[-1].miou}

    work = Work(loss, validate, measure="mIoU", key="miou")
    seconds = train(record, experiment, model, task.recipe, work, fabric, watch=watch)
    model.eval()
    features = save_evidence(record.folder, model, task, source, fabric.device)
    write_json(record.folder / "timing.json", {"seconds": round(seconds, 3)})
    record.finish(_result(model, scores[-1], task) | {"gradients": agreement(model.context, features)}, model)
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
