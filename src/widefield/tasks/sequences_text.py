# SPDX-License-Identifier: Apache-2.0
"""Tasks that say at every step what comes next: the characters of a text, the keys of a piano."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.data.sequences import MusicData, TextData
from widefield.sequence.layer import padding_mask
from widefield.tasks.sequences import SequenceBatch, SequenceTask


class CharacterModel(SequenceTask):
    """The next character of a text, from all before it; one-hot in, logits out.

    Training windows start anywhere, with a fresh state; the held-out text is read once, in `streams` pieces side
    by side, the state carried on.

    Args:
        data: the text.
        length: of the training windows.
        scored: characters of the held-out text, from its beginning.
        batch_size, seed: of the training.
    """

    name, key, measure = "text", "bits_per_character", "bits per character"
    carried = True
    streams = 20

    def __init__(
        self, data: TextData, *, length: int = 100, scored: int = 50_000, batch_size: int = 32, seed: int = 0
    ) -> None:
        self.input_size = self.output_size = len(data.characters)
        super().__init__(batch_size=batch_size, seed=seed)
        if not 1 <= length < len(data.train):
            raise ValueError(f"text: the length must lie in 1 .. {len(data.train) - 1}, got {length}")
        self.data, self.length = data, length
        self.train, self.val = torch.from_numpy(data.train), torch.from_numpy(data.val[: scored + 1])

    def batch(self, step: int) -> SequenceBatch:
        starts = self.generator(step).integers(0, len(self.train) - self.length, self.batch_size)
        rows = torch.from_numpy(starts)[:, None] + torch.arange(self.length + 1)
        return self.windows(self.train[rows])

    def batches(self) -> Iterator[SequenceBatch]:
        streams = min(self.streams, (len(self.val) - 1) // 2) or 1
        each = (len(self.val) - 1) // streams
        # Every stream begins with the last character of the one before, which it is given and does not say.
        rows = torch.arange(streams)[:, None] * each + torch.arange(each + 1)
        pieces = self.val[rows]
        for start in range(0, each, 500):
            yield self.windows(pieces[:, start : min(start + 500, each) + 1])

    def windows(self, pieces: Tensor) -> SequenceBatch:
        """`(b, t + 1)` characters to t questions and answers."""
        x = F.one_hot(pieces[:, :-1], self.input_size).float()
        return SequenceBatch(x, pieces[:, 1:], torch.ones(pieces[:, 1:].shape, dtype=torch.bool))

    def loss(self, output: Tensor, batch: SequenceBatch) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1).float(), batch.y.flatten())

    def score(self, said: Sequence[tuple[Tensor, SequenceBatch]]) -> dict[str, Any]:
        """`bits_per_character`, and the share of characters foreseen."""
        total, right, count = 0.0, 0, 0
        for output, batch in said:
            total += float(F.cross_entropy(output.flatten(0, 1).double(), batch.y.flatten(), reduction="sum"))
            right += int((output.argmax(-1) == batch.y).sum())
            count += batch.y.numel()
        return {"bits_per_character": total / count / math.log(2), "accuracy": right / count, "characters": count}

    def baselines(self) -> Mapping[str, float]:
        """Frequencies of characters and of pairs (one added to each count), and what zlib needs beyond the
        training text."""
        size, train, val = self.input_size, self.data.train, self.val.numpy()
        once = np.bincount(train, minlength=size) + 1.0
        pairs = np.ones((size, size))
        np.add.at(pairs, (train[:-1], train[1:]), 1)
        pairs /= pairs.sum(1, keepdims=True)
        texts = [self.data.texts[0].encode(), self.data.texts[1][1 : len(val)].encode()]
        packed = [len(zlib.compress(text, 9)) for text in (texts[0], texts[0] + texts[1])]
        return {
            "unigram": float(-np.log2(once / once.sum())[val[1:]].mean()),
            "bigram": float(-np.log2(pairs[val[:-1], val[1:]]).mean()),
            "zlib": 8 * (packed[1] - packed[0]) / (len(val) - 1),
        }


class Music(SequenceTask):
    """Which keys sound at the next step; the loss is the sum over the keys, in nats, as the field reports it.

    Args:
        data: the pieces.
        batch_size, seed: of the training.
    """

    name, key, measure = "music", "nll", "nats per step"

    def __init__(self, data: MusicData, *, batch_size: int = 16, seed: int = 0) -> None:
        self.input_size = self.output_size = data.keys
        super().__init__(batch_size=batch_size, seed=seed)
        self.data = data

    def batch(self, step: int) -> SequenceBatch:
        chosen = self.generator(step).integers(0, len(self.data.train), self.batch_size)
        return self.padded([self.data.train[i] for i in chosen])

    def batches(self) -> Iterator[SequenceBatch]:
        pieces = sorted(self.data.val, key=len)
        for start in range(0, len(pieces), self.batch_size):
            yield self.padded(pieces[start : start + self.batch_size])

    def padded(self, pieces: Sequence[np.ndarray]) -> SequenceBatch:
        """Pieces of several lengths side by side."""
        lengths = torch.tensor([len(piece) - 1 for piece in pieces])
        whole = torch.zeros(len(pieces), int(lengths.max()) + 1, self.input_size)
        for row, piece in zip(whole, pieces, strict=True):
            row[: len(piece)] = torch.from_numpy(piece)
        counts = padding_mask(lengths, whole.shape[1] - 1)
        return SequenceBatch(whole[:, :-1], whole[:, 1:], counts, lengths)

    def loss(self, output: Tensor, batch: SequenceBatch) -> Tensor:
        entropy = F.binary_cross_entropy_with_logits(output.float(), batch.y, reduction="none").sum(-1)
        return entropy[batch.counts].mean()

    def score(self, said: Sequence[tuple[Tensor, SequenceBatch]]) -> dict[str, Any]:
        """`nll` a step, and the accuracy of Bay et al. 2009: right keys over those that sound or are said to."""
        total, steps, hits, either = 0.0, 0, 0, 0
        for output, batch in said:
            entropy = F.binary_cross_entropy_with_logits(output.double(), batch.y.double(), reduction="none")
            total += float(entropy.sum(-1)[batch.counts].sum())
            assert batch.counts is not None
            steps += int(batch.counts.sum())
            told, true = (output > 0)[batch.counts], (batch.y > 0.5)[batch.counts]
            hits += int((told & true).sum())
            either += int((told | true).sum())
        return {"nll": total / steps, "accuracy": hits / max(1, either), "steps": steps}

    def baselines(self) -> Mapping[str, float]:
        """Every key by its own frequency, one added to each count."""
        train, val = (
            np.concatenate([p[1:] for p in self.data.train]),
            np.concatenate([p[1:] for p in self.data.val]),
        )
        p = (train.sum(0) + 1) / (len(train) + 2)
        return {"frequency of keys": float(-(np.log(p) * val + np.log1p(-p) * (1 - val)).sum(1).mean())}
