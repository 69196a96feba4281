# SPDX-License-Identifier: Apache-2.0
"""Reading pictures and label masks that other people made: every mode, and one sentence for what is broken.

Pictures become `(h, w, 3)` uint8: grey is repeated, alpha dropped, 16-bit grey divided by 256, the EXIF
orientation applied. Masks keep their label values: palette pictures give the palette index, one-bit ones 0 and
1, 16-bit ones their full value; a true colour mask stays `(h, w, 3)` for a palette to decide (see `labels`).
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from widefield.core.extras import require

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".gif"})

_ORIENTATION = 0x0112


class DataError(ValueError):
    """Files that cannot be used as they are; the message names them, and says what is accepted."""


class Pair(NamedTuple):
    """A picture and its label mask."""

    image: Path
    mask: Path


def read_lines(path: Path) -> list[str]:
    """The lines of a text file in UTF-8.

    Raises:
        DataError: another encoding; names the file.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from error


def _open(path: Path):
    """The decoded PIL picture, or a `DataError` that names the file."""
    pil = require("PIL.Image", "tasks")
    try:
        with pil.open(path) as picture:
            picture.load()
            return picture
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except pil.UnidentifiedImageError as error:
        raise DataError(f"{path}: not a picture in a known format") from error
    except (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError) as error:
        raise DataError(f"{path}: broken picture ({error})") from error
    except (struct.error, zlib.error, pil.DecompressionBombError) as error:
        raise DataError(f"{path}: broken picture ({error})") from error


def _upright(picture):
    """The picture turned as its EXIF orientation says."""
    if picture.getexif().get(_ORIENTATION, 1) == 1:
        return picture
    return require("PIL.ImageOps", "tasks").exif_transpose(picture)


def _rgb(picture, path: Path) -> np.ndarray:
    if picture.mode == "F":
        raise DataError(f"{path}: holds floating-point values; save the picture with 8 or 16 bits")
    if picture.mode.startswith("I"):
        # Pillow's own conversion clips 16-bit values at 255, which turns microscope pictures white.
        values = np.asarray(picture).astype(np.int64)
        grey = values >> 8 if picture.mode.startswith("I;16") or values.max(initial=0) > 255 else values
        return np.repeat(grey.clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)
    return np.array(picture.convert("RGB"))


def read_image(path: Path) -> np.ndarray:
    """A picture as `(h, w, 3)` uint8.

    Raises:
        DataError: missing, not a picture, or broken.
    """
    return _rgb(_upright(_open(path)), path)


def read_mask(path: Path) -> np.ndarray:
    """A mask as stored: `(h, w)` integers, or `(h, w, 3)` uint8 for a mask painted in colours.

    Raises:
        DataError: missing, not a picture, broken, or of floating-point values.
    """
    picture = _upright(_open(path))
    if picture.mode == "F":
        raise DataError(f"{path}: a mask holds whole numbers, this one floating-point values")
    if picture.mode in ("LA", "PA"):
        picture = picture.getchannel(0)
    if picture.mode in ("1", "L", "P") or picture.mode.startswith("I"):
        return np.asarray(picture).astype(np.int64)
    colours = np.array(picture.convert("RGB"))
    # A grey mask saved by an editor that only writes colour still holds plain label values.
    if (colours[..., :1] == colours).all():
        return colours[..., 0].astype(np.int64)
    return colours


def read_pair(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """The picture `(h, w, 3)` and its mask as stored, of one size.

    A mask drawn on the picture before its EXIF rotation is recognised by its size; the picture is then left
    unturned.

    Raises:
        DataError: either file is unusable, or the sizes differ.
    """
    mask = read_mask(pair.mask)
    stored = _open(pair.image)
    turned = _upright(stored)
    size = (mask.shape[1], mask.shape[0])
    if turned.size != size and stored.size == size:
        turned = stored
    if turned.size != size:
        raise DataError(
            f"{pair.image}: the picture is {turned.size[0]}x{turned.size[1]}, "
            f"its mask {pair.mask} is {size[0]}x{size[1]}; both must have one size"
        )
    return _rgb(turned, pair.image), mask


def is_picture(path: Path) -> bool:
    """Whether the name ends like a picture's."""
    return path.suffix.lower() in EXTENSIONS
