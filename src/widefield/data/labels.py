# SPDX-License-Identifier: Apache-2.0
"""From the values stored in masks to classes `0 .. K-1` and 255 (ignored).

People number classes in many ways: a void class last (CamVid: 11) or first (ADE20K: 0), 0 and 255 for object or
not, one number an object, colours. A `LabelSpec` says how; `LabelRule` applies it and refuses every other
value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from widefield.data.images import DataError, read_lines

IGNORE = 255
Colour = tuple[int, int, int]

_VOID = re.compile(r"^_*(unlabell?ed|void|ignored?|unknown|undefined|_ignore_)_*$", re.IGNORECASE)
_VALUES = 1 << 16
_REFUSED = -1


@dataclass(frozen=True)
class LabelSpec:
    """How label values are to be read; every field left alone is inferred or absent.

    Attributes:
        classes: names in the order of the classes.
        num_classes: how many, where there are no names.
        ignore_index: stored values that mean "do not count"; 255 unless given.
        label_map: stored value -> class (or 255); values outside it are refused.
        binary: 0 is class 0, every other stored value class 1 (instance masks).
        palette: colour -> stored value, for masks painted in colours.
    """

    classes: tuple[str, ...] | None = None
    num_classes: int | None = None
    ignore_index: tuple[int, ...] | None = None
    label_map: Mapping[int, int] | None = None
    binary: bool = False
    palette: Mapping[Colour, int] | None = None

    def __post_init__(self) -> None:
        if self.binary and (self.label_map is not None or self.num_classes not in (None, 2)):
            raise DataError("binary=True makes two classes by itself; give it without label_map and num_classes")
        if self.binary and self.classes is not None and len(self.classes) != 2:
            raise DataError(f"binary=True makes two classes, {len(self.classes)} names were given")
        if self.classes is not None and self.num_classes not in (None, len(self.classes)):
            raise DataError(
                f"num_classes={self.num_classes} and {len(self.classes)} names in classes; give one of them"
            )
        if self.num_classes is not None and not 1 <= self.num_classes <= IGNORE:
            raise DataError(f"num_classes must lie in 1..{IGNORE}, got {self.num_classes}")
        for value in self.ignore_index or ():
            if not 0 <= value < _VALUES:
                raise DataError(f"ignore_index must lie in 0..{_VALUES - 1}, got {value}")
        for value, target in (self.label_map or {}).items():
            if not (0 <= value < _VALUES and (0 <= target <= IGNORE)):
                raise DataError(
                    f"label_map sends {value} to {target}; accepted are values 0..{_VALUES - 1} and classes "
                    f"0..{IGNORE - 1}, or {IGNORE} to ignore"
                )

    @property
    def count(self) -> int | None:
        """The number of classes, if it is known without looking at a mask."""
        if self.classes is not None:
            return len(self.classes)
        if self.binary:
            return 2
        if self.num_classes is not None:
            return self.num_classes
        targets = self.label_map or {v: v for v in (self.palette or {}).values()}
        ignored = (IGNORE, *(self.ignore_index or ()))
        return max((c for c in targets.values() if c not in ignored), default=-1) + 1 or None

    @property
    def names(self) -> tuple[str, ...]:
        """The classes' names; numbers where none were given."""
        if self.classes is not None:
            return self.classes
        return ("background", "object") if self.binary else tuple(str(i) for i in range(self.count or 0))

    def filled(self, other: LabelSpec) -> LabelSpec:
        """This spec, or `other` where this one says nothing about classes; the palette is taken from either."""
        palette = self.palette if self.palette is not None else other.palette
        said = (self.classes, self.num_classes, self.ignore_index, self.label_map)
        if self.binary or any(item is not None for item in said):
            return replace(self, palette=palette)
        return replace(other, palette=palette)


@dataclass(frozen=True)
class LabelRule:
    """A table from stored values to classes."""

    spec: LabelSpec
    table: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        spec, table = self.spec, np.full(_VALUES, _REFUSED, dtype=np.int16)
        if spec.binary:
            table[:], table[0] = 1, 0
            ignored: tuple[int, ...] = spec.ignore_index or ()
        else:
            ignored = (IGNORE,) if spec.ignore_index is None else (*spec.ignore_index, IGNORE)
            if spec.label_map is None and spec.count is not None:
                table[: spec.count] = np.arange(spec.count)
        if spec.label_map is not None:
            table[list(spec.label_map)] = list(spec.label_map.values())
        # What a person names in ignore_index wins over a class list; the customary 255 does not.
        table[[v for v in ignored if not (v == IGNORE and table[v] != _REFUSED and spec.label_map)]] = IGNORE
        object.__setattr__(self, "table", table)

    def values(self, mask: np.ndarray, path: Path) -> np.ndarray:
        """The mask as stored values `(h, w)`, colours looked up in the palette.

        Raises:
            DataError: colours and no palette, or colours that the palette lacks.
        """
        if mask.ndim == 2:
            return mask
        if self.spec.palette is None:
            raise DataError(
                f"{path}: the mask is painted in colours, such as {_colours(mask)[:3]}; say what they mean with "
                "palette={(r, g, b): class, ...} or with lines 'r g b name' in classes.txt"
            )
        packed = (mask.astype(np.int64) << np.array([16, 8, 0])).sum(axis=2)
        keys = np.array([(r << 16) + (g << 8) + b for r, g, b in self.spec.palette])
        order = np.argsort(keys)
        at = np.searchsorted(keys[order], packed).clip(max=len(keys) - 1)
        if (keys[order][at] != packed).any():
            wrong = [colour for colour in _colours(mask) if colour not in self.spec.palette]
            raise DataError(
                f"{path}: {len(wrong)} colours are not in the palette, such as {wrong[:3]}; accepted are "
                f"{list(self.spec.palette)[:20]}. A JPEG mask smears its colours: save it as PNG"
            )
        return np.array(list(self.spec.palette.values()))[order][at]

    def labels(self, mask: np.ndarray, path: Path) -> np.ndarray:
        """Classes `(h, w)` int64 with 255 where nothing counts.

        Raises:
            DataError: a stored value that is no class.
        """
        values = self.values(mask, path)
        wrong = self.wrong(np.unique(values).tolist())
        if wrong:
            raise DataError(f"{path}: {self.complaint(wrong)}")
        return self.table[values].astype(np.int64)

    def wrong(self, values: Iterable[int]) -> list[int]:
        """Those of the stored values that are no class and not ignored."""
        return [v for v in values if not 0 <= v < _VALUES or self.table[v] == _REFUSED]

    def complaint(self, wrong: list[int]) -> str:
        """What is wrong with these values, and what to do."""
        accepted = np.flatnonzero(self.table != _REFUSED).tolist()
        return (
            f"the mask holds {_ranges(wrong)}, which is none of the {self.spec.count} classes; accepted values "
            f"are {_ranges(accepted)}. Set num_classes= or classes=, ignore_index= for values that do not "
            "count, or label_map={value: class}"
        )


def infer(values: Iterable[int], *, wide: bool, spec: LabelSpec) -> LabelSpec:
    """The spec with `num_classes` found from all values that occur: `0 .. K-1` without a gap.

    Args:
        values: every value stored in any mask.
        wide: whether a mask is of 16 bits or more.
        spec: what is known; its `ignore_index` applies.

    Raises:
        DataError: the values do not number classes; the message says what to give.
    """
    ignored = {IGNORE, *(spec.ignore_index or ())}
    found = sorted(set(values) - ignored)
    if wide:
        raise DataError(
            f"the masks have 16 bits and hold {_ranges(found)}: such masks usually number the objects. Pass "
            "binary=True for object or not, or num_classes= if the values are classes"
        )
    if found == [0] and IGNORE in set(values) and spec.ignore_index is None:
        raise DataError(
            "the masks hold only 0 and 255, and 255 means ignored: pass binary=True if 255 is the object"
        )
    if not found:
        raise DataError("the masks hold no label value but ignored ones; look at ignore_index=")
    if found != list(range(len(found))):
        raise DataError(
            f"the masks hold the values {_ranges(found)}, not 0..K-1 without a gap: pass num_classes="
            f"{found[-1] + 1} if some classes merely do not occur, ignore_index= for values that do not count, or "
            "label_map={value: class}"
        )
    return replace(spec, num_classes=len(found))


def read_classes(path: Path) -> LabelSpec:
    """Reads a list of classes: lines `name`, `value name` or `r g b name`; `#` starts a comment.

    Classes named Unlabelled, void, ignore, unknown become 255 and are not counted.

    Raises:
        DataError: lines of different kinds, a value named twice, or no class.
    """
    lines = [line.split("#")[0].strip() for line in read_lines(path)]
    rows = [re.match(r"^(\d+\s+\d+\s+\d+\s+|\d+[\s:,]+)?(\S.*)$", line) for line in lines if line]
    heads = [len(re.findall(r"\d+", row.group(1) or "")) for row in rows if row]
    if not rows or len(set(heads)) > 1 or None in rows:
        raise DataError(f"{path}: every line must read 'name', 'value name' or 'r g b name', all lines alike")
    numbers = [[int(n) for n in re.findall(r"\d+", row.group(1) or "")] for row in rows if row]
    stored = [row[0] if len(row) == 1 else i for i, row in enumerate(numbers)]
    if len(set(stored)) < len(stored):
        raise DataError(f"{path}: a label value is named twice; one line a value")
    label_map: dict[int, int] = {}
    names: list[str] = []
    for value, row in sorted(zip(stored, rows, strict=True), key=lambda item: item[0]):
        name = row.group(2).strip() if row else ""
        label_map[value] = IGNORE if _VOID.match(name) else len(names)
        names += [] if _VOID.match(name) else [name]
    if not names:
        raise DataError(f"{path}: names no class")
    palette = {(r[0], r[1], r[2]): i for i, r in enumerate(numbers)} if heads[0] == 3 else None
    return LabelSpec(classes=tuple(names), label_map=label_map, palette=palette)


def _colours(mask: np.ndarray) -> list[Colour]:
    return [tuple(int(v) for v in row) for row in np.unique(mask.reshape(-1, 3), axis=0)]  # type: ignore[misc]


def _ranges(values: list[int], limit: int = 12) -> str:
    """`0..10, 255` for a sorted list."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    shown = [str(a) if a == b else f"{a}..{b}" for a, b in runs[:limit]]
    return ", ".join(shown) + (f" and {len(runs) - limit} more" if len(runs) > limit else "")
