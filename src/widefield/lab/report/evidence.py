# SPDX-License-Identifier: Apache-2.0
"""Reading evidence files: what a trained module does to example pictures and to the singular values."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from widefield.measure.spectrum import cumulative_energy, effective_rank

IGNORE = 255


class EvidenceError(ValueError):
    """An evidence file that cannot be used; the message says why."""


@dataclass(frozen=True)
class Example:
    """One picture and what a module makes of it.

    Attributes:
        image: (h, w, 3) uint8.
        label, prediction: (h, w) uint8, one size; 255 is not counted.
        pixel: row and column of the chosen position on the feature map.
        sees: (h, w) non-negative, how strongly the output at `pixel` depends on every position.
        attention: (h, w), the weights that `pixel` gives every position.
        codes: (r, h, w), coefficient maps.
    """

    image: np.ndarray
    label: np.ndarray
    prediction: np.ndarray
    pixel: tuple[int, int] | None
    sees: np.ndarray | None
    attention: np.ndarray | None
    codes: np.ndarray | None

    @property
    def right(self) -> float | None:
        """Share of the labelled pixels that are predicted right."""
        counted = self.label != IGNORE
        return float((self.prediction == self.label)[counted].mean()) if counted.any() else None

    @property
    def from_elsewhere(self) -> float | None:
        """Share of what the chosen position depends on that lies outside of it."""
        if self.sees is None or self.pixel is None or not self.sees.sum() > 0:
            return None
        return float(1 - self.sees[self.pixel] / self.sees.sum())


@dataclass(frozen=True)
class Evidence:
    """All of one file.

    Attributes:
        before, after: cumulative share of the energy in the first 1, 2, ... singular values.
        rank_before, rank_after: effective ranks.
    """

    examples: tuple[Example, ...]
    before: np.ndarray | None
    after: np.ndarray | None
    rank_before: float | None
    rank_after: float | None


def read_evidence(folder: Path, relative: str) -> Evidence:
    """Reads `folder / relative`.

    Raises:
        EvidenceError: the file is missing, damaged, outside of the folder, or holds arrays of other shapes.
    """
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise EvidenceError("lies outside of the folder of the report")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise EvidenceError("no such file") from error
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise EvidenceError(f"damaged ({type(error).__name__}: {error})") from error
    before, rank_before = _spectrum(arrays, "before")
    after, rank_after = _spectrum(arrays, "after")
    examples = tuple(_example(arrays, index) for index in range(_count(arrays)))
    return Evidence(examples, before, after, rank_before, rank_after)


def _count(arrays: Mapping[str, np.ndarray]) -> int:
    if "images" in arrays:
        return len(arrays["images"])
    index = 0
    while f"images_{index}" in arrays:
        index += 1
    return index


def _item(arrays: Mapping[str, np.ndarray], name: str, index: int) -> np.ndarray | None:
    """Entry `index` of an array that is stacked, or stored one by one because the pictures differ in size."""
    if f"{name}_{index}" in arrays:
        return arrays[f"{name}_{index}"]
    stacked = arrays.get(name)
    if stacked is None or stacked.ndim == 0 or index >= len(stacked):
        return None
    return stacked[index]


def _example(arrays: Mapping[str, np.ndarray], index: int) -> Example:
    image, label, prediction = (_item(arrays, name, index) for name in ("images", "labels", "predictions"))
    if image is None or image.ndim != 3 or image.shape[0] != 3 or image.dtype != np.uint8:
        raise EvidenceError(f"image {index} must be (3, h, w) uint8, got {_shape(image)}")
    if label is None or prediction is None or label.ndim != 2 or label.shape != prediction.shape:
        raise EvidenceError(
            f"label and prediction {index} must be (h, w), both alike, "
            f"got {_shape(label)} and {_shape(prediction)}"
        )
    if 0 in (*image.shape, *label.shape):
        raise EvidenceError(f"image or label {index} is empty")
    sees, attention = _map(arrays, "sees", index, 2), _map(arrays, "attention", index, 2)
    codes = _map(arrays, "codes", index, 3)
    pixel = _item(arrays, "pixel", index)
    place = None
    if pixel is not None and sees is not None:
        if pixel.shape != (2,) or not all(0 <= p < size for p, size in zip(pixel, sees.shape, strict=True)):
            raise EvidenceError(f"pixel {index} must be a row and a column of a {sees.shape} map, got {pixel}")
        place = (int(pixel[0]), int(pixel[1]))
    return Example(image.transpose(1, 2, 0), _bytes(label), _bytes(prediction), place, sees, attention, codes)


def _map(arrays: Mapping[str, np.ndarray], name: str, index: int, dims: int) -> np.ndarray | None:
    value = _item(arrays, name, index)
    if value is None or value.size == 0:
        return None
    if value.ndim != dims or value.dtype.kind not in "fiu":
        raise EvidenceError(f"{name} {index} must be numbers of {dims} dimensions, got {_shape(value)}")
    return np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _spectrum(arrays: Mapping[str, np.ndarray], side: str) -> tuple[np.ndarray | None, float | None]:
    """Cumulative energy and effective rank of the stored singular values."""
    values = arrays.get(f"spectrum_{side}")
    if values is None or values.ndim != 1 or values.dtype.kind != "f" or not len(values):
        return None, None
    singular = torch.from_numpy(-np.sort(-np.maximum(np.nan_to_num(values.astype(np.float64)), 0)))
    stored = arrays.get(f"effective_rank_{side}")
    if stored is not None and stored.size == 1 and stored.dtype.kind == "f" and np.isfinite(stored).all():
        rank = float(stored.reshape(()))
    else:
        rank = float(effective_rank(singular))
    return cumulative_energy(singular).numpy(), rank


def _bytes(labels: np.ndarray) -> np.ndarray:
    return np.where((labels >= 0) & (labels < IGNORE), labels, IGNORE).astype(np.uint8)


def _shape(value: np.ndarray | None) -> str:
    return "nothing" if value is None else f"{value.shape} {value.dtype}"
