# SPDX-License-Identifier: Apache-2.0
"""Folders of pictures, one a class.

{train,val}/<class>/*.png       also training, validation, valid, test
<class>/*.png                   split by a hash of the names
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from widefield.data.classification.base import ClassificationData, PictureSet
from widefield.data.files import pictures, split_folder
from widefield.data.images import DataError, is_picture, read_image

TRAIN = ("train", "training")
VAL = ("val", "validation", "valid", "test")
_VERIFY_UP_TO = 5000
_Named = tuple[str, Path]


def _classes(root: Path) -> list[str]:
    """The folders that hold pictures, at any depth."""
    if not root.is_dir():
        return []
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return [p.name for p in folders if any(is_picture(file) for file in p.rglob("*"))]


def find(root: Path) -> list[Path] | None:
    """`[all]`, or `[train, val]`; None if this is another layout."""
    train, val = split_folder(root, TRAIN), split_folder(root, VAL)
    if train is not None and _classes(train):
        return [train] if val is None or not _classes(val) else [train, val]
    if val is not None and _classes(val) and train is None:
        return None
    return [root] if len(_classes(root)) > 1 else None


def read(root: Path, *, val_fraction: float = 0.2, verify: bool | None = None) -> ClassificationData:
    """Reads the layout at `root`; classes are in the order of their names.

    Raises:
        DataError: not this layout, no usable picture, or classes in one split alone that training never saw.
    """
    found = find(root)
    if found is None:
        raise DataError(f"{root}: expected train/<class>/ and val/<class>/, or <class>/ with pictures in them")
    names = _classes(found[0])
    if len(found) == 2 and (unknown := sorted(set(_classes(found[1])) - set(names))):
        raise DataError(f"{found[1]}: classes that training has not: {', '.join(unknown[:8])}")
    splits, problems = [], []
    for folder in found:
        files: list[_Named] = []
        for name in names:
            if (folder / name).is_dir():
                paths, complaints = pictures(folder / name)
                files += [(name, path) for path in paths]
                problems += complaints
        splits.append(files)
    if verify or (verify is None and sum(map(len, splits)) <= _VERIFY_UP_TO):
        splits = [_readable(files, problems) for files in splits]
    if len(splits) == 1:
        splits = _hashed(splits[0], val_fraction)
    places = {name: i for i, name in enumerate(names)}
    sets = [PictureSet([path for _, path in files], [places[name] for name, _ in files]) for files in splits]
    return ClassificationData(root.name, tuple(names), sets[0], sets[1], tuple(problems))


def _readable(files: list[_Named], problems: list[str]) -> list[_Named]:
    def look(item: _Named) -> str:
        try:
            read_image(item[1])
        except DataError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(look, files))
    problems += [text for text in said if text]
    return [item for item, text in zip(files, said, strict=True) if not text]


def _hashed(files: list[_Named], fraction: float) -> list[list[_Named]]:
    """In each class the pictures whose names hash lowest validate."""
    if not 0 < fraction < 1:
        raise DataError(f"val_fraction must lie between 0 and 1, got {fraction}")
    train: list[_Named] = []
    val: list[_Named] = []
    for name in sorted({name for name, _ in files}):
        mine = [item for item in files if item[0] == name]
        mine.sort(key=lambda item: (hashlib.sha256(item[1].name.encode()).hexdigest(), item[1]))
        cut = min(max(round(fraction * len(mine)), 1), len(mine) - 1)
        val += sorted(mine[:cut])
        train += sorted(mine[cut:])
    return [train, val]
