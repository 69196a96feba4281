# SPDX-License-Identifier: Apache-2.0
"""The IDX files of MNIST, Fashion-MNIST, EMNIST and KMNIST, plain or gzipped.

A file is a magic number (two zeros, a type, the number of dimensions), the dimensions as big-endian 32-bit
integers, and the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from widefield.data.classification.base import ArraySet, ClassificationData
from widefield.data.images import DataError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# Where torchvision keeps them below the directory that it is given.
_FOLDERS = ("", "raw", "MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "mnist", "fashion_mnist")
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
            "Ankle boot")  # fmt: skip


def read_idx(path: Path | str) -> np.ndarray:
    """The array of an IDX file.

    Raises:
        DataError: no IDX file, or one whose length is not what its header says.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: broken or truncated gzip file ({error})") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or not 1 <= content[3] <= 8:
        raise DataError(
            f"{path}: not an IDX file: it begins with {content[:4].hex(' ') or 'nothing'}; pictures begin with "
            "00 00 08 03, labels with 00 00 08 01"
        )
    kind, dims = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * dims
    if len(content) < start:
        raise DataError(f"{path}: truncated within its header, at {len(content)} bytes")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dims, 4))
    expected = start + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        what = "truncated" if len(content) < expected else "too long"
        raise DataError(
            f"{path}: {what}: {'x'.join(map(str, shape))} values take {expected} bytes, it has {len(content)}"
        )
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def find(root: Path) -> dict[str, Path] | None:
    """The four files; None if this is another layout."""
    for folder in _FOLDERS:
        found = {}
        for split, names in (("train", ("train",)), ("val", ("t10k", "test"))):
            for what, kind in (("images", "idx3"), ("labels", "idx1")):
                paths = [
                    root / folder / f"{name}-{what}{dot}{kind}-ubyte{end}"
                    for name in names
                    for dot in "-."
                    for end in ("", ".gz")
                ]
                path = next((path for path in paths if path.is_file()), None)
                if path is not None:
                    found[f"{split}-{what}"] = path
        if "train-images" in found:
            return found
    return None


def read(root: Path) -> ClassificationData:
    """Reads the layout at `root`; classes are named by their number, or as Fashion-MNIST's.

    Raises:
        DataError: a file is missing, damaged, or of another shape than the others.
    """
    found = find(root)
    if found is None:
        raise DataError(f"{root}: expected train-images-idx3-ubyte and its three companions, plain or .gz")
    missing = {"train-images", "train-labels", "val-images", "val-labels"} - set(found)
    if missing:
        there = ", ".join(path.name for path in found.values())
        raise DataError(f"{root}: {', '.join(sorted(missing))} missing beside {there} (val: t10k-*-ubyte)")
    splits = []
    for split in ("train", "val"):
        images, labels = read_idx(found[f"{split}-images"]), read_idx(found[f"{split}-labels"])
        if images.ndim != 3 or images.dtype != np.uint8:
            raise DataError(
                f"{found[f'{split}-images']}: pictures are n x height x width bytes, this holds "
                f"{'x'.join(map(str, images.shape))} {images.dtype}"
            )
        if labels.ndim != 1 or labels.dtype != np.uint8:
            raise DataError(f"{found[f'{split}-labels']}: labels are n bytes, this holds {labels.shape}")
        if len(images) != len(labels):
            raise DataError(
                f"{found[f'{split}-labels']}: {len(labels)} labels for {len(images)} pictures; both must agree"
            )
        splits.append(ArraySet(torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))))
    train, val = splits
    if train.sizes != val.sizes:
        raise DataError(f"{root}: pictures of {train.sizes[0]} for training and of {val.sizes[0]} for validation")
    count = int(max(train.labels.max(), val.labels.max())) + 1
    fashion = "fashion" in str(root).lower() and count == 10
    classes = _FASHION if fashion else tuple(map(str, range(max(count, 10) if count <= 10 else count)))
    return ClassificationData(root.name, classes, train, val, natural=fashion)
