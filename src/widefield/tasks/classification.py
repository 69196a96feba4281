# SPDX-License-Identifier: Apache-2.0
"""Classification as a task: which samples at which step, how they are varied, the loss, the score, the recipe."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.core.errors import unknown
from widefield.core.extras import require
from widefield.data.classification import ClassificationData, ClassSet
from widefield.tasks.recipe import Recipe

AUGMENTATIONS = ("none", "plain", "timm")
RECIPE = Recipe(lr=1e-3, weight_decay=0.05, schedule="poly", power=1.0, warmup=0.05)
_LARGEST = 224
# Pictures of the training split that the channel statistics are taken from.
_STATISTICS = 2048
# From this edge on a random part of the picture is scaled, below it is shifted, as is usual.
_RESIZED = 64


@dataclass(frozen=True)
class ClassificationScore:
    """Of a split.

    Attributes:
        accuracy: share of the samples that are right.
        balanced: mean of the classes' own accuracies, over the classes that occur.
        per_class: by name; None for a class that does not occur.
        loss: mean cross-entropy.
        confusion: rows are labels, columns predictions.
    """

    accuracy: float
    balanced: float
    per_class: dict[str, float | None]
    loss: float
    confusion: tuple[tuple[int, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "accuracy": self.accuracy, "balanced": self.balanced, "per_class": dict(self.per_class),
            "loss": self.loss if math.isfinite(self.loss) else None,
            "confusion": [list(row) for row in self.confusion],
        }  # fmt: skip


class ClassificationMetrics:
    """Counts samples over batches; `compute` gives the score of everything seen."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes, self.loss, self.count = tuple(classes), 0.0, 0
        self._matrix = require("torchmetrics.classification", "tasks").MulticlassConfusionMatrix(
            max(len(classes), 2), validate_args=False
        )

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Counts a batch: logits `(b, k)`, labels `(b,)`.

        Raises:
            ValueError: shapes that do not belong together.
        """
        if logits.shape != (len(labels), len(self.classes)):
            raise ValueError(
                f"expected logits ({len(labels)}, {len(self.classes)}), got {tuple(logits.shape)}: build the "
                f"network with {len(self.classes)} outputs"
            )
        logits, labels = logits.detach().float().cpu(), labels.cpu()
        self.loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        self.count += len(labels)
        self._matrix.update(logits.argmax(1), labels)

    def compute(self) -> ClassificationScore:
        """The score so far.

        Raises:
            ValueError: nothing was counted.
        """
        if not self.count:
            raise ValueError("no sample was counted; call update first")
        k = len(self.classes)
        confusion = self._matrix.compute()[:k, :k].to(torch.int64)
        hits, of = confusion.diagonal().tolist(), confusion.sum(1).tolist()
        shares = [h / n if n else None for h, n in zip(hits, of, strict=True)]
        known = [share for share in shares if share is not None]
        return ClassificationScore(
            sum(hits) / self.count, math.fsum(known) / len(known), dict(zip(self.classes, shares, strict=True)),
            self.loss / self.count, tuple(tuple(row) for row in confusion.tolist()),
        )  # fmt: skip


class Classification:
    """Batches, loss and metrics over a `ClassificationData`.

    `batch(step)` is a function of `(seed, step)`: a run that resumes at step s sees what the uninterrupted one
    saw, and every network of a comparison sees the same.

    Args:
        data: what to learn.
        batch_size: samples a step.
        size: height and width that pictures are brought to; None: their common one, or if they differ the median,
            at most 224.
        augment: "none"; "plain": random shift (from 64 pixels on a random part), flip of natural pictures; "timm":
            RandAugment and random erasing by timm, mixup or cutmix, label smoothing, as in DeiT. Rows of a table
            are not varied. None: "plain" for pictures.
        seed: of the order and the augmentation.
        recipe: how to train.

    Raises:
        ValueError: a number out of range. UnknownName: no such augmentation.
    """

    def __init__(
        self,
        data: ClassificationData,
        *,
        batch_size: int = 64,
        size: tuple[int, int] | None = None,
        augment: str | None = None,
        seed: int = 0,
        recipe: Recipe = RECIPE,
    ) -> None:
        if batch_size < 1 or seed < 0:
            raise ValueError(f"batch_size must be at least 1 and seed not negative, got {batch_size} and {seed}")
        if size is not None and min(size) < 1:
            raise ValueError(f"size must be a height and a width of at least 1, got {size}")
        if augment is not None and augment not in AUGMENTATIONS:
            raise unknown("augmentation", augment, AUGMENTATIONS)
        if data.is_table and (size is not None or augment not in (None, "none")):
            raise ValueError("rows of a table have no size and are not augmented; leave size and augment out")
        self.data, self.batch_size, self.seed, self.recipe = data, batch_size, seed, recipe
        self.augment = augment or ("none" if data.is_table else "plain")
        self.size = () if data.is_table else size or _common_size(data.train.sizes)
        self._order = lru_cache(maxsize=2)(self._epoch_order)
        self.mean, self.deviation = (0.0, 1.0) if data.is_table else self._statistics()
        self._vary = _augmentation(self.augment, data, self.size)
        self._mix: Any = None
        if self.augment == "timm":
            mixup = require("timm.data", "models").Mixup
            self._mix = mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=data.num_classes)
            if batch_size % 2:
                raise ValueError(f"mixup joins pairs: an even batch_size is needed, got {batch_size}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample as the network sees it: (c, h, w), or (d,)."""
        return (len(self.data.columns),) if self.data.is_table else (self.data.channels, *self.size)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every training sample is seen once."""
        return len(self.data.train) / self.batch_size

    def indices(self, step: int) -> list[int]:
        """The training samples of a step; orders of successive epochs are strung together."""
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        count = len(self.data.train)
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [int(self._order(place // count)[place % count]) for place in places]

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The training batch of a step: `(b, *shape)`, and classes `(b,)` or shares of classes `(b, k)`.

        Raises:
            DataError: a file that cannot be read (any more).
        """
        rows = self.indices(step)
        labels = self.data.train.labels[rows]
        with _seeded((self.seed * 1_000_003 + step) % 2**32):
            x = torch.stack([self._vary(self.data.train[row]) for row in rows])
            x = self._normalise(x)
            if self._mix is not None:
                x, labels = self._mix(x, labels.clone())
        return x, labels

    def batches(self, split: str = "val") -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over a split in its own order, nothing random: for evaluation.

        Raises:
            ValueError: a split other than "train" and "val".
        """
        splits: dict[str, ClassSet] = {"train": self.data.train, "val": self.data.val}
        if split not in splits:
            raise ValueError(f"split must be 'train' or 'val', got {split!r}")
        chosen = splits[split]
        for start in range(0, len(chosen), self.batch_size):
            rows = range(start, min(start + self.batch_size, len(chosen)))
            x = torch.stack([_fit(chosen[row], self.size) for row in rows])
            yield self._normalise(x), chosen.labels[list(rows)]

    def loss(self, output: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        """Cross-entropy with classes or shares of classes; the mean over both heads of a distilled network."""
        if isinstance(output, tuple):
            return (self.loss(output[0], labels) + self.loss(output[1], labels)) / 2
        return F.cross_entropy(output.float(), labels)

    def metrics(self) -> ClassificationMetrics:
        """A fresh counter."""
        return ClassificationMetrics(self.data.classes)

    def _normalise(self, x: Tensor) -> Tensor:
        return x if self.data.is_table else (x.float() / 255 - self.mean) / self.deviation

    def _epoch_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.data.train))

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each channel, `(c, 1, 1)`."""
        count = len(self.data.train)
        rows = np.random.default_rng(0).permutation(count)[:_STATISTICS]
        x = torch.stack([_fit(self.data.train[int(row)], self.size) for row in rows]).double() / 255
        mean, deviation = x.mean((0, 2, 3)), x.std((0, 2, 3)).clamp_min(1e-3)
        return mean.float()[:, None, None], deviation.float()[:, None, None]


def _augmentation(name: str, data: ClassificationData, size: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """One training picture `(c, h, w)` uint8 to another of the size; random numbers from the global generators."""
    if data.is_table or name == "none":
        return lambda x: _fit(x, size)
    transforms = require("torchvision.transforms.v2", "tasks")
    flip = [transforms.RandomHorizontalFlip()] if data.natural else []
    if max(size) >= _RESIZED:
        place = transforms.RandomResizedCrop(size, scale=(0.35, 1.0), antialias=True)
    else:
        # An eighth of the edge is the usual 4 of 32.
        place = transforms.RandomCrop(size, padding=[max(1, size[1] // 8), max(1, size[0] // 8)])
    if name == "plain":
        vary = transforms.Compose([place, *flip])
        return lambda x: vary(x if max(size) >= _RESIZED else _fit(x, size))
    auto = require("timm.data.auto_augment", "models")
    policy = auto.rand_augment_transform("rand-m9-mstd0.5-inc1", {})
    erase = require("timm.data.random_erasing", "models").RandomErasing(
        probability=0.25, mode="const", device="cpu"
    )
    functional = require("torchvision.transforms.v2.functional", "tasks")

    def vary_strongly(x: Tensor) -> Tensor:
        x = place(x if max(size) >= _RESIZED else _fit(x, size))
        for step in flip:
            x = step(x)
        # timm's policies know colour pictures of Pillow.
        colour = policy(functional.to_pil_image(x.expand(3, -1, -1) if x.shape[0] == 1 else x))
        found = functional.pil_to_tensor(colour)
        return erase(found[:1] if x.shape[0] == 1 else found)

    return vary_strongly


def _fit(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """The middle of a picture scaled so that its shorter side fits; rows of a table as they are."""
    if not size or tuple(x.shape[-2:]) == tuple(size):
        return x
    functional = require("torchvision.transforms.v2.functional", "tasks")
    scale = max(size[0] / x.shape[-2], size[1] / x.shape[-1])
    wanted = [max(size[0], round(x.shape[-2] * scale)), max(size[1], round(x.shape[-1] * scale))]
    return functional.center_crop(functional.resize(x, wanted, antialias=True), list(size))


def _common_size(sizes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    if len(sizes) == 1:
        return sizes[0][0], sizes[0][1]
    height, width = np.median(np.array(sizes), axis=0).astype(int)
    return min(int(height), _LARGEST), min(int(width), _LARGEST)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """All global generators from a seed; afterwards as they were. The libraries of augmentation use all three."""
    plain, array = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(array)  # noqa: NPY002
