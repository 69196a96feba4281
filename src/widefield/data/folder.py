# SPDX-License-Identifier: Apache-2.0
"""A folder of pictures and a folder of masks.

Accepted, with the usual other names (`image`, `imgs`; `labels`, `annotations`, `annotations/trimaps`, ...):

    images/ masks/                                  split by train.txt and val.txt (one name a line), or by hash
    {train,val}/{images,masks}/
    {images,masks}/{train,val}/                     also training, validation, valid

A picture and its mask have one name, but for the ending and a suffix such as `_image`, `_mask`, `_label`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from widefield.data.base import SegmentationData, from_pairs
from widefield.data.files import class_list, names_from_list, pair_folders, split_folder
from widefield.data.images import DataError, Pair
from widefield.data.labels import LabelSpec, read_classes

IMAGES = ("images", "image", "imgs", "img", "pictures", "photos", "jpegimages")
MASKS = ("masks", "mask", "labels", "label", "annotations", "annotation", "gt", "segmentationclass")
TRAIN = ("train", "training")
VAL = ("val", "validation", "valid")


@dataclass(frozen=True)
class Folders:
    """The folders of one split, or of all of them."""

    images: Path
    masks: Path


def _folders(root: Path | None) -> Folders | None:
    if root is None:
        return None
    images, masks = split_folder(root, IMAGES), split_folder(root, MASKS)
    if images is None or masks is None:
        return None
    return Folders(images, split_folder(masks, ("trimaps",)) or masks)


def find(root: Path) -> list[Folders] | None:
    """The folders of `[all]`, or of `[train, val]`; None if this is another layout."""
    whole = _folders(root)
    if whole is not None:
        splits = [
            Folders(images, masks)
            for names in (TRAIN, VAL)
            if (images := split_folder(whole.images, names)) and (masks := split_folder(whole.masks, names))
        ]
        return splits if len(splits) == 2 else [whole]
    train, val = _folders(split_folder(root, TRAIN)), _folders(split_folder(root, VAL))
    return None if train is None else [train] if val is None else [train, val]


def read(
    root: Path, spec: LabelSpec, *, val_fraction: float = 0.2, verify: bool | None = None
) -> SegmentationData:
    """Reads the layout at `root`.

    Raises:
        DataError: not this layout, no usable pair, or labels that cannot be understood.
    """
    found = find(root)
    if found is None:
        raise DataError(f"{root}: expected images/ and masks/, or train/{{images,masks}}/")
    splits, problems = [], []
    for folders in found:
        pairs, complaints = pair_folders(folders.images, folders.masks)
        splits.append(pairs)
        problems += complaints
    if len(splits) == 1:
        splits = _listed(root, splits[0], problems)
    listed = class_list(root)
    if listed is not None:
        spec = spec.filled(read_classes(listed))
    return from_pairs(
        root.name, splits[0], splits[1], spec, problems=problems, val_fraction=val_fraction, verify=verify
    )


def _listed(root: Path, pairs: list[Pair], problems: list[str]) -> list[list[Pair]]:
    """Splits by train.txt and val.txt where both are there."""
    files = [root / "train.txt", root / "val.txt"]
    if not all(path.is_file() for path in files):
        return [pairs, []]
    by_name = {pair.image.stem: pair for pair in pairs}
    splits = []
    for path in files:
        names = names_from_list(path)
        if names is None:
            raise DataError(f"{path}: expected one name a line, or 'image label' on every line")
        problems += [
            f"{name}: named in {path}, no such picture with a mask" for name in names if name not in by_name
        ]
        splits.append([by_name[name] for name in names if name in by_name])
    return splits
