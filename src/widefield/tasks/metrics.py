# SPDX-License-Identifier: Apache-2.0
"""mIoU and pixel accuracy of a whole set, from one pooled confusion matrix of integers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from widefield.core.extras import require
from widefield.tasks.losses import check_shapes


class NoValidPixelWarning(UserWarning):
    """A score was asked for where no pixel has a label."""


@dataclass(frozen=True)
class SegmentationScore:
    """The result on a set.

    Attributes:
        miou: mean of the IoU over the classes that occur, in the labels or in the predictions; NaN without a
        valid
            pixel.
        pixel_accuracy: share of valid pixels that are right; NaN without one.
        iou: by class; None for a class that neither occurs nor is predicted.
        classes_averaged: how many classes the mean is over.
        valid_pixels: how many pixels were counted.
        confusion: rows are labels, columns predictions.
    """

    miou: float
    pixel_accuracy: float
    iou: dict[str, float | None]
    classes_averaged: int
    valid_pixels: int
    confusion: tuple[tuple[int, ...], ...]

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes that neither occur nor are predicted."""
        return tuple(name for name, value in self.iou.items() if value is None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: NaN becomes None."""
        return {
            "miou": None if math.isnan(self.miou) else self.miou,
            "pixel_accuracy": None if math.isnan(self.pixel_accuracy) else self.pixel_accuracy,
            "iou": dict(self.iou),
            "classes_averaged": self.classes_averaged,
            "valid_pixels": self.valid_pixels,
            "confusion": [list(row) for row in self.confusion],
        }

    def __str__(self) -> str:
        if not self.valid_pixels:
            return "no valid pixel"
        return (
            f"mIoU {self.miou:.4f} over {self.classes_averaged} of {len(self.iou)} classes, pixel accuracy "
            f"{self.pixel_accuracy:.4f}, {self.valid_pixels:,} pixels"
        )


class SegmentationMetrics:
    """Counts pixels over batches; `compute` gives the score of everything seen.

    The matrix is torchmetrics' `MulticlassConfusionMatrix` (64-bit integers, summed over processes in
    `compute`); the mean over classes is taken here, because `MulticlassJaccardIndex` gives absent classes 0
    in its per-class values.

    Args:
        classes: names, or how many.
        ignore_index: the label of pixels that do not count, whatever is predicted there.
    """

    def __init__(self, classes: Sequence[str] | int, *, ignore_index: int = 255) -> None:
        names = [str(i) for i in range(classes)] if isinstance(classes, int) else list(classes)
        if not names:
            raise ValueError("at least one class is needed to score a segmentation, got none")
        if 0 <= ignore_index < len(names):
            raise ValueError(f"ignore_index={ignore_index} is one of the {len(names)} classes")
        self.classes, self.ignore_index = tuple(names), ignore_index
        # The binary and the multiclass matrix differ below two classes only in what they accept.
        self._matrix = require("torchmetrics.classification", "tasks").MulticlassConfusionMatrix(
            max(len(names), 2), ignore_index=ignore_index, validate_args=False
        )

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Counts a batch: logits `(b, k, h, w)` or predicted classes `(b, h, w)`, and labels `(b, h, w)` int64.

        Raises:
            ValueError: shapes that do not belong together, or values that are no class.
        """
        k = len(self.classes)
        if prediction.dim() == 4:
            check_shapes(prediction, labels)
            if prediction.shape[1] != k:
                raise ValueError(f"expected logits of {k} classes, got {prediction.shape[1]}")
            prediction = prediction.argmax(dim=1)
        if prediction.shape != labels.shape or prediction.is_floating_point():
            raise ValueError(
                "expected logits (b, k, h, w) or predicted classes (b, h, w) as integers, with labels (b, h, w); "
                f"got {prediction.dtype} {tuple(prediction.shape)} and {tuple(labels.shape)}"
            )
        valid = labels != self.ignore_index
        for what, values in (("labels", labels[valid]), ("predictions", prediction[valid])):
            if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < k:
                raise ValueError(
                    f"the {what} hold values from {int(values.min())} to {int(values.max())}; accepted are "
                    f"0..{k - 1}, and {self.ignore_index} in labels for pixels that do not count"
                )
        if self._matrix.device != labels.device:
            self._matrix.to(labels.device)
        # What stands at an uncounted pixel need not be a class.
        self._matrix.update(prediction.where(valid, 0).long(), labels.long())

    def compute(self) -> SegmentationScore:
        """The score so far.

        Warns:
            NoValidPixelWarning: nothing was counted; the means are NaN.
        """
        k = len(self.classes)
        with warnings.catch_warnings():
            # torchmetrics warns that update was not called; the warning below says it better.
            warnings.simplefilter("ignore", UserWarning)
            confusion = self._matrix.compute()[:k, :k].cpu().to(torch.int64)
        valid = int(confusion.sum())
        if not valid:
            warnings.warn(
                "no valid pixel: every label is ignored, so mIoU and pixel accuracy are NaN",
                NoValidPixelWarning,
                stacklevel=2,
            )
        hits = confusion.diagonal()
        union = confusion.sum(0) + confusion.sum(1) - hits
        scores = [int(h) / int(u) if u else None for h, u in zip(hits, union, strict=True)]
        present = [score for score in scores if score is not None]
        return SegmentationScore(
            miou=math.fsum(present) / len(present) if present else math.nan,
            pixel_accuracy=int(hits.sum()) / valid if valid else math.nan,
            iou=dict(zip(self.classes, scores, strict=True)),
            classes_averaged=len(present),
            valid_pixels=valid,
            confusion=tuple(tuple(row) for row in confusion.tolist()),
        )

    def reset(self) -> None:
        """Forgets everything counted."""
        self._matrix.reset()
