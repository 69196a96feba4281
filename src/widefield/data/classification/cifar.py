# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 and CIFAR-100, the binary version.

A record is its label (CIFAR-100: a coarse and a fine one) and 3072 bytes: 32 x 32 of red, of green, of blue. The
"python" version consists of pickles, which can run any code when they are opened; it is recognised and refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from widefield.data.classification.base import ArraySet, ClassificationData
from widefield.data.images import DataError, read_lines

_PIXELS = 3 * 32 * 32
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-100-binary")
_PICKLED = ("", "cifar-10-batches-py", "cifar-100-python")


def read_cifar(path: Path | str, labels: int = 1) -> ArraySet:
    """The pictures of one file; the last of its labels.

    Args:
        path: of a `.bin` file.
        labels: bytes in front of each picture: 1 in CIFAR-10, 2 in CIFAR-100.

    Raises:
        DataError: the length is no multiple of a record.
    """
    path = Path(path)
    try:
        content = np.frombuffer(path.read_bytes(), np.uint8)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    record = labels + _PIXELS
    if len(content) == 0 or len(content) % record:
        raise DataError(
            f"{path}: truncated or another format: {len(content)} bytes are no multiple of the {record} of a "
            "record"
        )
    rows = content.reshape(-1, record)
    pictures = torch.from_numpy(rows[:, labels:].reshape(-1, 3, 32, 32).copy())
    return ArraySet(pictures, torch.from_numpy(rows[:, labels - 1].astype(np.int64)))


def find(root: Path) -> tuple[Path, int] | None:
    """The folder and whether it is CIFAR-10 or 100; None if this is another layout.

    Raises:
        DataError: the pickled version.
    """
    for folder in _FOLDERS:
        where = root / folder
        if any(where.glob("data_batch_*.bin")):
            return where, 10
        if (where / "train.bin").is_file() and (where / "test.bin").is_file():
            return where, 100
    for folder in _PICKLED:
        where = root / folder
        if (where / "data_batch_1").is_file() or ((where / "meta").is_file() and (where / "train").is_file()):
            raise DataError(
                f"{where}: the python version of CIFAR consists of pickles, which run code when opened; take the "
                "binary version"
            )
    return None


def read(root: Path) -> ClassificationData:
    """Reads the layout at `root`.

    Raises:
        DataError: not this layout, or a damaged or missing file.
    """
    found = find(root)
    if found is None:
        raise DataError(f"{root}: expected data_batch_1.bin ... test_batch.bin, or train.bin and test.bin")
    where, count = found
    if count == 10:
        files, test, names, each = sorted(where.glob("data_batch_*.bin")), "test_batch.bin", "batches.meta.txt", 1
    else:
        files, test, names, each = [where / "train.bin"], "test.bin", "fine_label_names.txt", 2
    parts = [read_cifar(path, each) for path in files]
    train = ArraySet(torch.cat([p.samples for p in parts]), torch.cat([p.labels for p in parts]))
    listed = (
        [line.strip() for line in read_lines(where / names) if line.strip()] if (where / names).is_file() else []
    )
    if listed and len(listed) != count:
        raise DataError(f"{where / names}: {len(listed)} names for {count} classes")
    classes = tuple(listed) or tuple(map(str, range(count)))
    return ClassificationData(root.name, classes, train, read_cifar(where / test, each))
