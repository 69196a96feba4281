# SPDX-License-Identifier: Apache-2.0
"""Singular values of a feature map before and after a module, over a data set.

The matrix of an image is `(c, n)`: a column a position. Its singular values come from the Gram matrix `(c, c)`
in float64, so no `n x n` matrix exists and any number of images can be pooled. What lies below 1.5e-8 sqrt(c)
of the largest value is rounding of the Gram matrix and is reported as zero.

The cumulative ratio of energy, `sum of the first r squares / sum of all squares`, is what the Hamburger paper
(Geng et al., ICLR 2021, arXiv:2109.04553) plots; the effective rank is Roy and Vetterli's (EUSIPCO 2007).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from .workload import device_of


def effective_rank(singular_values: Tensor) -> Tensor:
    """Exponential of the entropy of the singular values scaled to sum 1 (Roy and Vetterli, 2007).

    Args:
        singular_values: (..., k), non-negative.

    Returns:
        (...): between 1 (one non-zero value) and k (all equal); 0 for an all-zero matrix.

    Raises:
        ValueError: a value is negative or not finite.
    """
    if singular_values.numel() and not (singular_values.isfinite().all() and (singular_values >= 0).all()):
        raise ValueError("singular values must be finite and non-negative; take them from torch.linalg.svdvals")
    total = singular_values.sum(-1, keepdim=True)
    share = singular_values / torch.where(total > 0, total, 1.0)
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(total.squeeze(-1) > 0, rank, 0.0)


@dataclass(frozen=True)
class SingularValues:
    """Singular values of the `(c, n)` feature matrices of a data set, largest first.

    Attributes:
        values: (c) mean over images of each image's values.
        cumulative: (c) mean over images of the ratio of energy in the first 1, 2, ... values.
        effective_rank: mean over images.
        pooled: (c) values of the one matrix that holds the positions of all images.
        pooled_effective_rank: of that matrix.
        images: how many.
    """

    values: tuple[float, ...]
    cumulative: tuple[float, ...]
    effective_rank: float
    pooled: tuple[float, ...]
    pooled_effective_rank: float
    images: int

    @property
    def pooled_cumulative(self) -> tuple[float, ...]:
        """Ratio of energy in the first 1, 2, ... pooled values."""
        return tuple(cumulative_energy(torch.tensor(self.pooled, dtype=torch.float64)).tolist())

    def rank_at(self, ratio: float, *, pooled: bool = False) -> int:
        """The fewest singular values that hold `ratio` of the energy; 0 when there is no energy.

        Raises:
            ValueError: `ratio` is not in (0, 1].
        """
        if not 0 < ratio <= 1:
            raise ValueError(
                f"ratio={ratio} is not a share of the energy; give a number above 0 and up to 1, like 0.9"
            )
        curve = self.pooled_cumulative if pooled else self.cumulative
        # Rounding may leave the whole a little under 1.
        reached = (index + 1 for index, share in enumerate(curve) if share >= ratio - 1e-12)
        return next(reached, len(curve)) if curve and curve[-1] > 0 else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return {
            "values": list(self.values),
            "cumulative": list(self.cumulative),
            "effective_rank": self.effective_rank,
            "rank_at_90": self.rank_at(0.9),
            "pooled": list(self.pooled),
            "pooled_cumulative": list(self.pooled_cumulative),
            "pooled_effective_rank": self.pooled_effective_rank,
            "images": self.images,
        }


@dataclass(frozen=True)
class Spectrum:
    """What a module does to the singular values of the features that pass it.

    Attributes:
        before: of the module's input.
        after: of its output.
    """

    before: SingularValues
    after: SingularValues

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return {"before": self.before.as_dict(), "after": self.after.as_dict()}


class SpectrumAccumulator:
    """Collects the singular values of feature maps `(b, c, *space)`, batch after batch."""

    def __init__(self) -> None:
        self._values: list[Tensor] = []
        self._gram: Tensor | None = None

    def update(self, features: Tensor) -> None:
        """Adds a batch.

        Raises:
            ValueError: not `(b, c, *space)`, another number of channels than before, or not finite.
        """
        if features.dim() < 3:
            raise ValueError(
                f"features of shape {tuple(features.shape)}; accepted is (b, c, *space), such as a feature map"
            )
        matrix = features.detach().flatten(2).double()
        gram = matrix @ matrix.mT
        if not gram.isfinite().all():
            raise ValueError(
                "the features hold NaN or infinity and have no spectrum; look at the network before it"
            )
        if self._gram is not None and len(self._gram) != features.shape[1]:
            raise ValueError(
                f"features of {features.shape[1]} channels after features of {len(self._gram)}; one spectrum "
                f"needs one number of channels"
            )
        self._values.append(singular_values_of_gram(gram).cpu())
        pooled = gram.sum(0).cpu()
        self._gram = pooled if self._gram is None else self._gram + pooled

    def result(self) -> SingularValues:
        """The spectrum of everything so far.

        Raises:
            ValueError: there was nothing.
        """
        if self._gram is None:
            raise ValueError("no features were given; pass at least one batch (b, c, *space)")
        values, pooled = torch.cat(self._values), singular_values_of_gram(self._gram)
        return SingularValues(
            values=tuple(values.mean(0).tolist()),
            cumulative=tuple(cumulative_energy(values).mean(0).tolist()),
            effective_rank=float(effective_rank(values).mean()),
            pooled=tuple(pooled.tolist()),
            pooled_effective_rank=float(effective_rank(pooled)),
            images=len(values),
        )


def singular_values_of_gram(gram: Tensor) -> Tensor:
    """(..., c, c) symmetric, the product of a matrix and its transpose -> (..., c), largest first."""
    squares = torch.linalg.eigvalsh(gram).flip(-1)
    floor = torch.finfo(gram.dtype).eps * gram.shape[-1] * squares[..., :1]
    return torch.where(squares > floor, squares, 0.0).sqrt()


def cumulative_energy(singular_values: Tensor) -> Tensor:
    """(..., k) -> (..., k): share of the squares held by the first 1, 2, ... values; zeros for a zero matrix."""
    energy = singular_values.square().cumsum(-1)
    total = energy[..., -1:]
    return energy / torch.where(total > 0, total, 1.0)


def spectrum(
    module: Callable[[Tensor], Tensor],
    batches: Iterable[Any],
    *,
    before: Callable[[Tensor], Tensor] | None = None,
    max_batches: int | None = None,
) -> Spectrum:
    """Singular values of the features before and after a module, over a data set.

    Modules run in eval mode, without gradients, and are put back into the mode they were in.

    Args:
        module: the context module, or a function, `(b, c, *space) -> (b, c', *space)`.
        batches: feature maps; or, with `before`, whatever that takes. An item that is a tuple or list, as from
            a `DataLoader`, stands for its first entry.
        before: makes the features that enter the module, a backbone for example.
        max_batches: stop after so many.

    Returns:
        Both spectra.

    Raises:
        ValueError: no batches, features of another form or not finite.
        TypeError: a batch is not a tensor.
    """
    parts = [part for part in (module, before) if isinstance(part, nn.Module)]
    modes = [(child, child.training) for part in parts for child in part.modules()]
    device = device_of(parts[-1], None) if parts else None
    entering, leaving = SpectrumAccumulator(), SpectrumAccumulator()
    try:
        for part in parts:
            part.eval()
        with torch.no_grad():
            for batch in islice(batches, max_batches):
                x = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
                if not isinstance(x, Tensor):
                    raise TypeError(
                        f"a batch of type {type(x).__name__}; accepted are tensors, or tuples that begin with one"
                    )
                x = x.to(device) if device is not None else x
                features = before(x) if before is not None else x
                entering.update(features)
                leaving.update(module(features))
    finally:
        for child, training in modes:
            child.training = training
    return Spectrum(entering.result(), leaving.result())
