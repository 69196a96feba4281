# SPDX-License-Identifier: Apache-2.0
"""One call for every data set: the embedded one by name, any other by its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from widefield.data import camvid, folder, voc
from widefield.data.base import SegmentationData
from widefield.data.images import DataError
from widefield.data.labels import Colour, LabelSpec
from widefield.data.scenes import scenes

EMBEDDED: dict[str, Callable[[], SegmentationData]] = {"scenes": scenes}

LAYOUTS = """\
  CamVid   train.txt and val.txt with lines "image label", or train/ trainannot/ val/ valannot/
  VOC      JPEGImages/ SegmentationClass/ ImageSets/Segmentation/, in the directory, VOC2012/ or
  VOCdevkit/VOC2012/
  folder   images/ masks/, or {train,val}/{images,masks}/, or {images,masks}/{train,val}/"""


def load_segmentation(
    name_or_path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    ignore_index: int | Sequence[int] | None = None,
    label_map: Mapping[int, int] | None = None,
    binary: bool = False,
    palette: Mapping[Colour, int] | None = None,
    train_list: str | None = None,
    val_fraction: float = 0.2,
    verify: bool | None = None,
) -> SegmentationData:
    """Loads a segmentation data set.

    Args:
        name_or_path: "scenes" (embedded, see `widefield.data.scenes`) or a directory whose layout is
        recognised:
            CamVid/SegNet lists or folders, PASCAL VOC, or a folder of images and one of masks.
        classes: names in the order of the label values; they replace a `classes.txt`.
        num_classes: how many classes, where there are no names and some do not occur.
        ignore_index: stored label values that are not counted (default 255). Labels come out with 255 there.
        label_map: stored value -> class, or 255; values outside it are refused.
        binary: object or not: every stored value but 0 becomes class 1 (masks that number the objects, or
            0 and 255).
        palette: `{(r, g, b): stored value}`, for masks painted in colours.
        train_list: VOC only: the training list in ImageSets/Segmentation (default: trainaug if usable, else
            train).
        val_fraction: share of the pictures, chosen by a hash of their name, where no validation set exists.
        verify: decode every file now, so that broken ones are named in `problems` and left out, and wrong label
            values are found. None: do so up to 5000 pairs.

    Raises:
        DataError: an unknown name or layout, files of which none can be used, or label values that are no
            class. The message says what is accepted.
    """
    path = Path(name_or_path).expanduser()
    given = (classes, num_classes, ignore_index, label_map, palette, train_list, verify)
    if str(name_or_path) in EMBEDDED and not path.is_dir():
        if binary or any(item is not None for item in given):
            raise DataError(f"{name_or_path!r} is embedded and takes no options here; call widefield.data.scenes")
        return EMBEDDED[str(name_or_path)]()
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise DataError(
            f"{name_or_path}: {what}; accepted are {', '.join(map(repr, EMBEDDED))}, or a directory:\n{LAYOUTS}"
        )
    ignored = (ignore_index,) if isinstance(ignore_index, int) else ignore_index
    spec = LabelSpec(
        classes=None if classes is None else tuple(classes),
        num_classes=num_classes,
        ignore_index=None if ignored is None else tuple(ignored),
        label_map=label_map,
        binary=binary,
        palette=palette,
    )
    path = path.resolve()
    read = _reader(path)
    if train_list is not None:
        if read is not voc.read:
            raise DataError(f"{path}: train_list is for the VOC layout, this is another; leave it out")
        read = partial(voc.read, train_list=train_list)
    return read(path, spec, val_fraction=val_fraction, verify=verify)


def _reader(path: Path) -> Callable[..., SegmentationData]:
    if camvid.find(path):
        return camvid.read
    if voc.find(path) is not None:
        return voc.read
    if folder.find(path) is not None:
        return folder.read
    entries = sorted(p.name + "/" * p.is_dir() for p in path.iterdir() if not p.name.startswith("."))
    holds = ", ".join(entries[:8]) + (", ..." if len(entries) > 8 else "") if entries else "nothing"
    raise DataError(f"{path}: no known layout (it holds {holds}); accepted are:\n{LAYOUTS}")
