# SPDX-License-Identifier: Apache-2.0
"""What every layout is read into: two sets of `(image, label)`, the classes, and what was left out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from widefield.core.extras import require
from widefield.data.images import DataError, Pair, read_pair
from widefield.data.labels import IGNORE, Colour, LabelRule, LabelSpec, infer

_SHOWN = 5
_VERIFY_UP_TO = 5000


class SegmentationSet(Protocol):
    """Pictures with labels: `self[i]` is `(image (3, h, w) uint8, label (h, w) int64)`; 255 is not counted."""

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """`(h, w)` of every picture."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class SegmentationData:
    """A data set for semantic segmentation.

    Attributes:
        name: for tables and records.
        classes: names; the index is the label value.
        train, val: the two splits.
        palette: a colour a class, for pictures of predictions.
        problems: files that were left out, by name, with the reason.
        ignore_index: the label of pixels that count nowhere; always 255, whatever the files store.
        natural: photographs, which may be flipped and scaled; False for the embedded scenes.
    """

    name: str
    classes: tuple[str, ...]
    train: SegmentationSet
    val: SegmentationSet
    palette: tuple[Colour, ...]
    problems: list[str] = field(default_factory=list)
    ignore_index: int = IGNORE
    natural: bool = True

    def __post_init__(self) -> None:
        twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
        if twice:
            raise DataError(
                f"{self.name}: the class names {', '.join(map(repr, twice))} stand twice; name each once"
            )

    def fingerprint(self) -> str:
        """Changes when the pictures, masks, classes or splits do: a hash of what the files hold."""
        digest = hashlib.sha256(repr((self.name, self.classes, len(self.train), len(self.val))).encode())
        for split in (self.train, self.val):
            for pair in getattr(split, "pairs", ()):
                for path in pair:
                    digest.update(f"{path.name} {path.stat().st_size} ".encode())
                    digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:16]

    @property
    def num_classes(self) -> int:
        """How many classes."""
        return len(self.classes)

    def summary(self) -> str:
        """Counts, classes, sizes, and what was left out; for a person."""
        sizes = sorted(set(self.train.sizes) | set(self.val.sizes))
        span = f"{sizes[0][1]}x{sizes[0][0]}"
        if len(sizes) > 1:
            span = f"{len(sizes)} sizes, {span} to {sizes[-1][1]}x{sizes[-1][0]}"
        names = ", ".join(self.classes[:12]) + (", ..." if len(self.classes) > 12 else "")
        lines = [
            f"{self.name}: {len(self.train)} training and {len(self.val)} validation pictures ({span}), "
            f"{self.num_classes} classes: {names}"
        ]
        if self.problems:
            lines.append(f"left out: {len(self.problems)}")
            lines += [f"  {problem}" for problem in self.problems[:_SHOWN]]
            if len(self.problems) > _SHOWN:
                lines.append(f"  and {len(self.problems) - _SHOWN} more")
        return "\n".join(lines)


class PairSet(Dataset[tuple[Tensor, Tensor]]):
    """Pictures and masks on disk, read when asked for.

    Raises (from `self[i]`):
        DataError: the file changed since it was looked at.
    """

    def __init__(self, pairs: Sequence[Pair], rule: LabelRule, sizes: Sequence[tuple[int, int]] = ()) -> None:
        self.pairs = tuple(pairs)
        self.rule = rule
        self._sizes = list(sizes)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pair = self.pairs[index]
        image, mask = read_pair(pair)
        label = self.rule.labels(mask, pair.mask)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(label)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """`(h, w)` of every picture; from the masks' headers where the files were not verified."""
        if len(self._sizes) != len(self.pairs):
            self._sizes = [_header_size(pair.mask) for pair in self.pairs]
        return self._sizes


@dataclass(frozen=True)
class _Seen:
    """What a look at one pair found."""

    size: tuple[int, int]
    values: frozenset[int]
    wide: bool


def _header_size(path: Path) -> tuple[int, int]:
    with require("PIL.Image", "tasks").open(path) as picture:
        return picture.size[1], picture.size[0]


def _look(pair: Pair, rule: LabelRule) -> _Seen | DataError:
    try:
        _, mask = read_pair(pair)
        values = frozenset(np.unique(rule.values(mask, pair.mask)).tolist())
    except DataError as error:
        return error
    return _Seen(mask.shape[:2], values, max(values) > IGNORE)


def from_pairs(
    name: str,
    train: Sequence[Pair],
    val: Sequence[Pair],
    spec: LabelSpec,
    *,
    problems: Sequence[str] = (),
    palette: Sequence[Colour] | None = None,
    val_fraction: float = 0.2,
    verify: bool | None = None,
    guess: Callable[[frozenset[int]], LabelSpec | None] | None = None,
) -> SegmentationData:
    """Looks at the files, settles the classes, and splits where there is no validation set.

    Args:
        train, val: pairs; with an empty `val`, `train` is split by `hashed_split`.
        problems: what a layout's reader already left out.
        palette: display colours; the common VOC colours if None.
        verify: decode every file now (None: up to 5000 pairs). Unverified files that are broken raise when
            they are read.
        guess: a layout's own reading of the values that occur, where the classes are not given.

    Raises:
        DataError: nothing is left, or the labels cannot be understood.
    """
    rule, problems = LabelRule(spec), list(problems)
    twice = {pair.image.resolve() for pair in train} & {pair.image.resolve() for pair in val}
    if twice:
        problems += [f"{path}: named for training and validation; kept for validation" for path in sorted(twice)]
        train = [pair for pair in train if pair.image.resolve() not in twice]
    missing = {path for pair in (*train, *val) for path in pair if not path.is_file()}
    problems += [f"{path}: no such file" for path in sorted(missing)]
    train, val = ([p for p in pairs if not missing.intersection(p)] for pairs in (train, val))
    seen: dict[Pair, _Seen] = {}
    if verify or spec.count is None or (verify is None and len(train) + len(val) <= _VERIFY_UP_TO):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda pair: (pair, _look(pair, rule)), [*train, *val]))
        problems += [str(result) for _, result in found if isinstance(result, DataError)]
        seen = {pair: result for pair, result in found if isinstance(result, _Seen)}
        train, val = [p for p in train if p in seen], [p for p in val if p in seen]
    if not train and not val:
        told = "\n  ".join(problems[:_SHOWN]) or "there are none"
        raise DataError(f"{name}: no usable pair of picture and mask:\n  {told}")
    if spec.count is None:
        every = frozenset[int]().union(*(item.values for item in seen.values()))
        known = guess(every) if guess and spec.ignore_index is None else None
        spec = known or infer(every, wide=any(item.wide for item in seen.values()), spec=spec)
        rule = LabelRule(spec)
    bad = [(pair, wrong) for pair, item in seen.items() if (wrong := rule.wrong(sorted(item.values)))]
    if bad:
        names = ", ".join(str(pair.mask) for pair, _ in bad[:_SHOWN]) + (", ..." if len(bad) > _SHOWN else "")
        values = sorted(set().union(*(wrong for _, wrong in bad)))
        raise DataError(f"{len(bad)} masks ({names}): {rule.complaint(values)}")
    if not val:
        train, val = hashed_split(train, val_fraction)
    if not train or not val:
        raise DataError(
            f"{name}: {len(train)} pictures for training and {len(val)} for validation; both need at least one"
        )
    sets = [PairSet(pairs, rule, [seen[p].size for p in pairs if p in seen]) for pairs in (train, val)]
    colours = tuple(palette) if palette is not None else voc_palette(len(spec.names))
    return SegmentationData(name, spec.names, sets[0], sets[1], colours[: len(spec.names)], problems)


def hashed_split(pairs: Sequence[Pair], fraction: float) -> tuple[list[Pair], list[Pair]]:
    """Training and validation pairs: the pictures whose names hash lowest validate (at least one, not all).

    The same files are split alike on every machine, and files added later move few of the others.

    Raises:
        DataError: the fraction does not lie between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise DataError(f"val_fraction must lie between 0 and 1, got {fraction}")
    ordered = sorted(pairs, key=lambda p: (hashlib.sha256(p.image.name.encode()).hexdigest(), p.image))
    cut = min(max(round(fraction * len(ordered)), 1), max(len(ordered) - 1, 0))
    return sorted(ordered[cut:]), sorted(ordered[:cut])


def voc_palette(count: int) -> tuple[Colour, ...]:
    """The colours of the PASCAL VOC colour map: bit k of the class number goes to high bits of r, g, b in turn."""

    def channel(index: int, shift: int) -> int:
        return sum(((index >> (3 * k + shift)) & 1) << (7 - k) for k in range(8))

    return tuple((channel(i, 0), channel(i, 1), channel(i, 2)) for i in range(count))
