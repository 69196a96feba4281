# SPDX-License-Identifier: Apache-2.0
"""The same data with something taken away: its labels, its inputs, the order of its pixels, some of its classes.

The comparisons of Shwartz-Ziv et al., arXiv:2406.11463. Everything random comes from the seed that is given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from widefield.core.errors import unknown

from .samples import Samples


def semantic(samples: Samples, seed: int) -> Samples:
    """As they are."""
    return samples


def random_labels(samples: Samples, seed: int) -> Samples:
    """Every sample gets a class at random, all classes equally likely; targets of a regression become normal."""
    return Samples(samples.inputs, _drawn_labels(samples, _generator(seed, 1)), samples.num_classes)


def gaussian_inputs(samples: Samples, seed: int) -> Samples:
    """Independent standard normal inputs of the same shape, with labels as in `random_labels`.

    The labels are drawn too, so that this differs from `random_labels` in the inputs alone.
    """
    shape, random = samples.inputs.shape, _generator(seed, 2)
    inputs = torch.randn(shape, generator=random, dtype=torch.float64).to(samples.inputs)
    return Samples(inputs, _drawn_labels(samples, _generator(seed, 1)), samples.num_classes)


def permuted_inputs(samples: Samples, seed: int) -> Samples:
    """One permutation of the pixels (of the features, for a table), the same for all samples; labels are kept.

    The channels of a pixel stay together.
    """
    x = samples.inputs
    flat = x.flatten(2) if x.dim() > 2 else x
    places = torch.randperm(flat.shape[-1], generator=_generator(seed, 3)).to(x.device)
    return Samples(flat[..., places].reshape(x.shape), samples.labels, samples.num_classes)


VARIANTS: dict[str, Callable[[Samples, int], Samples]] = {
    "semantic": semantic,
    "random": random_labels,
    "gaussian": gaussian_inputs,
    "permuted": permuted_inputs,
}


def variant(name: str, samples: Samples, seed: int) -> Samples:
    """A variant by name.

    Raises:
        UnknownName: no such variant.
    """
    if name not in VARIANTS:
        raise unknown("variant of the data", name, VARIANTS)
    return VARIANTS[name](samples, seed)


def merge_classes(samples: Samples, classes: int, seed: int = 0) -> Samples:
    """Classes joined at random into fewer, as evenly as their number allows; no sample is lost.

    Args:
        samples: with at least as many classes.
        classes: how many remain.
        seed: of which are joined.

    Raises:
        ValueError: a regression, or a number outside 1 .. num_classes.
    """
    if not 1 <= classes <= samples.num_classes:
        raise ValueError(f"classes must lie in 1..{samples.num_classes} to be merged into, got {classes}")
    target = torch.randperm(samples.num_classes, generator=_generator(seed, 4)).to(samples.labels.device) % classes
    return Samples(samples.inputs, target[samples.labels], classes)


def _drawn_labels(samples: Samples, generator: torch.Generator) -> Tensor:
    y = samples.labels
    if samples.num_classes:
        return torch.randint(samples.num_classes, y.shape, generator=generator).to(y.device)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)


def _generator(seed: int, what: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 4 + what + 7_919) % 2**63)
