# SPDX-License-Identifier: Apache-2.0
"""What every layout is read into: two sets of `(sample, class)`, the classes, and what was left out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from widefield.core.extras import require
from widefield.data.images import DataError, read_image

_SHOWN = 5


class ClassSet(Protocol):
    """Samples with a class each: `self[i]` is a picture `(c, h, w)` uint8, or a row `(d,)` float32."""

    @property
    def labels(self) -> Tensor:
        """`(n,)` int64."""
        ...

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The shapes that occur, each once: `(h, w)` of pictures, `(d,)` of rows."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Tensor: ...

    def digest(self) -> str:
        """A hash of what it holds."""
        ...


@dataclass(frozen=True)
class ArraySet:
    """Samples in memory.

    Attributes:
        samples: `(n, c, h, w)` uint8 or `(n, d)` float32.
        labels: `(n,)` int64.
    """

    samples: Tensor
    labels: Tensor

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The one shape."""
        return [tuple(self.samples.shape[2:]) if self.samples.dim() == 4 else tuple(self.samples.shape[1:])]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tensor:
        return self.samples[index]

    def digest(self) -> str:
        """A hash of all values."""
        found = hashlib.sha256(self.samples.contiguous().numpy().tobytes())
        found.update(self.labels.contiguous().numpy().tobytes())
        return found.hexdigest()


class PictureSet:
    """Pictures on disk, read when asked for, `(3, h, w)` uint8.

    Raises (from `self[i]`):
        DataError: the file changed since it was looked at.
    """

    def __init__(self, paths: Sequence[Path], labels: Sequence[int]) -> None:
        self.paths = tuple(paths)
        self.labels = torch.tensor(list(labels), dtype=torch.int64)
        self._sizes: list[tuple[int, ...]] | None = None

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """From the headers, the rotation that cameras note taken into account."""
        if self._sizes is None:
            self._sizes = sorted({_header_size(path) for path in self.paths})
        return self._sizes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(read_image(self.paths[index]).transpose(2, 0, 1).copy())

    def digest(self) -> str:
        """A hash of names, contents and labels."""
        found = hashlib.sha256(self.labels.numpy().tobytes())
        for path in self.paths:
            found.update(f"{path.parent.name}/{path.name}".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
        return found.hexdigest()


@dataclass(frozen=True)
class ClassificationData:
    """A data set for classification.

    Attributes:
        name: for tables and records.
        classes: names; the index is the label.
        train, val: the two splits.
        problems: what was left out, with the reason.
        natural: photographs, which may be flipped; False for digits and tables.
        columns: names of the features of a table; empty for pictures.
    """

    name: str
    classes: tuple[str, ...]
    train: ClassSet
    val: ClassSet
    problems: tuple[str, ...] = ()
    natural: bool = True
    columns: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for what, split in (("training", self.train), ("validation", self.val)):
            if len(split) == 0:
                raise DataError(f"{self.name}: no sample for {what}; both splits need at least one")
            labels = split.labels
            if int(labels.min()) < 0 or int(labels.max()) >= len(self.classes):
                raise DataError(
                    f"{self.name}: {what} labels run from {int(labels.min())} to {int(labels.max())}; with "
                    f"{len(self.classes)} classes, 0..{len(self.classes) - 1} are accepted"
                )

    @property
    def num_classes(self) -> int:
        """How many classes."""
        return len(self.classes)

    @property
    def is_table(self) -> bool:
        """Whether samples are rows of a table."""
        return bool(self.columns)

    @property
    def channels(self) -> int:
        """Of the pictures."""
        return int(self.train[0].shape[0])

    def fingerprint(self) -> str:
        """Changes when samples, labels, classes or splits do."""
        digest = hashlib.sha256(repr((self.name, self.classes, self.columns)).encode())
        for split in (self.train, self.val):
            digest.update(split.digest().encode())
        return digest.hexdigest()[:16]

    def summary(self) -> str:
        """Counts, classes, sizes, and what was left out; for a person."""
        names = ", ".join(self.classes[:12]) + (", ..." if len(self.classes) > 12 else "")
        kind = f"rows of {len(self.columns)} features" if self.is_table else "pictures"
        sizes = sorted({*self.train.sizes, *self.val.sizes})
        if not self.is_table:
            span = "x".join(map(str, sizes[0][::-1]))
            kind += f" ({span})" if len(sizes) == 1 else f" ({len(sizes)} sizes)"
        lines = [
            f"{self.name}: {len(self.train)} training and {len(self.val)} validation {kind}, "
            f"{self.num_classes} classes: {names}"
        ]
        if self.problems:
            lines.append(f"left out: {len(self.problems)}")
            lines += [f"  {problem}" for problem in self.problems[:_SHOWN]]
            if len(self.problems) > _SHOWN:
                lines.append(f"  and {len(self.problems) - _SHOWN} more")
        return "\n".join(lines)


def split_rows(labels: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training and for validation, each class in proportion; the same on every machine.

    Raises:
        DataError: the fraction does not lie between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise DataError(f"val_fraction must lie between 0 and 1, got {fraction}")
    selection = require("sklearn.model_selection", "tasks")
    rows, counts = np.arange(len(labels)), np.bincount(labels)
    wanted = round(fraction * len(labels))
    classes = int((counts > 0).sum())
    each = counts[counts > 0].min() >= 2 and wanted >= classes and len(labels) - wanted >= classes
    train, val = selection.train_test_split(
        rows, test_size=max(wanted, 1), random_state=0, stratify=labels if each else None
    )
    return np.sort(train), np.sort(val)


def _header_size(path: Path) -> tuple[int, ...]:
    with require("PIL.Image", "tasks").open(path) as picture:
        width, height = picture.size
        turned = picture.getexif().get(0x0112, 1) >= 5
    return (width, height) if turned else (height, width)
