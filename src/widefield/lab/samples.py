# SPDX-License-Identifier: Apache-2.0
"""A data set as the numbers that a network is given when its capacity is measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from widefield.core.extras import require
from widefield.data.classification import ClassificationData, ClassSet
from widefield.data.images import DataError
from widefield.measure.capacity import Samples, merge_classes


@dataclass(frozen=True)
class Prepared:
    """Training and held-out samples, and what was done to them."""

    train: Samples
    val: Samples
    note: str


def prepare(
    data: ClassificationData, components: int | None = None, classes: int | None = None, samples: int | None = None
) -> Prepared:
    """Standardised samples.

    Pictures are brought to 0..1 and standardised by the mean and deviation of each channel over the training
    split; tables already are. Principal components are standardised one by one.

    Args:
        data: pictures of one size, or a table.
        components: take the first principal components of the training samples instead; None: the samples.
        classes: merge the classes at random into so many; None: as they are.
        samples: use the first of a random order, so many training samples; None: all.

    Raises:
        DataError: pictures of several sizes. ValueError: a number out of range.
    """
    if samples is not None and not 1 <= samples <= len(data.train):
        raise ValueError(f"samples must lie in 1..{len(data.train)}, got {samples}")
    rows = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:samples]
    if samples is None:
        rows = torch.arange(len(data.train))
    x, y = _stack(data, data.train, rows), data.train.labels[rows]
    held, held_labels = _stack(data, data.val, torch.arange(len(data.val))), data.val.labels
    notes = ["standardised by feature" if data.is_table else "standardised by channel"]
    if not data.is_table:
        mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True).clamp_min(1e-6)
        x, held = (x - mean) / deviation, (held - mean) / deviation
    if components is not None:
        x, held = _components(x, held, components)
        notes = [f"first {components} principal components, standardised"]
    parts = [Samples(a, b, data.num_classes) for a, b in ((x, y), (held, held_labels))]
    if classes is not None:
        parts = [merge_classes(part, classes) for part in parts]
        notes.append(f"{data.num_classes} classes merged at random into {classes}")
    return Prepared(parts[0], parts[1], ", ".join(notes))


def _stack(data: ClassificationData, split: ClassSet, rows: Tensor) -> Tensor:
    if not data.is_table and len({*data.train.sizes, *data.val.sizes}) > 1:
        raise DataError(
            f"{data.name}: pictures of several sizes, {data.train.sizes[0]} to {data.train.sizes[-1]}; capacity "
            "is measured on pictures of one size"
        )
    found = torch.stack([split[int(row)] for row in rows]).float()
    return found if data.is_table else found / 255


def _components(x: Tensor, held: Tensor, components: int) -> tuple[Tensor, Tensor]:
    features = x.flatten(1).shape[1]
    if not 1 <= components <= min(features, len(x)):
        raise ValueError(f"components must lie in 1..{min(features, len(x))}, got {components}")
    pca = require("sklearn.decomposition", "tasks").PCA(components, svd_solver="full")
    a = torch.from_numpy(pca.fit_transform(x.flatten(1).double().numpy()))
    b = torch.from_numpy(pca.transform(held.flatten(1).double().numpy()))
    deviation = a.std(0).clamp_min(1e-12)
    return (a / deviation).float(), (b / deviation).float()
