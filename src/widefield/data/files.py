# SPDX-License-Identifier: Apache-2.0
"""Finding which mask belongs to which picture, by name or from a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from widefield.data.images import DataError, Pair, is_picture, read_lines

# What people append to a common stem to tell a picture from its mask.
_SUFFIX = re.compile(
    r"[-_. ](images?|imgs?|photo|labels?|masks?|gt|seg|segmentation|annotations?|trimap|L|leftImg8bit"
    r"|gtFine_labelIds|gtFine_labelTrainIds)$",
    re.IGNORECASE,
)
_HOUSEKEEPING = {"thumbs.db", "desktop.ini", "readme.md", "readme.txt", "license", "license.txt"}


def pictures(folder: Path) -> tuple[list[Path], list[str]]:
    """All pictures below a folder, sorted, and the complaints about files that are none."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    found = [p for p in files if is_picture(p)]
    others = [p for p in files if not is_picture(p) and p.name.lower() not in _HOUSEKEEPING]
    return found, [f"{path}: not a picture" for path in others]


def _keys(files: Sequence[Path], folder: Path, *, strip: bool) -> dict[str, Path]:
    def key(path: Path) -> str:
        stem = _SUFFIX.sub("", path.stem) if strip else path.stem
        return (path.parent.relative_to(folder) / stem).as_posix()

    # The first in sorted order wins; the later one of the same name stays unpaired and is reported.
    return {key(path): path for path in reversed(files)}


def pair_folders(images: Path, masks: Path) -> tuple[list[Pair], list[str]]:
    """Pairs the pictures of two folders: by equal names first, then without endings like `_image`, `_mask`.

    Returns:
        The pairs, and one complaint for each file without a partner.
    """
    (left, complaints), (right, more) = pictures(images), pictures(masks)
    complaints += more
    pairs: list[Pair] = []
    for strip in (False, True):
        names, partners = _keys(left, images, strip=strip), _keys(right, masks, strip=strip)
        pairs += [Pair(names[key], partners[key]) for key in names.keys() & partners.keys()]
        taken = {path for pair in pairs for path in pair}
        left, right = [p for p in left if p not in taken], [p for p in right if p not in taken]
    complaints += [f"{path}: no mask of that name in {masks}" for path in left]
    complaints += [f"{path}: no picture of that name in {images}" for path in right]
    return sorted(pairs), complaints


def pairs_from_list(path: Path, root: Path) -> list[Pair]:
    """Reads lines `image label`; paths are relative to `root`.

    Published lists hold paths of their authors' machines (`/SegNet/CamVid/train/x.png`): leading parts are
    dropped until the file exists below `root`.

    Raises:
        DataError: a line without two columns.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split()
        if not columns:
            continue
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {number}: expected 'image label', two paths without spaces, got {len(columns)}"
            )
        pairs.append(Pair(_below(root, columns[0]), _below(root, columns[1])))
    return pairs


def names_from_list(path: Path) -> list[str] | None:
    """The file stems in a list with one name a line; None if a line has more columns."""
    rows = [line.split() for line in read_lines(path) if line.strip()]
    if any(len(row) != 1 for row in rows):
        return None
    # A name may hold dots; only a picture's ending is taken off.
    return [Path(row[0]).stem if is_picture(Path(row[0])) else Path(row[0]).name for row in rows]


def _below(root: Path, name: str) -> Path:
    parts = Path(name).parts
    parts = parts[1:] if Path(name).is_absolute() else parts
    for start in range(len(parts)):
        candidate = root.joinpath(*parts[start:])
        if candidate.is_file():
            return candidate
    return root.joinpath(*parts)


def split_folder(root: Path, names: Sequence[str]) -> Path | None:
    """The first folder of these names below `root`, whatever the case of the letters."""
    if not root.is_dir():
        return None
    found = {p.name.lower(): p for p in sorted(root.iterdir(), reverse=True) if p.is_dir()}
    return next((found[name] for name in names if name in found), None)


def class_list(root: Path) -> Path | None:
    """The file that names the classes, if there is one."""
    for name in ("classes.txt", "class_names.txt", "labels.txt"):
        if (root / name).is_file():
            return root / name
    return None
