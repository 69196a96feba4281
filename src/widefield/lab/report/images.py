# SPDX-License-Identifier: Apache-2.0
"""Arrays as pictures inside the page: photographs, label maps in their palette, heat maps."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np

from widefield.core.extras import require
from widefield.data.base import voc_palette

from .evidence import IGNORE

_LARGEST_PHOTO, _LARGEST_MAP = 560, 320
# Below this a picture is shown pixel by pixel and must stay exact.
_EXACT = 128
_JPEG_QUALITY = 82
_GREY = 128
# The anchors of matplotlib's inferno (CC0), for values from 0 to the largest.
HEAT = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))
# For maps with negative values: blue below zero, the upper half as above.
_SIGNED = ((150, 220, 255), (40, 110, 200), (0, 0, 4), (188, 55, 84), (252, 255, 164))


def _uri(picture, form: str, **options: object) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def photo(image: np.ndarray) -> str:
    """A picture `(h, w, 3)` uint8 as a data URI: a small one exactly, a large one reduced and as JPEG."""
    picture = require("PIL.Image", "lab").fromarray(np.ascontiguousarray(image))
    if max(picture.size) <= _EXACT:
        return _uri(picture, "PNG", optimize=True)
    picture.thumbnail((_LARGEST_PHOTO, _LARGEST_PHOTO))
    return _uri(picture, "JPEG", quality=_JPEG_QUALITY, optimize=True)


def label_map(labels: np.ndarray, palette: Sequence[Sequence[int]], *, ignored: np.ndarray | None = None) -> str:
    """Labels `(h, w)` uint8 in the colours of their classes; 255, and where `ignored`, is transparent."""
    shown = labels if ignored is None else np.where(ignored, IGNORE, labels)
    stride = max(-(-max(shown.shape) // _LARGEST_MAP), 1)
    colours = [*palette[:IGNORE], *voc_palette(IGNORE)[len(palette) :], (_GREY, _GREY, _GREY)]
    return _indexed(shown[::stride, ::stride], np.asarray(colours, dtype=np.uint8), {IGNORE: 0})


def heat_map(values: np.ndarray, *, opacity: float = 1.0) -> str:
    """A map `(h, w)` scaled by its largest absolute value: dark is nothing, bright is the most.

    Negative values, where there are any that can be seen, are blue. An all-zero map is dark.
    """
    largest = float(np.abs(values).max(initial=0.0))
    scaled = values / largest if largest > 0 else np.zeros_like(values)
    signed = bool(scaled.min(initial=0.0) < -1e-2)
    indices = 127.5 * (scaled + 1) if signed else 255 * scaled.clip(0, 1)
    colours = ramp(_SIGNED if signed else HEAT)
    alpha = round(255 * opacity)
    return _indexed(np.rint(indices).astype(np.uint8), colours, dict.fromkeys(range(256), alpha))


def ramp(anchors: Sequence[Sequence[int]]) -> np.ndarray:
    """(256, 3) uint8: colours between anchors at equal distances."""
    places = np.linspace(0, 255, len(anchors))
    channels = np.asarray(anchors, dtype=np.float64).T
    return np.stack([np.rint(np.interp(np.arange(256), places, c)) for c in channels], axis=1).astype(np.uint8)


def _indexed(indices: np.ndarray, colours: np.ndarray, alpha: dict[int, int]) -> str:
    """A PNG with a palette of 256 colours; entries of the palette are opaque unless `alpha` says otherwise."""
    picture = require("PIL.Image", "lab").fromarray(np.ascontiguousarray(indices, dtype=np.uint8)).convert("L")
    picture.putpalette(colours.tobytes())
    transparency = bytes(alpha.get(index, 255) for index in range(256))
    return _uri(picture, "PNG", optimize=False, transparency=transparency, bits=8)
