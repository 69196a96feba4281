# SPDX-License-Identifier: Apache-2.0
"""The labelled samples that a network is to fit, and which of them no function can."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Inputs and what is to be said of each.

    Attributes:
        inputs: `(n, *shape)` floating point, as the network takes them.
        labels: `(n,)` int64 classes, or `(n, k)` floating-point targets of a regression.
        num_classes: of the labels; 0 for a regression.

    Raises:
        ValueError: no samples, another number of labels, labels outside the classes, values that are not finite.
        TypeError: inputs that are not floating point, labels that are neither classes nor `(n, k)` targets.
    """

    inputs: Tensor
    labels: Tensor
    num_classes: int = 0

    def __post_init__(self) -> None:
        x, y, k = self.inputs, self.labels, self.num_classes
        if not x.is_floating_point():
            raise TypeError(f"inputs are {x.dtype}; give floating-point values, such as pictures scaled to 0..1")
        if x.dim() < 2 or len(x) == 0 or len(x) != len(y):
            raise ValueError(
                f"expected inputs (n, ...) and as many labels, n at least 1; got {tuple(x.shape)} and "
                f"{tuple(y.shape)}"
            )
        if not bool(x.isfinite().all()):
            raise ValueError("the inputs hold values that are not finite; fill or drop them first")
        if k:
            if y.dtype != torch.int64 or y.dim() != 1:
                raise TypeError(f"classes are (n,) int64, got {tuple(y.shape)} {y.dtype}")
            if int(y.min()) < 0 or int(y.max()) >= k:
                raise ValueError(
                    f"labels run from {int(y.min())} to {int(y.max())}; with num_classes={k}, 0..{k - 1} are "
                    "accepted"
                )
        elif y.dim() != 2 or not y.is_floating_point():
            raise TypeError(
                f"without num_classes the labels are targets (n, k), floating point; got {tuple(y.shape)} "
                f"{y.dtype}"
            )
        elif not bool(y.isfinite().all()):
            raise ValueError("the targets hold values that are not finite; fill or drop them first")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def outputs(self) -> int:
        """How many numbers the network has to give for a sample."""
        return self.num_classes or self.labels.shape[1]

    def take(self, rows: Tensor) -> Samples:
        """The samples of these rows, in this order."""
        return Samples(self.inputs[rows], self.labels[rows], self.num_classes)

    def fingerprint(self) -> str:
        """A hash of all values."""
        digest = hashlib.sha256(repr((tuple(self.inputs.shape), self.num_classes)).encode())
        digest.update(self.inputs.detach().cpu().contiguous().numpy().tobytes())
        digest.update(self.labels.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def order(count: int, seed: int, size: int | None = None) -> Tensor:
    """`(count,)`: a random order; of each size its own if `size` is given."""
    entropy = (seed * 1_000_003 + (0 if size is None else size + 1)) % 2**63
    return torch.randperm(count, generator=torch.Generator().manual_seed(entropy))


def copies(inputs: Tensor) -> Tensor:
    """`(n,)` int64: the first row with the same input; rows of equal inputs get one number."""
    first: dict[bytes, int] = {}
    # Adding zero turns -0.0 into 0.0, which is the same input.
    rows = (inputs.detach().cpu().flatten(1) + 0.0).contiguous().numpy()
    return torch.tensor([first.setdefault(row.tobytes(), i) for i, row in enumerate(rows)])


def fittable(samples: Samples) -> int:
    """The length of the longest beginning in which no two equal inputs have different labels.

    No function fits more: a bound on any capacity measured on these samples in this order.
    """
    source = copies(samples.inputs)
    differs = samples.labels != samples.labels[source]
    differs = differs.flatten(1).any(1) if differs.dim() > 1 else differs
    wrong = differs.nonzero()
    return int(wrong[0]) if len(wrong) else len(samples)


def without_conflicts(samples: Samples) -> Samples:
    """The samples without the inputs whose copies have different labels.

    Raises:
        ValueError: nothing is left.
    """
    source = copies(samples.inputs)
    differs = samples.labels != samples.labels[source]
    differs = differs.flatten(1).any(1) if differs.dim() > 1 else differs
    kept = ~torch.isin(source, source[differs].unique())
    if not bool(kept.any()):
        raise ValueError(
            f"each of the {len(samples)} inputs has a copy with another label; nothing is left that can be fitted"
        )
    return samples.take(kept.nonzero()[:, 0])
