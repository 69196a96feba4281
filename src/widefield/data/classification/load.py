# SPDX-License-Identifier: Apache-2.0
"""One call for every data set with classes: the embedded ones by name, any other by its path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from widefield.core.extras import require
from widefield.data.classification import cifar, folder, idx, table
from widefield.data.classification.base import ArraySet, ClassificationData, split_rows
from widefield.data.images import DataError

TABLES = {"iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer"}
EMBEDDED = ("digits", *TABLES)

LAYOUTS = """\
  idx      train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-*: MNIST, Fashion-MNIST; plain or .gz
  CIFAR    data_batch_1.bin ... test_batch.bin (CIFAR-10), train.bin and test.bin (CIFAR-100)
  folder   {train,val}/<class>/ or <class>/ with pictures
  table    a .csv, .tsv, .data or .txt file with a target column"""


def load_classification(
    name_or_path: str | Path,
    *,
    target: str | int | None = None,
    header: bool | None = None,
    val_fraction: float = 0.2,
) -> ClassificationData:
    """Loads a data set for classification.

    Args:
        name_or_path: "digits", "iris", "wine", "breast-cancer" (scikit-learn's), a file with a table, or a
            directory whose layout is recognised: IDX, CIFAR binary, folders of pictures.
        target, header: of a table; see `read_table`.
        val_fraction: share of the samples, the same on every machine, where no validation set exists.

    Raises:
        DataError: an unknown name or layout, or files that cannot be used. The message says what is accepted.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        if path.suffix.lower() not in table.ENDINGS:
            raise DataError(
                f"{path}: a file is read as a table, {', '.join(table.ENDINGS)}; give the directory of pictures"
            )
        return table.read_table(path, target=target, header=header, val_fraction=val_fraction)
    if target is not None or header is not None:
        raise DataError(f"{name_or_path}: target and header are for tables in a file; leave them out")
    if str(name_or_path) in EMBEDDED and not path.is_dir():
        return _embedded(str(name_or_path), val_fraction)
    if not path.is_dir():
        raise DataError(
            f"{name_or_path}: does not exist; accepted are {', '.join(map(repr, EMBEDDED))}, or:\n{LAYOUTS}"
        )
    path = path.resolve()
    if idx.find(path):
        return idx.read(path)
    if cifar.find(path) is not None:
        return cifar.read(path)
    if folder.find(path) is not None:
        return folder.read(path, val_fraction=val_fraction)
    entries = sorted(p.name + "/" * p.is_dir() for p in path.iterdir() if not p.name.startswith("."))
    holds = ", ".join(entries[:8]) + (", ..." if len(entries) > 8 else "") if entries else "nothing"
    raise DataError(f"{path}: no known layout (it holds {holds}); accepted are:\n{LAYOUTS}")


def _embedded(name: str, val_fraction: float) -> ClassificationData:
    sets = require("sklearn.datasets", "tasks")
    if name == "digits":
        found = sets.load_digits()
        # Sixteen grey levels, spread over a byte.
        pictures = torch.from_numpy(np.rint(found.images * (255 / 16)).astype(np.uint8))[:, None]
        labels = torch.from_numpy(found.target.astype(np.int64))
        train, val = (torch.from_numpy(rows) for rows in split_rows(found.target, val_fraction))
        return ClassificationData(
            name, tuple(map(str, range(10))), ArraySet(pictures[train], labels[train]),
            ArraySet(pictures[val], labels[val]), natural=False,
        )  # fmt: skip
    found = getattr(sets, TABLES[name])()
    columns = [[repr(float(v)) for v in column] for column in found.data.T]
    columns.append([str(found.target_names[t]) for t in found.target])
    return table.from_columns(
        name, [*map(str, found.feature_names), "class"], columns, len(columns) - 1, val_fraction
    )
