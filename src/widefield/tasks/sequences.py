# SPDX-License-Identifier: Apache-2.0
"""Tasks over sequences: what they share, and those that a memory is tested with.

copy                 say the sequence again
repeat-copy          say it so many times, then mark the end
associative-recall   after some items, one of them is shown: say the one that followed it

Paper   Neural Turing Machines, arXiv:1410.5401, section 4.
Differs a batch holds sequences of one length, so nothing is padded. `curriculum` lets the longest length rise over
        the run; the paper has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.tasks.recipe import Recipe

ADAM = Recipe(optimizer="adam", lr=1e-3, weight_decay=0.0, schedule="constant", warmup=0.0, clip=1.0)
MEMORY = Recipe(optimizer="adam", lr=1e-3, weight_decay=0.0, schedule="constant", warmup=0.0, clip=10.0)
EVALUATION = 20_060_207  # of the generators of what is scored: the same for every seed of a run


@dataclass(frozen=True)
class SequenceBatch:
    """What a network is given and what it should say.

    Attributes:
        x: `(b, t, d)`.
        y: what is to be said, `(b, t, ...)` or, where only the last step counts, `(b, ...)`.
        counts: `(b, t)` bool, the steps that are scored; None: the last one.
        lengths: `(b,)`, None for all of them t.
        name: of the part of an evaluation that it belongs to.
    """

    x: Tensor
    y: Tensor
    counts: Tensor | None = None
    lengths: Tensor | None = None
    name: str = ""

    def to(self, device: torch.device) -> SequenceBatch:
        """On a device."""
        moved = (None if t is None else t.to(device) for t in (self.x, self.y, self.counts, self.lengths))
        return SequenceBatch(*moved, self.name)  # type: ignore[arg-type]


class SequenceTask:
    """Batches, loss and scores. `batch(step)` is a function of `(seed, step)`: a run that resumes sees the same.

    Attributes:
        name: as the command line has it.
        input_size, output_size: widths of x and of the network's output.
        key, measure: the score that is compared, and how people call it.
        higher_is_better: whether more of it is.
        recipe: how to train.
        carried: the state after a batch of `batches` is the start of the next one.
        fixed_steps: of every sequence, where all are of one length.
    """

    name: str
    input_size: int
    output_size: int
    key: str
    measure: str
    higher_is_better = False
    recipe: Recipe = ADAM
    carried = False
    fixed_steps: int | None = None

    def __init__(self, *, batch_size: int = 16, seed: int = 0) -> None:
        require_positive(f"the task {self.name}", batch_size=batch_size)
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.batch_size, self.seed = batch_size, seed

    def batch(self, step: int) -> SequenceBatch:
        """The training batch of a step."""
        raise NotImplementedError

    def batches(self) -> Iterator[SequenceBatch]:
        """What is scored: the same whatever the seed."""
        raise NotImplementedError

    def loss(self, output: Tensor, batch: SequenceBatch) -> Tensor:
        """A scalar."""
        raise NotImplementedError

    def score(self, said: Sequence[tuple[Tensor, SequenceBatch]]) -> dict[str, Any]:
        """Plain numbers, `key` among them, from outputs and batches."""
        raise NotImplementedError

    def baselines(self) -> Mapping[str, float]:
        """What needs no network, in the units of `key`."""
        return {}

    def generator(self, step: int) -> np.random.Generator:
        """Of a training step."""
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        return np.random.default_rng((self.seed, 1, step))


def bits(generator: np.random.Generator, *shape: int) -> Tensor:
    """Independent fair bits."""
    return torch.from_numpy(generator.integers(0, 2, shape).astype(np.float32))


class BitTask(SequenceTask):
    """Tasks that say bits: the output is their logits, the loss the cross-entropy of those that count.

    Args:
        longest: of the training; the meaning is the task's.
        curriculum: share of the run over which the longest rises from the shortest to `longest`; 0 for none.
        steps: of the run; needed for a curriculum.
        batch_size, seed: of the training.
    """

    key, measure, recipe = "bit_error", "bit error", MEMORY
    shortest = 1
    scored = 50  # sequences of every length

    def __init__(
        self, *, longest: int = 20, curriculum: float = 0.0, steps: int = 1, batch_size: int = 16, seed: int = 0
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        if longest < self.shortest:
            raise ValueError(f"{self.name}: longest must be at least {self.shortest}, got {longest}")
        if not 0 <= curriculum <= 1:
            raise ValueError(f"curriculum is a share of the run, from 0 to 1; got {curriculum}")
        self.longest, self.curriculum, self.steps = longest, curriculum, steps

    def reach(self, step: int) -> int:
        """The longest at a step."""
        rising = self.curriculum * self.steps
        share = 1.0 if step >= rising else step / rising
        return self.shortest + math.floor(share * (self.longest - self.shortest))

    def batch(self, step: int) -> SequenceBatch:
        generator = self.generator(step)
        length = int(generator.integers(self.shortest, self.reach(step), endpoint=True))
        return self.draw(generator, self.batch_size, length)

    @property
    def lengths(self) -> tuple[int, ...]:
        """What is scored: a quarter, a half, all of the longest, and twice as long as any in training."""
        inside = sorted({max(self.shortest, round(self.longest * part)) for part in (0.25, 0.5, 1)})
        return (*inside, 2 * self.longest)

    def batches(self) -> Iterator[SequenceBatch]:
        for length in self.lengths:
            found = self.draw(np.random.default_rng((EVALUATION, length)), self.scored, length)
            yield SequenceBatch(found.x, found.y, found.counts, name=str(length))

    def draw(self, generator: np.random.Generator, count: int, length: int) -> SequenceBatch:
        """`count` sequences of one length."""
        raise NotImplementedError

    def loss(self, output: Tensor, batch: SequenceBatch) -> Tensor:
        return F.binary_cross_entropy_with_logits(output[batch.counts].float(), batch.y[batch.counts])

    def score(self, said: Sequence[tuple[Tensor, SequenceBatch]]) -> dict[str, Any]:
        """Shares of wrong bits and of sequences with a wrong bit, and bits a sequence, by length.

        `bit_error` and the others are means over the lengths of the training, `longer_*` of those beyond.
        """
        parts = []
        for output, batch in said:
            counts = batch.counts
            assert counts is not None
            wrong = ((output > 0) != (batch.y > 0.5)) & counts[..., None]
            entropy = F.binary_cross_entropy_with_logits(output.float(), batch.y, reduction="none")
            parts.append({
                "length": int(batch.name),
                "bit_error": float(wrong.sum() / (counts.sum() * batch.y.shape[-1])),
                "sequence_error": float(wrong.flatten(1).any(1).float().mean()),
                "bits_per_sequence": float((entropy * counts[..., None]).sum() / len(output) / math.log(2)),
            })  # fmt: skip
        found: dict[str, Any] = {"by_length": parts}
        for prefix, inside in (("", True), ("longer_", False)):
            chosen = [part for part in parts if (part["length"] <= self.longest) is inside]
            for key in ("bit_error", "sequence_error", "bits_per_sequence") if chosen else ():
                found[prefix + key] = sum(part[key] for part in chosen) / len(chosen)
        return found

    def baselines(self) -> Mapping[str, float]:
        return {"guessing": 0.5}


class Copy(BitTask):
    """`width` bits a step, a delimiter, then silence in which the sequence is said again."""

    name = "copy"

    def __init__(self, *, width: int = 8, **settings: Any) -> None:
        require_positive("copy", width=width)
        self.width, self.input_size, self.output_size = width, width + 1, width
        super().__init__(**settings)

    def draw(self, generator: np.random.Generator, count: int, length: int) -> SequenceBatch:
        said = bits(generator, count, length, self.width)
        x = torch.zeros(count, 2 * length + 1, self.width + 1)
        x[:, :length, :-1], x[:, length, -1] = said, 1
        y, counts = (
            torch.zeros(count, 2 * length + 1, self.width),
            torch.zeros(count, 2 * length + 1, dtype=torch.bool),
        )
        y[:, length + 1 :], counts[:, length + 1 :] = said, True
        return SequenceBatch(x, y, counts)


class RepeatCopy(BitTask):
    """The sequence, then how often (normalised to deviation 1), then it is said so often, and the end marked.

    Lengths and repeats are drawn from 1 to `longest`; those that are scored are equal.
    """

    name = "repeat-copy"

    def __init__(self, *, width: int = 8, longest: int = 10, **settings: Any) -> None:
        require_positive("repeat-copy", width=width)
        self.width, self.input_size, self.output_size = width, width + 2, width + 1
        super().__init__(longest=longest, **settings)

    def draw(
        self, generator: np.random.Generator, count: int, length: int, repeats: int | None = None
    ) -> SequenceBatch:
        if repeats is None:
            repeats = length
        said = bits(generator, count, length, self.width)
        total = length + 1 + length * repeats + 1
        x, y = torch.zeros(count, total, self.width + 2), torch.zeros(count, total, self.width + 1)
        x[:, :length, : self.width], x[:, length, -2], x[:, length, -1] = said, 1, self.normalised(repeats)
        y[:, length + 1 : -1, :-1], y[:, -1, -1] = said.repeat(1, repeats, 1), 1
        counts = torch.zeros(count, total, dtype=torch.bool)
        counts[:, length + 1 :] = True
        return SequenceBatch(x, y, counts)

    def batch(self, step: int) -> SequenceBatch:
        generator = self.generator(step)
        length, repeats = generator.integers(1, self.reach(step), size=2, endpoint=True)
        return self.draw(generator, self.batch_size, int(length), int(repeats))

    def normalised(self, repeats: int) -> float:
        """Mean 0 and deviation 1 over the repeats of the training."""
        deviation = math.sqrt((self.longest**2 - 1) / 12) or 1.0
        return (repeats - (self.longest + 1) / 2) / deviation


class AssociativeRecall(BitTask):
    """Items of three vectors, each behind a delimiter; one is shown between two others: say the next item.

    Lengths are numbers of items, from 2.
    """

    name = "associative-recall"
    shortest = 2

    def __init__(self, *, width: int = 6, item: int = 3, longest: int = 6, **settings: Any) -> None:
        require_positive("associative-recall", width=width, item=item)
        self.width, self.item = width, item
        self.input_size, self.output_size = width + 2, width
        super().__init__(longest=longest, **settings)

    def draw(self, generator: np.random.Generator, count: int, length: int) -> SequenceBatch:
        items = bits(generator, count, length, self.item, self.width)
        shown = torch.from_numpy(generator.integers(0, length - 1, count))
        rows, block = torch.arange(count), self.item + 1
        told, query = length * block, block + 1
        total = told + query + self.item
        x, y = torch.zeros(count, total, self.width + 2), torch.zeros(count, total, self.width)
        x[:, :told].unflatten(1, (length, block))[:, :, 1:, : self.width] = items
        x[:, :told:block, -2] = 1
        x[:, told, -1] = x[:, told + query - 1, -1] = 1
        x[:, told + 1 : told + query - 1, : self.width] = items[rows, shown]
        y[:, -self.item :] = items[rows, shown + 1]
        counts = torch.zeros(count, total, dtype=torch.bool)
        counts[:, -self.item :] = True
        return SequenceBatch(x, y, counts)
