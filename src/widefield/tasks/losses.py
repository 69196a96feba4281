# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy that knows how many pixels it averaged."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Loss(NamedTuple):
    """A loss and the number of pixels behind it, both scalars on the device."""

    value: Tensor
    valid: Tensor


def cross_entropy(
    logits: Tensor, labels: Tensor, *, ignore_index: int = 255, weight: Tensor | None = None
) -> Loss:
    """Cross-entropy averaged over the pixels that count.

    Where no pixel counts (a crop without labels) the value is exactly 0, still part of the graph, with zero
    gradients; the mean of torch is NaN there, and stays in every average after it. With class weights the
    average is weighted, as in torch. Computed in float32 at least.

    Args:
        logits: `(b, k, h, w)`.
        labels: `(b, h, w)` int64, classes `0 .. k-1` or `ignore_index`.
        ignore_index: the label that does not count.
        weight: `(k,)` class weights.

    Raises:
        ValueError: shapes that do not belong together. TypeError: labels that are not int64.
    """
    check_shapes(logits, labels)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    valid = labels != ignore_index
    total = F.cross_entropy(logits, labels, weight=weight, ignore_index=ignore_index, reduction="sum")
    count = valid.sum()
    if weight is None:
        return Loss(total / count.clamp(min=1), count)
    mass = torch.where(valid, weight[labels.where(valid, 0)], 0).sum()
    return Loss(total / mass.where(mass > 0, 1), count)


def check_shapes(logits: Tensor, labels: Tensor) -> None:
    """Refuses logits and labels of different pictures.

    Raises:
        ValueError: not `(b, k, h, w)` and `(b, h, w)`. TypeError: labels that are not int64.
    """
    if logits.dim() != 4 or labels.dim() != 3 or logits[:, 0].shape != labels.shape:
        raise ValueError(
            f"expected logits (b, k, h, w) and labels (b, h, w), got {tuple(logits.shape)} and "
            f"{tuple(labels.shape)}; the network must resize its logits to the label's size"
        )
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be int64, got {labels.dtype}; convert with labels.long()")
