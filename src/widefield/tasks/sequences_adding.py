# SPDX-License-Identifier: Apache-2.0
"""Tasks with one answer at the end of a long sequence: adding two marked numbers, a digit pixel by pixel.

Paper   adding: Hochreiter & Schmidhuber, Long Short-Term Memory, 1997; digits: Le, Jaitly, Hinton,
        arXiv:1504.00941.
Differs the digits are the 8 x 8 ones that scikit-learn brings, 64 steps, not MNIST's 784.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.core.extras import require
from widefield.tasks.sequences import EVALUATION, SequenceBatch, SequenceTask


class Adding(SequenceTask):
    """Numbers in [0, 1] and two marks, one in each half: the sum of the marked ones.

    Args:
        length: steps, at least 2.
        batch_size, seed: of the training.
    """

    name, key, measure = "adding", "mse", "squared error"
    input_size, output_size = 2, 1
    scored = 500

    def __init__(self, *, length: int = 100, batch_size: int = 32, seed: int = 0) -> None:
        if length < 2:
            raise ValueError(f"adding: the length must be at least 2, got {length}")
        super().__init__(batch_size=batch_size, seed=seed)
        self.length = self.fixed_steps = length

    def batch(self, step: int) -> SequenceBatch:
        return self.draw(self.generator(step), self.batch_size)

    def batches(self) -> Iterator[SequenceBatch]:
        yield self.draw(np.random.default_rng((EVALUATION, self.length)), self.scored)

    def draw(self, generator: np.random.Generator, count: int) -> SequenceBatch:
        """`count` sequences."""
        half, rows = self.length // 2, np.arange(count)
        values = generator.random((count, self.length)).astype(np.float32)
        marks = np.zeros_like(values)
        marks[rows, generator.integers(0, half, count)] = 1
        marks[rows, generator.integers(half, self.length, count)] = 1
        y = (values * marks).sum(1, keepdims=True)
        return SequenceBatch(torch.from_numpy(np.stack([values, marks], -1)), torch.from_numpy(y))

    def loss(self, output: Tensor, batch: SequenceBatch) -> Tensor:
        return F.mse_loss(output[:, -1].float(), batch.y)

    def score(self, said: Sequence[tuple[Tensor, SequenceBatch]]) -> dict[str, Any]:
        """`mse`, and the share of answers within 0.04."""
        errors = torch.cat([(output[:, -1].float() - batch.y).flatten() for output, batch in said])
        return {"mse": float(errors.square().mean()), "accuracy": float((errors.abs() < 0.04).float().mean())}

    def baselines(self) -> Mapping[str, float]:
        """Always 1: the variance of the sum of two uniform numbers."""
        return {"always 1": 1 / 6}


class Digits(SequenceTask):
    """A digit read pixel by pixel, and which it was: 64 steps of one number.

    Args:
        permuted: the pixels in one fixed random order.
        batch_size, seed: of the training.
    """

    name, key, measure = "digits", "accuracy", "accuracy"
    higher_is_better = True
    input_size, output_size = 1, 10
    fixed_steps, held_out = 64, 360

    def __init__(self, *, permuted: bool = False, batch_size: int = 32, seed: int = 0) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        pixels, labels = require("sklearn.datasets", "tasks").load_digits(return_X_y=True)
        generator = np.random.default_rng(EVALUATION)
        order = generator.permutation(len(labels))
        if permuted:
            pixels = pixels[:, generator.permutation(pixels.shape[1])]
        self.pixels = torch.from_numpy((pixels[order] / 16).astype(np.float32))[..., None]
        self.labels = torch.from_numpy(labels[order].astype(np.int64))

    def batch(self, step: int) -> SequenceBatch:
        rows = torch.from_numpy(
            self.generator(step).integers(0, len(self.labels) - self.held_out, self.batch_size)
        )
        return SequenceBatch(self.pixels[rows], self.labels[rows])

    def batches(self) -> Iterator[SequenceBatch]:
        yield SequenceBatch(self.pixels[-self.held_out :], self.labels[-self.held_out :])

    def loss(self, output: Tensor, batch: SequenceBatch) -> Tensor:
        return F.cross_entropy(output[:, -1].float(), batch.y)

    def score(self, said: Sequence[tuple[Tensor, SequenceBatch]]) -> dict[str, Any]:
        """`accuracy` and the mean cross-entropy in nats."""
        logits = torch.cat([output[:, -1].float() for output, _ in said])
        labels = torch.cat([batch.y for _, batch in said])
        right = (logits.argmax(-1) == labels).float().mean()
        return {"accuracy": float(right), "nll": float(F.cross_entropy(logits, labels))}

    def baselines(self) -> Mapping[str, float]:
        held = self.labels[-self.held_out :]
        return {"the most frequent": float(held.bincount().max() / len(held))}
