# SPDX-License-Identifier: Apache-2.0
"""Tables: rows of numbers and words with one column to be told from the others."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from widefield.data.classification.base import ArraySet, ClassificationData, split_rows
from widefield.data.images import DataError, read_lines

ENDINGS = (".csv", ".tsv", ".data", ".txt")
_MISSING = {"", "?", "na", "nan", "null", "none"}


def read_table(
    path: Path | str, *, target: str | int | None = None, header: bool | None = None, val_fraction: float = 0.2
) -> ClassificationData:
    """Reads a table with commas, semicolons, tabs or spaces between its columns.

    Columns of numbers are standardised by the training rows; columns of words become one column a word. Rows with
    a missing number or target are left out, a missing word is a word of its own.

    Args:
        path: of the file.
        target: name or number of the column with the classes, from 0, negative from the end; the last if None.
        header: whether the first line names the columns; None: it does if no field in it is a number while other
            lines have some.
        val_fraction: share of the rows that validate.

    Raises:
        DataError: an empty table, lines of different lengths, no such column, a target that is no class.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    lines = [line for line in read_lines(path) if line.strip()]
    if len(lines) < 2:
        raise DataError(f"{path}: a table needs at least two lines, this has {len(lines)}")
    rows = _fields(lines)
    widths = [len(row) for row in rows]
    for number, width in enumerate(widths, 1):
        if width != widths[0]:
            raise DataError(f"{path}, row {number}: {width} fields, the first row has {widths[0]}")
    if widths[0] < 2:
        raise DataError(f"{path}: one column only; features and a target are needed")
    named = _has_header(rows) if header is None else header
    names = rows.pop(0) if named else [str(i) for i in range(widths[0])]
    return from_columns(
        path.stem, names, list(zip(*rows, strict=True)), _column(path, names, target), val_fraction
    )


def from_columns(
    name: str, names: Sequence[str], columns: Sequence[Sequence[str]], target: int, val_fraction: float = 0.2
) -> ClassificationData:
    """A table from its columns as text; see `read_table`."""
    labels = [field.strip().rstrip(".") for field in columns[target]]
    kept = np.array([field.lower() not in _MISSING for field in labels])
    features: list[tuple[str, np.ndarray]] = []
    for index, column in enumerate(columns):
        if index == target:
            continue
        numbers = _numbers(column)
        if numbers is None:
            words = [field.strip() for field in column]
            distinct = sorted(set(words))
            if len(distinct) > max(100, len(words) // 10):
                raise DataError(
                    f"{name}: column {names[index]!r} has {len(distinct)} different words in {len(words)} rows; "
                    "leave out columns that name the row"
                )
            as_array = np.array(words)
            features += [(f"{names[index]}={word}", (as_array == word).astype(np.float64)) for word in distinct]
        else:
            kept &= np.isfinite(numbers)
            features.append((names[index], numbers))
    if not kept.any():
        raise DataError(f"{name}: every row has a missing value")
    classes = sorted({labels[i] for i in np.flatnonzero(kept)}, key=_by_number)
    if not 2 <= len(classes) <= 1000:
        raise DataError(
            f"{name}: the target {names[target]!r} has {len(classes)} values; classes are 2 to 1000 of them"
        )
    places = {label: i for i, label in enumerate(classes)}
    y = np.array([places[labels[i]] for i in np.flatnonzero(kept)])
    x = np.stack([values[kept] for _, values in features], 1)
    train, val = split_rows(y, val_fraction)
    mean, deviation = x[train].mean(0), x[train].std(0)
    varies = deviation > 1e-12 * np.maximum(1, np.abs(mean))
    if not varies.any():
        raise DataError(f"{name}: every feature is constant")
    x = ((x[:, varies] - mean[varies]) / deviation[varies]).astype(np.float32)
    sets = [ArraySet(torch.from_numpy(x[rows]), torch.from_numpy(y[rows])) for rows in (train, val)]
    problems = [f"{int((~kept).sum())} rows with a missing value"] if not kept.all() else []
    constant = [title for (title, _), v in zip(features, varies, strict=True) if not v]
    problems += [f"constant columns: {', '.join(constant[:8])}"] if constant else []
    columns_kept = tuple(title for (title, _), v in zip(features, varies, strict=True) if v)
    return ClassificationData(name, tuple(classes), sets[0], sets[1], tuple(problems), False, columns_kept)


def _fields(lines: list[str]) -> list[list[str]]:
    """Split at the most frequent of comma, semicolon and tab in the first line, or at spaces."""
    counts = {mark: lines[0].count(mark) for mark in ",;\t"}
    mark = max(counts, key=lambda m: counts[m])
    if counts[mark]:
        return [[field.strip() for field in row] for row in csv.reader(lines, delimiter=mark)]
    return [line.split() for line in lines]


def _has_header(rows: list[list[str]]) -> bool:
    if any(_is_number(field) for field in rows[0]):
        return False
    return any(_is_number(field) for field in rows[1])


def _column(path: Path, names: Sequence[str], target: str | int | None) -> int:
    if target is None:
        return len(names) - 1
    if isinstance(target, str) and target in names:
        return list(names).index(target)
    try:
        index = int(target)
    except ValueError:
        raise DataError(f"{path}: no column {target!r}; there are {', '.join(names[:20])}") from None
    if not -len(names) <= index < len(names):
        raise DataError(f"{path}: no column {index}; there are {len(names)}")
    return index % len(names)


def _numbers(column: Sequence[str]) -> np.ndarray | None:
    """A column of numbers, NaN where one is missing; None for a column of words."""
    known = [field for field in column if field.strip().lower() not in _MISSING]
    if not known or not all(_is_number(field) for field in known):
        return None
    return np.array([float(f) if f.strip().lower() not in _MISSING else np.nan for f in column])


def _is_number(field: str) -> bool:
    try:
        return np.isfinite(float(field))
    except ValueError:
        return False


def _by_number(text: str) -> tuple[int, float, str]:
    return (0, float(text), text) if _is_number(text) else (1, 0.0, text)
