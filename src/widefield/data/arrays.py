# SPDX-License-Identifier: Apache-2.0
"""Arrays by name out of `.mat` (old and 7.3), `.npz` and `.npy` files, without running what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widefield.core.extras import require
from widefield.data.images import DataError

ENDINGS = (".mat", ".npz", ".npy")
Shapes = dict[str, tuple[int, ...]]
Loader = Callable[[str], np.ndarray]


def open_arrays(path: Path) -> tuple[Shapes, Loader]:
    """The shapes of the arrays of a file by name, and a function that loads one of them; MATLAB's order of axes.

    Raises:
        DataError: a file that cannot be read; named.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    readers = {".mat": _mat, ".npz": _npz, ".npy": _npy}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path}: accepted are {', '.join(ENDINGS)} and ENVI headers (.hdr)")
    try:
        return readers[path.suffix.lower()](path)
    except (DataError, ImportError):
        raise
    except Exception as error:
        raise DataError(f"{path}: broken file ({str(error) or type(error).__name__})") from error


def pick(path: Path, shapes: Shapes, key: str | None, usual: Sequence[str], dims: Sequence[int], what: str) -> str:
    """The name of the array that is meant: given, or a usual one, or the only one of so many dimensions.

    Raises:
        DataError: none, or several.
    """
    listed = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items()) or "nothing"
    if key is not None:
        if key not in shapes:
            raise DataError(f"{path}: no array {key!r}; it holds {listed}")
        if len(shapes[key]) not in dims:
            raise DataError(
                f"{path}: {key} has {len(shapes[key])} dimensions, {what} has {' or '.join(map(str, dims))}"
            )
        return key
    fitting = [name for name, shape in shapes.items() if len(shape) in dims and min(shape, default=0) > 0]
    for name in usual:
        if name in fitting:
            return name
    # MATLAB writes numbers as 1 x 1.
    fitting = [name for name in fitting if np.prod(shapes[name]) > max(shapes[name])] or fitting
    if not fitting:
        raise DataError(
            f"{path}: no array fits {what} of {' or '.join(map(str, dims))} dimensions; it holds {listed}"
        )
    if len(fitting) != 1:
        raise DataError(f"{path}: {what} is not to be told apart; it holds {listed}. Give the name (--key)")
    return fitting[0]


def _mat(path: Path) -> tuple[Shapes, Loader]:
    with path.open("rb") as file:
        new = b"MATLAB 7.3" in file.read(128) or (file.seek(0) == 0 and file.read(8) == b"\x89HDF\r\n\x1a\n")
    return _mat_73(path) if new else _mat_5(path)


def _mat_5(path: Path) -> tuple[Shapes, Loader]:
    io = require("scipy.io", "tasks")
    numeric = {"double", "single", "logical", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))}
    shapes = {name: tuple(shape) for name, shape, kind in io.whosmat(str(path)) if kind in numeric}

    def load(name: str) -> np.ndarray:
        try:
            return io.loadmat(str(path), variable_names=[name])[name]
        except Exception as error:
            raise DataError(f"{path}: broken file ({str(error) or type(error).__name__})") from error

    return shapes, load


def _mat_73(path: Path) -> tuple[Shapes, Loader]:
    h5py = require("h5py", "tasks")
    with h5py.File(path, "r") as file:
        shapes = {
            name: tuple(item.shape[::-1])
            for name, item in file.items()
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "iufb"
        }

    def load(name: str) -> np.ndarray:
        with h5py.File(path, "r") as file:
            return np.asarray(file[name]).T

    return shapes, load


def _npz(path: Path) -> tuple[Shapes, Loader]:
    with np.load(path, allow_pickle=False) as file:
        shapes = {}
        for name in file.files:
            with file.zip.open(f"{name}.npy") as member:
                shapes[name] = _npy_shape(member)

    def load(name: str) -> np.ndarray:
        try:
            with np.load(path, allow_pickle=False) as file:
                return file[name]
        except Exception as error:
            raise DataError(f"{path}: broken file ({str(error) or type(error).__name__})") from error

    return {name: shape for name, shape in shapes.items() if shape is not None}, load


def _npy(path: Path) -> tuple[Shapes, Loader]:
    with path.open("rb") as file:
        shape = _npy_shape(file)
    if shape is None:
        raise DataError(f"{path}: holds objects or complex values, not real numbers")

    def load(name: str) -> np.ndarray:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise DataError(f"{path}: broken file ({error})") from error

    return {"array": shape}, load


def _npy_shape(file: Any) -> tuple[int, ...] | None:
    """From the header; None where it holds no numbers."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape if dtype.kind in "iufb" else None
