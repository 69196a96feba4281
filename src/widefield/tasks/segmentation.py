# SPDX-License-Identifier: Apache-2.0
"""Semantic segmentation as a task: which pictures at which step, the loss, the score, the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widefield.data.base import SegmentationData, SegmentationSet
from widefield.tasks.augment import centre_view, random_view
from widefield.tasks.losses import Loss, cross_entropy
from widefield.tasks.metrics import SegmentationMetrics
from widefield.tasks.recipe import FINE_TUNE, SCRATCH, Recipe

_LARGEST_CROP = 512


class Segmentation:
    """Batches, loss and metrics over a `SegmentationData`.

    `batch(step)` is a function of `(seed, step)`: a run that resumes at step s sees what the uninterrupted
    one saw, and every module of a comparison sees the same. Pictures are drawn in a new random order each
    epoch, the augmentation from a generator of its own for each step and place.

    Args:
        data: what to learn.
        batch_size: pictures a step.
        crop: height and width of training pictures. None: the common size of the training pictures; if they
            differ, their median height and width, at most 512.
        augment: random scale, crop and flip in training. Never for data that is not natural (the scenes).
        seed: of the order and the augmentation.
        recipe: how to train; None: from scratch for data that is not natural, else fine-tuning.

    Raises:
        ValueError: a batch size or crop below 1, or a negative seed.
    """

    def __init__(
        self,
        data: SegmentationData,
        *,
        batch_size: int = 16,
        crop: tuple[int, int] | None = None,
        augment: bool = True,
        seed: int = 0,
        recipe: Recipe | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        if crop is not None and min(crop) < 1:
            raise ValueError(f"crop must be a height and a width of at least 1, got {crop}")
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.augment = augment and data.natural
        self.crop = crop or _common_size(data.train.sizes)
        self.recipe = recipe or (FINE_TUNE if data.natural else SCRATCH)
        # Asked for at every step, and a list as long as the set.
        self._whole = set(data.train.sizes) == {self.crop}
        self._order = lru_cache(maxsize=2)(self._epoch_order)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every training picture is seen once."""
        return len(self.data.train) / self.batch_size

    def indices(self, step: int) -> list[int]:
        """The training pictures of a step; orders of successive epochs are strung together."""
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        count = len(self.data.train)
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [int(self._order(place // count)[place % count]) for place in places]

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The training batch of a step: images `(b, 3, h, w)` uint8, labels `(b, h, w)` int64.

        Raises:
            DataError: a file that cannot be read (any more).
        """
        indices = self.indices(step)
        if not self.augment and self._whole:
            return _draw(self.data.train, indices)
        views = []
        for place, index in enumerate(indices):
            image, label = self.data.train[index]
            if self.augment:
                generator = np.random.default_rng((self.seed, 1, step, place))
                views.append(random_view(image, label, self.crop, generator))
            else:
                views.append(centre_view(image, label, self.crop))
        return torch.stack([image for image, _ in views]), torch.stack([label for _, label in views])

    def batches(self, split: str = "val") -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over a split in its own order, whole pictures, nothing random: for evaluation.

        Pictures of one size that follow each other share a batch; nothing is padded, since a context module
        would look at the padding.

        Raises:
            ValueError: a split other than "train" and "val".
        """
        splits = {"train": self.data.train, "val": self.data.val}
        if split not in splits:
            raise ValueError(f"split must be 'train' or 'val', got {split!r}")
        chosen = splits[split]
        sizes, start = chosen.sizes, 0
        while start < len(chosen):
            stop = start + 1
            while stop < min(len(chosen), start + self.batch_size) and sizes[stop] == sizes[start]:
                stop += 1
            yield _draw(chosen, range(start, stop))
            start = stop

    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        """Cross-entropy over the pixels that count, and their number; exactly 0 if there are none."""
        return cross_entropy(logits, labels, ignore_index=self.data.ignore_index)

    def metrics(self) -> SegmentationMetrics:
        """A fresh counter for mIoU and pixel accuracy."""
        return SegmentationMetrics(self.data.classes, ignore_index=self.data.ignore_index)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.data.train))


def _draw(split: SegmentationSet, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Pictures of one size, in one call where the data set can."""
    at_once: Any = getattr(split, "batch", None)
    if at_once is not None:
        return at_once(indices)
    pairs = [split[index] for index in indices]
    return torch.stack([image for image, _ in pairs]), torch.stack([label for _, label in pairs])


def _common_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    if len(set(sizes)) == 1:
        return sizes[0]
    height, width = np.median(np.array(sizes), axis=0).astype(int)
    return min(int(height), _LARGEST_CROP), min(int(width), _LARGEST_CROP)
