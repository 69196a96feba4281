# SPDX-License-Identifier: Apache-2.0
"""Spectral cubes, coded apertures and snapshots, in the files that laboratories have.

Files hold rows, columns, bands; here a cube is `(l, h, w)` float32 in [0, 1]. How its values got there is kept as
text:

    img_expand, img of cave_1024_28    divided by 65536          data_slice of CAVE_512_28    divided by 65535
    HSI of KAIST_CVPR2021              clipped to [0, 1]         all others    kept if they lie in [0, 1], else
                                                                 divided by their maximum; below 0 is 0
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from widefield.core.extras import require
from widefield.core.files import write_bytes
from widefield.data.arrays import ENDINGS, Loader, Shapes, open_arrays, pick
from widefield.data.envi import read_envi, write_envi
from widefield.data.images import DataError

CUBE_ENDINGS = (*ENDINGS, ".hdr")
CUBE_KEYS = ("img_expand", "data_slice", "HSI", "cube", "img", "hsi", "truth", "rad", "ref", "data", "orig")
MASK_KEYS = ("mask", "mask_3d_shift", "phi", "Phi")
MEASUREMENT_KEYS = ("measurement", "meas_real", "meas", "y")
WAVELENGTH_KEYS = ("wavelengths", "wavelength", "bands", "lambda")
_DIVISORS = {"img_expand": 65536.0, "data_slice": 65535.0}

# Centres in nm of the 28 bands of the TSA-Net system, on which the field trains (its readme).
TSA_WAVELENGTHS = (
    453.3, 457.6, 462.1, 466.8, 471.6, 476.5, 481.6, 486.9, 492.4, 498.0, 503.9, 509.9, 516.2, 522.7, 529.5, 536.5,
    543.8, 551.4, 558.6, 567.5, 575.3, 584.3, 594.4, 604.2, 614.4, 625.1, 636.3, 648.1,
)  # fmt: skip


@dataclass(frozen=True)
class Cube:
    """A spectral cube.

    Attributes:
        name: of its file.
        values: `(l, h, w)` float32 in [0, 1].
        wavelengths: of the bands in nm, if the file says.
        scale: how the values were brought to [0, 1].
    """

    name: str
    values: Tensor
    wavelengths: tuple[float, ...] | None = None
    scale: str = "kept"


@dataclass(frozen=True)
class Measurement:
    """A snapshot `(h, w')`; the mask `(h, w)` or `(l, h, w')` and the step, where its file holds them."""

    values: Tensor
    mask: Tensor | None = None
    step: int | None = None


def cube_size(path: Path, key: str | None = None) -> tuple[int, int, int]:
    """`(l, h, w)` of a file's cube, from its header.

    Raises:
        DataError: as `read_cube`.
    """
    if path.suffix.lower() == ".hdr":
        h, w, bands = read_envi(path).values.shape
        return bands, h, w
    shapes, load = open_arrays(path)
    if (flat := _flat(path, shapes, load, key)) is not None:
        return flat[1]
    name = pick(path, shapes, key, CUBE_KEYS, (3,), "a cube")
    shape = shapes[name]
    axis = _band_axis(path, shape)
    h, w = (size for i, size in enumerate(shape) if i != axis)
    return shape[axis], h, w


def read_cube(path: Path, key: str | None = None) -> Cube:
    """Reads a cube from `.mat`, `.npz`, `.npy` or an ENVI `.hdr`.

    Bands come last in the file. In `.npz` and `.npy` they may come first, where that axis is the shortest. A
    matrix of bands by pixels is folded by the numbers `lines` and `cols` beside it, column after column.

    Args:
        path: the file.
        key: name of the array, where the file holds several.

    Raises:
        DataError: a file that cannot be read, no cube in it or several, values that are no numbers.
    """
    path = Path(path)
    wavelengths: tuple[float, ...] | None = None
    if path.suffix.lower() == ".hdr":
        values, wavelengths = read_envi(path)
        name = ""
    else:
        shapes, load = open_arrays(path)
        if (flat := _flat(path, shapes, load, key)) is not None:
            name, (bands, h, w) = flat
            values = np.asarray(load(name)).reshape(bands, h, w, order="F").transpose(1, 2, 0)
        else:
            name = pick(path, shapes, key, CUBE_KEYS, (3,), "a cube")
            values = np.moveaxis(np.asarray(load(name)), _band_axis(path, shapes[name]), -1)
        wavelengths = _wavelengths(shapes, load, values.shape[2])
    scaled, scale = _scaled(path, values, name)
    return Cube(path.stem, torch.from_numpy(scaled.transpose(2, 0, 1).copy()), wavelengths, scale)


def read_mask(path: Path, key: str | None = None) -> Tensor:
    """A coded aperture `(h, w)`, or a dispersed mask `(l, h, w')` from one stored as rows, columns, bands.

    Raises:
        DataError: a file that cannot be read, no mask in it, or values that are negative or no numbers.
    """
    path = Path(path)
    shapes, load = open_arrays(path)
    name = pick(path, shapes, key, MASK_KEYS, (2, 3), "a mask")
    values = np.asarray(load(name), dtype=np.float32)
    if values.ndim == 3:
        values = np.ascontiguousarray(np.moveaxis(values, _band_axis(path, values.shape), 0))
    if not np.isfinite(values).all() or values.min() < 0:
        raise DataError(f"{path}: {name} has negative or non-finite entries; a mask is 0 or more")
    return torch.from_numpy(values.copy())


def read_measurement(path: Path, key: str | None = None) -> Measurement:
    """A snapshot, with the mask and the step that `widefield simulate` writes beside it.

    Raises:
        DataError: a file that cannot be read, no measurement in it, or values that are no numbers.
    """
    path = Path(path)
    shapes, load = open_arrays(path)
    name = pick(path, shapes, key, MEASUREMENT_KEYS, (2,), "a measurement")
    values = np.asarray(load(name), dtype=np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{path}: {name} has entries that are not finite")
    mask = read_mask(path) if any(k in shapes and k != name for k in MASK_KEYS) else None
    step = int(np.asarray(load("step")).reshape(-1)[0]) if "step" in shapes else None
    return Measurement(torch.from_numpy(values.copy()), mask, step)


def write_cube(path: Path, values: Tensor, *, wavelengths: Sequence[float] | None = None) -> None:
    """Writes `(l, h, w)` as rows, columns, bands: `.mat` and `.npz` (`cube`, `wavelengths`), or ENVI `.hdr`.

    Raises:
        DataError: another ending.
    """
    array = np.ascontiguousarray(values.detach().cpu().float().numpy().transpose(1, 2, 0))
    if path.suffix.lower() == ".hdr":
        write_envi(path, array, None if wavelengths is None else tuple(wavelengths))
        return
    arrays = {"cube": array}
    if wavelengths is not None:
        arrays["wavelengths"] = np.asarray(wavelengths, dtype=np.float64)
    _write(path, arrays)


def write_measurement(path: Path, y: Tensor, *, mask: Tensor | None = None, step: int | None = None) -> None:
    """Writes a snapshot `(h, w')`, and its mask and step, as `.npz` or `.mat`.

    Raises:
        DataError: another ending.
    """
    arrays = {"measurement": y.detach().cpu().float().numpy()}
    if mask is not None:
        value = mask.detach().cpu().float().numpy()
        arrays["mask"] = value if value.ndim == 2 else np.ascontiguousarray(value.transpose(1, 2, 0))
    if step is not None:
        arrays["step"] = np.asarray(step)
    _write(path, arrays)


def resample_evenly(values: Tensor, bands: int) -> Tensor:
    """`(l, h, w)` to so many bands, evenly spaced from the first to the last, each between its two neighbours.

    Raises:
        ValueError: fewer than one band.
    """
    if bands < 1:
        raise ValueError(f"bands must be at least 1, got {bands}")
    have = values.shape[0]
    if bands == have:
        return values
    return _between(values, torch.linspace(0, have - 1, bands, dtype=torch.float64))


def resample_wavelengths(values: Tensor, wavelengths: Sequence[float], target: Sequence[float]) -> Tensor:
    """`(l, h, w)` at other wavelengths, each linearly between its two neighbours; the ends are held.

    Raises:
        ValueError: wavelengths that do not rise, or not one for each band.
    """
    if len(wavelengths) != values.shape[0] or any(np.diff(wavelengths) <= 0):
        raise ValueError(f"expected {values.shape[0]} rising wavelengths, got {list(wavelengths)[:5]}...")
    places = np.interp(np.asarray(target, dtype=float), np.asarray(wavelengths), np.arange(len(wavelengths)))
    return _between(values, torch.from_numpy(places))


def _between(values: Tensor, places: Tensor) -> Tensor:
    low = places.floor().long().clamp(max=max(values.shape[0] - 2, 0))
    high = (low + 1).clamp(max=values.shape[0] - 1)
    share = (places - low).to(values.dtype)[:, None, None]
    return values[low] * (1 - share) + values[high] * share


def _flat(path: Path, shapes: Shapes, load: Loader, key: str | None) -> tuple[str, tuple[int, int, int]] | None:
    if not {"lines", "cols"} <= shapes.keys():
        return None
    h, w = (int(np.asarray(load(name)).reshape(-1)[0]) for name in ("lines", "cols"))
    found = [name for name, s in shapes.items() if len(s) == 2 and s[1] == h * w and (key is None or name == key)]
    return (found[0], (shapes[found[0]][0], h, w)) if len(found) == 1 else None


def _band_axis(path: Path, shape: Sequence[int]) -> int:
    first_is_shortest = shape[0] < min(shape[1:])
    return 0 if path.suffix.lower() in (".npy", ".npz") and first_is_shortest else 2


def _wavelengths(shapes: Shapes, load: Loader, bands: int) -> tuple[float, ...] | None:
    for name in WAVELENGTH_KEYS:
        if name in shapes and int(np.prod(shapes[name])) == bands:
            return tuple(float(w) for w in np.asarray(load(name)).reshape(-1))
    return None


def _scaled(path: Path, values: np.ndarray, key: str) -> tuple[np.ndarray, str]:
    found = np.asarray(values, dtype=np.float32)
    if not np.isfinite(found).all():
        raise DataError(f"{path}: the cube has entries that are not finite")
    if key == "HSI":
        return found.clip(0, 1), "clipped to [0, 1]"
    if key in _DIVISORS or (key == "img" and found.max() > 1):
        divisor = _DIVISORS.get(key, 65536.0)
        return (found / np.float32(divisor)).clip(0, 1), f"divided by {divisor:g}"
    low, high = float(found.min()), float(found.max())
    if low >= 0 and high <= 1:
        return found, "kept"
    if high <= 0:
        raise DataError(f"{path}: no entry of the cube is above 0")
    return found.clip(min=0) / np.float32(high), f"divided by {high:g}, their maximum"


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    if path.suffix.lower() == ".npz":
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    elif path.suffix.lower() == ".mat":
        require("scipy.io", "tasks").savemat(buffer, arrays, do_compression=True)
    else:
        raise DataError(f"{path}: write .npz, .mat, or for cubes an ENVI header .hdr")
    write_bytes(path, buffer.getvalue())
