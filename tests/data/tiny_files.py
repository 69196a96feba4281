# SPDX-License-Identifier: Apache-2.0
"""Tiny data sets on disk."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, size=(8, 6), mode="RGB", seed=0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).convert(mode).save(path)
    return path


def mask(path: Path, values) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values)).save(path)
    return path


def labels(*values, shape=(6, 8), dtype=np.uint8) -> np.ndarray:
    return np.resize(np.array(values, dtype=dtype), shape)


def folder(root: Path, count=10, values=(0, 1, 2, 255)) -> Path:
    for i in range(count):
        picture(root / "images" / f"p{i}.png", seed=i)
        mask(root / "masks" / f"p{i}.png", labels(*values))
    return root


def camvid(root: Path, prefix="", classes=True) -> Path:
    for split, count in (("train", 3), ("val", 2)):
        lines = []
        for i in range(count):
            picture(root / split / f"{i}.png")
            mask(root / f"{split}annot" / f"{i}.png", labels(*range(12)))
            lines.append(f"{prefix}{split}/{i}.png {prefix}{split}annot/{i}.png")
        (root / f"{split}.txt").write_text("\n".join(lines))
    if classes:
        names = "Sky Building Pole Road Pavement Tree SignSymbol Fence Car Pedestrian Bicyclist Unlabelled"
        text = "\n".join(f"{i} {name}" for i, name in enumerate(names.split()))
        (root / "classes.txt").write_text(text)
    return root


def voc(parent: Path, *, augmented=False) -> Path:
    base = parent / "VOCdevkit" / "VOC2012"
    lists = base / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    names = {"train": ["2007_01", "2007_02"], "val": ["2007_03"], "trainaug": ["2007_01", "2007_02", "2008_09"]}
    for name in [*names["trainaug"], *names["val"]]:
        picture(base / "JPEGImages" / f"{name}.jpg")
        values = Image.fromarray(labels(0, 15, 20, 255)).convert("P")
        (base / "SegmentationClass").mkdir(exist_ok=True)
        if name != "2008_09":
            values.save(base / "SegmentationClass" / f"{name}.png")
        if augmented:
            mask(base / "SegmentationClassAug" / f"{name}.png", labels(0, 15, 20, 255))
    for split, stems in names.items():
        if split != "trainaug" or augmented:
            (lists / f"{split}.txt").write_text("\n".join(stems) + "\n")
    return base
