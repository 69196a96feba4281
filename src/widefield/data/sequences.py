# SPDX-License-Identifier: Apache-2.0
"""Texts and piano rolls, as people have them on disk."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from widefield.core.extras import require
from widefield.data.images import DataError

HELD_OUT = 0.1
MOST_CHARACTERS = 255
UNKNOWN = "\ufffd"
MUSIC_FILES = (".mat", ".npz", ".npy")


@dataclass(frozen=True)
class TextData:
    """A text as numbers.

    Attributes:
        name: of the file.
        characters: the vocabulary; the last stands for all that are too rare, where there are such.
        train, val: `(n,)` int64, the beginning and the end of the text.
        texts: both as they stood.
    """

    name: str
    characters: tuple[str, ...]
    train: np.ndarray
    val: np.ndarray
    texts: tuple[str, str]

    def fingerprint(self) -> str:
        """Changes with the text."""
        return hashlib.sha256("\0".join(self.texts).encode()).hexdigest()[:12]


def read_text(path: Path, *, held_out: float = HELD_OUT) -> TextData:
    """Reads a text file; its last tenth is held out.

    Raises:
        DataError: no such file, not UTF-8, or too short to be split.
    """
    if not path.is_file():
        raise DataError(f"{path} is no text file; give --data FILE, any text in UTF-8")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
    cut = round(len(text) * (1 - held_out))
    if len(text) - cut < 20:
        raise DataError(f"{path} holds {len(text)} characters; {round(20 / held_out)} are needed to hold some out")
    common = [character for character, _ in Counter(text).most_common(MOST_CHARACTERS)]
    rare = len(set(text)) > len(common)
    characters = (*sorted(common), *([UNKNOWN] if rare else []))
    place = {character: index for index, character in enumerate(characters)}
    values = np.array([place.get(character, len(characters) - 1) for character in text], dtype=np.int64)
    return TextData(path.name, characters, values[:cut], values[cut:], (text[:cut], text[cut:]))


@dataclass(frozen=True)
class MusicData:
    """Pieces, each `(steps, keys)` of zeros and ones."""

    name: str
    train: tuple[np.ndarray, ...]
    val: tuple[np.ndarray, ...]

    @property
    def keys(self) -> int:
        """Width of a step."""
        return self.train[0].shape[1]

    def fingerprint(self) -> str:
        """Changes with any piece."""
        digest = hashlib.sha256()
        for piece in (*self.train, None, *self.val):
            digest.update(b"|" if piece is None else repr(piece.shape).encode() + piece.tobytes())
        return digest.hexdigest()[:12]


def read_music(path: Path) -> MusicData:
    """Reads piano rolls.

    A file of the collection of Boulanger-Lewandowski et al. (ICML 2012) brings its own split: `traindata` and
    `validdata`. In a folder every `.mat`, `.npz` or `.npy` is one piece, and every tenth, by name, is held out.

    Raises:
        DataError: nothing to read, or arrays that are no piano rolls of one width.
    """
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in MUSIC_FILES)
        if len(files) < 2:
            raise DataError(f"{path} holds {len(files)} pieces ({', '.join(MUSIC_FILES)}); at least 2 are needed")
        every = max(2, min(10, len(files)))
        pieces = [_piece(_arrays(file), file) for file in files]
        held = [i for i in range(len(files)) if i % every == every - 1]
        train = [piece for i, piece in enumerate(pieces) if i not in held]
        return _checked(path.name, train, [pieces[i] for i in held])
    if not path.is_file():
        raise DataError(f"{path} is no file of piano rolls; give --data FILE.mat or a folder of pieces")
    arrays = _arrays(path)
    if "traindata" not in arrays or "validdata" not in arrays:
        raise DataError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; expected traindata and validdata, or a folder of "
            "pieces"
        )
    train, val = (
        [_roll(piece, path) for piece in np.asarray(arrays[name]).ravel()] for name in ("traindata", "validdata")
    )
    return _checked(path.stem, train, val)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        if path.suffix == ".npy":
            return {path.stem: np.load(path, allow_pickle=False)}
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        scipy_io = require("scipy.io", "tasks")
        try:
            found = scipy_io.loadmat(path)
        except (scipy_io.matlab.MatReadError, NotImplementedError) as error:
            raise ValueError(str(error)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return {name: value for name, value in found.items() if not name.startswith("__")}


def _piece(arrays: dict[str, np.ndarray], path: Path) -> np.ndarray:
    if len(arrays) != 1:
        raise DataError(f"{path} holds {len(arrays)} arrays ({', '.join(arrays)}); one piece a file is expected")
    return _roll(next(iter(arrays.values())), path)


def _roll(value: np.ndarray, path: Path) -> np.ndarray:
    value = np.asarray(value)
    if value.ndim != 2 or value.shape[0] < 2 or not np.isin(value, (0, 1)).all():
        raise DataError(f"{path}: a piece must be (steps, keys) of zeros and ones, got the shape {value.shape}")
    return value.astype(np.uint8)


def _checked(name: str, train: Sequence[np.ndarray], val: Sequence[np.ndarray]) -> MusicData:
    widths = {piece.shape[1] for piece in (*train, *val)}
    if len(widths) != 1 or not train or not val:
        raise DataError(
            f"{name}: {len(train)} pieces to train on, {len(val)} held out, with {sorted(widths)} keys; there "
            "must be some of each, of one width"
        )
    return MusicData(name, tuple(train), tuple(val))
