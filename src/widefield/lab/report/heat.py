# SPDX-License-Identifier: Apache-2.0
"""Matrices as pictures: sequences of bits, weightings over a memory, the memory itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from widefield.core.extras import require

# Viridis at nine places.
_STOPS = np.array([
    (68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
    (170, 220, 50), (253, 231, 37),
], dtype=np.float64)  # fmt: skip
WIDE, TALL = 640, 260


def colours(values: np.ndarray) -> np.ndarray:
    """`(h, w)` to `(h, w, 3)` bytes, from the smallest to the largest value."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    share = np.nan_to_num((values - low) / (high - low) if high > low else np.zeros_like(values))
    places = np.linspace(0, 1, len(_STOPS))
    return np.stack([np.interp(share, places, _STOPS[:, c]) for c in range(3)], -1).round().astype(np.uint8)


def heat_map(values: np.ndarray) -> str:
    """A PNG as base64; cells are whole pixels, at most 640 x 260 where the matrix allows it."""
    image = require("PIL.Image", "tasks")
    height, width = values.shape
    scale = max(1, min(12, WIDE // width, TALL // height))
    picture = image.fromarray(np.repeat(np.repeat(colours(values), scale, 0), scale, 1))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def example_pictures(path: Path, sigmoid: bool) -> list[tuple[str, str]]:
    """Title and picture of what a record keeps of one sequence; none where it cannot be read.

    Args:
        path: evidence.npz.
        sigmoid: the outputs are logits of bits.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError):
        return []
    return list(_pictures(found, sigmoid).items())


def _pictures(found: Mapping[str, np.ndarray], sigmoid: bool) -> dict[str, str]:
    pictures: dict[str, str] = {}
    if sigmoid and found["y"].ndim == 2:
        said = 1 / (1 + np.exp(-np.clip(found["output"], -50, 50)))
        said = said * found["counts"][:, None] if "counts" in found else said
        pictures["given (steps to the right)"] = heat_map(found["x"].T)
        pictures["to be said"] = heat_map(found["y"].T)
        pictures["said"] = heat_map(said.T)
    if "read" in found:
        pictures["weights of the read head (places down, steps to the right)"] = heat_map(found["read"].T)
        pictures["weights of the write head"] = heat_map(found["write"].T)
        pictures["memory after the last step (places to the right)"] = heat_map(found["memory"].T)
    return pictures
