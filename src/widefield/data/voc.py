# SPDX-License-Identifier: Apache-2.0
"""The PASCAL VOC layout, with the `trainaug` lists that people made from the Semantic Boundaries Dataset.

    JPEGImages/  SegmentationClass/  ImageSets/Segmentation/{train,val}.txt
    SegmentationClassAug/  ImageSets/Segmentation/trainaug.txt          optional: 10582 training pictures

The directory may be VOC2012 itself, VOCdevkit, or the parent of VOCdevkit. Masks hold palette indices: 0
background, 1..20 objects, 255 ignored; `class_names.txt` replaces the names. Without lists the pictures that
have a mask are split by a hash of their name.

The files chosen for a list equal those of `torchvision.datasets.VOCSegmentation`, which does the downloading
(`VOCSegmentation(root, download=True)`, then give `root` here) but knows neither `trainaug` nor a VOC2012
directory on its own.
"""

from __future__ import annotations

from pathlib import Path

from widefield.data.base import SegmentationData, from_pairs
from widefield.data.files import class_list, names_from_list, pair_folders, pairs_from_list
from widefield.data.images import DataError, Pair
from widefield.data.labels import LabelSpec, read_classes

CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
_IMAGES, _MASKS, _AUGMENTED = "JPEGImages", "SegmentationClass", "SegmentationClassAug"


def find(root: Path) -> Path | None:
    """The directory that holds JPEGImages and SegmentationClass: the latest year at or below `root`."""
    years = sorted([*root.glob("VOC2*"), *root.glob("VOCdevkit/VOC2*")], key=lambda p: p.name, reverse=True)
    for base in (root, *years):
        if (base / _IMAGES).is_dir() and (base / _MASKS).is_dir():
            return base
    return None


def read(
    root: Path,
    spec: LabelSpec,
    *,
    train_list: str | None = None,
    val_fraction: float = 0.2,
    verify: bool | None = None,
) -> SegmentationData:
    """Reads the layout at, or below, `root`.

    Args:
        root: VOC2012, VOCdevkit, or its parent.
        spec: what is known of the labels; VOC's 21 classes where it is silent.
        train_list: name of the training list; None takes `trainaug` if the list and SegmentationClassAug are
            there, else `train`.
        val_fraction: of the pictures, where there are no lists.
        verify: see `load_segmentation`.

    Raises:
        DataError: not this layout, a list that does not exist, no usable pair, or wrong labels.
    """
    base = find(root)
    if base is None:
        raise DataError(f"{root}: expected {_IMAGES}/ and {_MASKS}/, here or in VOC2012/ or VOCdevkit/VOC2012/")
    lists = base / "ImageSets" / "Segmentation"
    if train_list is None:
        augmented = (lists / "trainaug.txt").is_file() and (base / _AUGMENTED).is_dir()
        train_list = "trainaug" if augmented else "train"
    elif not (lists / f"{train_list}.txt").is_file():
        there = ", ".join(sorted(p.stem for p in lists.glob("*.txt"))) or "none"
        raise DataError(f"{lists}: no list {train_list!r}; there are: {there}")
    train, val, problems = _pairs(base, train_list), _pairs(base, "val"), []
    if not train and not val:
        train, problems = pair_folders(base / _IMAGES, base / _MASKS)
        # VOC has many more pictures than masks; only a mask without a picture is worth a word.
        problems = [text for text in problems if f"in {base / _MASKS}" not in text]
    named = class_list(base)
    spec = spec.filled(read_classes(named) if named is not None else LabelSpec(classes=CLASSES))
    return from_pairs(base.name, train, val, spec, problems=problems, val_fraction=val_fraction, verify=verify)


def _pairs(base: Path, name: str) -> list[Pair]:
    """The pairs of a list: names, or `/JPEGImages/x.jpg /SegmentationClassAug/x.png` as in DeepLab's lists."""
    path = base / "ImageSets" / "Segmentation" / f"{name}.txt"
    if not path.is_file():
        return []
    names = names_from_list(path)
    if names is None:
        return pairs_from_list(path, base)
    masks = base / _MASKS
    if name.endswith("aug") and (base / _AUGMENTED).is_dir():
        masks = base / _AUGMENTED
    return [Pair(base / _IMAGES / f"{stem}.jpg", masks / f"{stem}.png") for stem in names]
