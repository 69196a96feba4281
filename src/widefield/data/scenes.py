# SPDX-License-Identifier: Apache-2.0
"""The embedded data set: same-as-cue scenes of real handwritten digits.

A scene is a grid of digits (6 x 6 cells of 8 x 8 pixels: 48 x 48). One cell, anywhere, is the *cue*: it lies
on red. Every pixel of ink must be told whether its digit is of the cue's class. With the cue in brackets:

    digits       7  3  3  1            labels     .  s  s  .
                 0 [3] 8  3                       . [-] .  s         s  same (class 1)
                 5  3  2  3                       .  s  .  s         .  other (class 0)
                                                                     -  not counted (255)

All that is not ink is not counted either.

**Why.** A digit alone says nothing about its label: that depends on a cell that may be anywhere, mostly out of
sight of a local network. So the score measures whether global information arrives and can be compared with the
local; what a local network reaches by the prior and by its neighbours is the row `none` of a comparison.
The digits are real, so a network must read handwriting.

**How scenes are drawn.** The cue's position is uniform, its class is uniform. Each other cell is of the cue's
class with probability `same`; otherwise of one of `distractors` other classes, which are drawn for the scene.
The more distractors, the more the cue's class stands out as the scene's most frequent one: a module can then
find it by counting as well as by reading the cue, and a local network gains a little by comparing neighbours.
With `distractors=2, same=1/3` all classes of a scene are equally frequent and only the cue tells. One seed, 600
steps of 32 scenes, plain backbone (which sees 19 x 19 pixels), mIoU ("other" everywhere: 0.33 to 0.35):

    distractors   none   EMAU   non-local   Hamburger NMF   Hamburger CD
    2             0.33   0.33     0.54          0.56            0.88
    4             0.41   0.66     0.83          0.83            0.90
    9 (default)   0.53   0.89     0.90          0.87            0.92

**Pictures.** Ink is grey `round(255 v / 16)`; a pixel counts as ink, and is labelled, from half of full ink.
In the cue's cell the red channel is 255.

**Digits.** scikit-learn's `load_digits` (1797 pictures of the UCI set, 8 x 8, 17 grey levels; Alpaydin and
Kaynak, 1998). Within each class, digits of even rank in the file make training scenes and those of odd rank
validation scenes.

**Repeatable.** Scene i of a split is a function of (seed, split, i) alone: the random numbers come from a
hash of these (SplitMix64 used as a counter-based generator), so workers, resumed runs and machines agree, and
a batch is drawn without a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from widefield.core.extras import require
from widefield.data.base import SegmentationData
from widefield.data.labels import IGNORE

CELL = 8
INK = 128
_SPLITS = {"train": 0, "val": 1}
_GOLDEN = 0x9E3779B97F4A7C15


class _Digits(NamedTuple):
    pictures: np.ndarray  # (n, 8, 8) uint8
    table: np.ndarray  # (10, most): indices of the pictures of a class
    counts: np.ndarray  # (10,)


@cache
def _digits(split: str) -> _Digits:
    digits = require("sklearn.datasets", "tasks").load_digits()
    pictures = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    members = [np.flatnonzero(digits.target == k)[_SPLITS[split] :: 2] for k in range(10)]
    counts = np.array([len(m) for m in members])
    table = np.stack([np.resize(m, counts.max()) for m in members])
    return _Digits(pictures, table, counts)


def _mix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea, Flood, 2014), on uint64 with wrap-around."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uniform(key: Sequence[int], index: np.ndarray, draws: int) -> np.ndarray:
    """`(b, draws)` numbers in [0, 1), each a function of the key, the index and its place in the row."""
    state = np.zeros(1, dtype=np.uint64)
    for word in key:
        state = _mix(state + np.uint64(word % 2**64) + np.uint64(_GOLDEN))
    rows = _mix(state + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    steps = (np.arange(draws, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return (_mix(rows[:, None] + steps) >> np.uint64(11)) * 2.0**-53


class Scenes(Dataset[tuple[Tensor, Tensor]]):
    """Same-as-cue scenes; `self[i]` is one, `batch` draws many at once.

    Args:
        split: "train" or "val": which digits.
        length: how many scenes.
        grid: rows and columns of cells.
        seed: of the scenes.
        same: probability that a digit other than the cue is of the cue's class.
        distractors: number of other classes in a scene, 1..9.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        split: str,
        length: int,
        *,
        grid: tuple[int, int] = (6, 6),
        seed: int = 0,
        same: float = 0.3,
        distractors: int = 9,
    ) -> None:
        if split not in _SPLITS:
            raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
        if length < 1:
            raise ValueError(f"a split needs at least one scene, got {length}")
        if min(grid) < 1 or grid[0] * grid[1] < 2:
            raise ValueError(f"grid must have at least two cells, got {grid[0]} x {grid[1]}")
        if not 0 < same < 1:
            raise ValueError(f"same must lie between 0 and 1, got {same}")
        if not 1 <= distractors <= 9:
            raise ValueError(f"distractors must lie in 1..9, got {distractors}")
        self.split, self.length, self.grid, self.seed = split, length, grid, seed
        self.same, self.distractors = same, distractors

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -self.length <= index < self.length:
            raise IndexError(f"scene {index} of {self.length}")
        images, labels = self.batch([index % self.length])
        return images[0], labels[0]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """`(h, w)` of every scene."""
        return [(self.grid[0] * CELL, self.grid[1] * CELL)] * self.length

    def cells(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the scenes hold: digit `(b, cells)` (index into `load_digits`), class `(b, cells)`, cue `(b,)`."""
        index = np.asarray(indices, dtype=np.int64)
        if index.ndim != 1 or ((index < 0) | (index >= self.length)).any():
            raise IndexError(f"indices must be a list of scenes in 0..{self.length - 1}, got {indices!r}")
        digits, count = _digits(self.split), self.grid[0] * self.grid[1]
        u = _uniform((self.seed, _SPLITS[self.split]), index, 11 + 3 * count)
        cue, cue_class = (u[:, 0] * count).astype(np.int64), (u[:, 1] * 10).astype(np.int64)
        is_same, which, digit = u[:, 11:].reshape(-1, 3, count).transpose(1, 0, 2)
        # The scene's other classes, as steps 1..9 from the cue's class: the first few of a random order.
        steps = 1 + np.argsort(u[:, 2:11], axis=1)[:, : self.distractors]
        step = np.take_along_axis(steps, (which * self.distractors).astype(np.int64), axis=1)
        same = is_same < self.same
        same[np.arange(len(index)), cue] = True
        kind = (cue_class[:, None] + np.where(same, 0, step)) % 10
        chosen = digits.table[kind, (digit * digits.counts[kind]).astype(np.int64)]
        return chosen, kind, cue

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Images `(b, 3, h, w)` uint8 and labels `(b, h, w)` int64 of these scenes, without a loop.

        Raises:
            IndexError: no such scene.
        """
        chosen, kind, cue = self.cells(indices)
        b, (rows, columns) = len(cue), self.grid
        ink = _digits(self.split).pictures[chosen]
        every = np.arange(b)
        same = kind == kind[every, cue][:, None]
        labels = np.where(ink >= INK, same[..., None, None], IGNORE).astype(np.int64)
        labels[every, cue] = IGNORE
        red = ink.copy()
        red[every, cue] = 255

        def picture(cells: np.ndarray) -> np.ndarray:
            tiles = cells.reshape(b, rows, columns, CELL, CELL).swapaxes(2, 3)
            return tiles.reshape(b, rows * CELL, columns * CELL)

        grey = picture(ink)
        images = np.stack([picture(red), grey, grey], axis=1)
        return torch.from_numpy(images), torch.from_numpy(picture(labels))


def scenes(
    *,
    train: int = 50_000,
    val: int = 256,
    grid: tuple[int, int] = (6, 6),
    seed: int = 0,
    same: float = 0.3,
    distractors: int = 9,
) -> SegmentationData:
    """The embedded same-as-cue set; see the module's text.

    Args:
        train, val: scenes in each split; they cost nothing until drawn.
        grid: rows and columns of 8 x 8 cells.
        seed: of both splits (which use different digits and different random numbers).
        same: share of the other digits that are of the cue's class.
        distractors: number of other classes in a scene.

    Raises:
        ValueError: an argument out of range.
    """
    splits = [
        Scenes(split, length, grid=grid, seed=seed, same=same, distractors=distractors)
        for split, length in (("train", train), ("val", val))
    ]
    palette = ((64, 96, 160), (240, 160, 32))
    return SegmentationData("scenes", ("other", "same"), splits[0], splits[1], palette, natural=False)
