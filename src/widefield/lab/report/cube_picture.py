# SPDX-License-Identifier: Apache-2.0
"""One picture of a reconstructed cube: in colour, chosen bands side by side, spectra at chosen points.

Colour from wavelengths: the CIE 1931 matching functions in the closed form of Wyman, Sloan and Shirley, Journal of
Computer Graphics Techniques 2013, to sRGB. Without wavelengths in the visible, three bands stand for red, green,
blue.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from widefield.core.extras import require
from widefield.core.files import write_bytes

TILE = 220  # edge of a tile in pixels
GAP, LABEL = 10, 18
VISIBLE = (380.0, 780.0)
INK, PAPER, RULE = (34, 37, 43), (255, 255, 255), (220, 218, 213)
POINT_COLOURS = ((42, 93, 176), (180, 84, 10), (27, 127, 121), (163, 38, 31))
_XYZ_TO_RGB = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])
# Height, centre, widths below and above in nm of the lobes.
_LOBES = (
    ((1.056, 599.8, 37.9, 31.0), (0.362, 442.0, 16.0, 26.7), (-0.065, 501.1, 20.4, 26.2)),
    ((0.821, 568.8, 46.9, 40.5), (0.286, 530.9, 16.3, 31.1)),
    ((1.217, 437.0, 11.8, 36.0), (0.681, 459.0, 26.0, 13.8)),
)


def write_picture(
    path: Path,
    estimate: Tensor | np.ndarray,
    *,
    truth: Tensor | np.ndarray | None = None,
    wavelengths: Sequence[float] | None = None,
    bands: Sequence[int] | None = None,
    points: Sequence[tuple[int, int]] | None = None,
    title: str = "",
) -> None:
    """Writes `draw_cube` as a PNG, whole or not at all."""
    buffer = io.BytesIO()
    picture = draw_cube(estimate, truth=truth, wavelengths=wavelengths, bands=bands, points=points, title=title)
    picture.save(buffer, "PNG")
    write_bytes(Path(path), buffer.getvalue())


def draw_cube(
    estimate: Tensor | np.ndarray,
    *,
    truth: Tensor | np.ndarray | None = None,
    wavelengths: Sequence[float] | None = None,
    bands: Sequence[int] | None = None,
    points: Sequence[tuple[int, int]] | None = None,
    title: str = "",
) -> Any:
    """A PIL picture: the cube in colour and in bands, the truth below it, and spectra to the right.

    Args:
        estimate: `(l, h, w)`, 1 is white.
        truth: of the same shape.
        wavelengths: of the bands in nm.
        bands: which ones to show (None: four, evenly spaced).
        points: rows and columns of the spectra (None: three, where the brightness is low, medium and high).
        title: above it.

    Raises:
        ValueError: shapes that differ, or bands or points outside the cube.
    """
    image, draw_module = require("PIL.Image", "tasks"), require("PIL.ImageDraw", "tasks")
    cubes = [("reconstruction", _array(estimate))]
    if truth is not None:
        cubes.append(("truth", _array(truth)))
        if cubes[1][1].shape != cubes[0][1].shape:
            raise ValueError(f"the truth is {cubes[1][1].shape}, the reconstruction {cubes[0][1].shape}")
    reference = cubes[-1][1]
    count, height, width = reference.shape
    bands = [round(i * (count - 1) / 3) for i in range(min(4, count))] if bands is None else list(bands)
    points = typical_points(reference) if points is None else list(points)
    if any(not 0 <= b < count for b in bands) or any(not (0 <= r < height and 0 <= c < width) for r, c in points):
        raise ValueError(f"bands and points must lie in the cube {reference.shape}, got {bands} and {points}")
    # One exposure for all, that of the truth, so that a wrong brightness shows.
    white = max(float(np.quantile(reference, 0.995)), 1e-6)
    colour_white = max(float(np.quantile(in_colour(reference, wavelengths), 0.99)), 1e-6)
    size = (max(1, round(TILE * width / max(height, width))), max(1, round(TILE * height / max(height, width))))
    columns, head = 1 + len(bands), LABEL if title else 0
    row_height = size[1] + LABEL + GAP
    plot_width = 330
    sheet = image.new(
        "RGB",
        (columns * (size[0] + GAP) + plot_width + 2 * GAP, head + max(row_height * len(cubes), 200) + GAP),
        PAPER,
    )
    draw = draw_module.Draw(sheet)
    if title:
        draw.text((GAP, 3), title, INK)
    for row, (name, cube) in enumerate(cubes):
        top = head + GAP + row * row_height
        colour = np.clip(in_colour(cube, wavelengths) / colour_white, 0, 1)
        tiles = [(f"{name}, in colour" if _visible(wavelengths) else f"{name}, false colour", _srgb(colour))]
        tiles += [(_band_name(b, wavelengths), np.repeat(_gray(cube[b] / white), 3, -1)) for b in bands]
        for column, (label, pixels) in enumerate(tiles):
            left = GAP + column * (size[0] + GAP)
            draw.text((left, top), label, INK)
            tile = image.fromarray(pixels).resize(size, image.NEAREST)
            sheet.paste(tile, (left, top + LABEL))
            if column == 0:
                for (r, c), ink in zip(points, _colours(len(points)), strict=True):
                    x, y = left + (c + 0.5) * size[0] / width, top + LABEL + (r + 0.5) * size[1] / height
                    draw.ellipse((x - 5, y - 5, x + 5, y + 5), outline=PAPER, width=4)
                    draw.ellipse((x - 4, y - 4, x + 4, y + 4), outline=ink, width=2)
    box = (
        GAP + columns * (size[0] + GAP) + 34,
        head + GAP + LABEL,
        sheet.width - GAP,
        sheet.height - 2 * GAP - LABEL,
    )
    _spectra(draw, box, cubes, points, wavelengths)
    return sheet


def in_colour(cube: np.ndarray, wavelengths: Sequence[float] | None) -> np.ndarray:
    """`(l, h, w)` to linear `(h, w, 3)`, 0 or more."""
    count = cube.shape[0]
    if not _visible(wavelengths):
        red, green, blue = (cube[round(share * (count - 1))] for share in (0.75, 0.5, 0.25))
        return np.clip(np.stack([red, green, blue], -1), 0, None)
    weights = matching_functions(np.asarray(wavelengths, dtype=np.float64)) * np.gradient(np.asarray(wavelengths))
    xyz = np.einsum("cl,lhw->hwc", weights / weights[1].sum(), cube.astype(np.float64))
    return np.clip(xyz @ _XYZ_TO_RGB.T, 0, None)


def matching_functions(wavelengths: np.ndarray) -> np.ndarray:
    """CIE 1931 x, y, z at wavelengths in nm: `(3, l)`."""

    def lobe(height: float, centre: float, below: float, above: float) -> np.ndarray:
        spread = np.where(wavelengths < centre, below, above)
        return height * np.exp(-0.5 * ((wavelengths - centre) / spread) ** 2)

    return np.stack([sum(lobe(*parts) for parts in lobes) for lobes in _LOBES])


def typical_points(cube: np.ndarray) -> list[tuple[int, int]]:
    """Pixels of low, medium and high brightness (the quantiles 0.1, 0.5 and 0.9), the nearest to the middle."""
    brightness = cube.mean(0)
    h, w = brightness.shape
    rows, columns = np.mgrid[:h, :w]
    away = ((rows - h / 2) / h) ** 2 + ((columns - w / 2) / w) ** 2
    spread = float(np.ptp(brightness)) or 1.0
    found = []
    for share in (0.1, 0.5, 0.9):
        miss = np.abs(brightness - np.quantile(brightness, share)) / spread
        place = int(np.argmin(miss + 0.05 * away))
        found.append((place // w, place % w))
    return list(dict.fromkeys(found))


def _spectra(
    draw: Any,
    box: tuple[int, int, int, int],
    cubes: list[tuple[str, np.ndarray]],
    points: Sequence[tuple[int, int]],
    wavelengths: Sequence[float] | None,
) -> None:
    left, top, right, bottom = box
    x = np.arange(cubes[0][1].shape[0]) if wavelengths is None else np.asarray(wavelengths)
    high = max(float(cube[:, r, c].max()) for _, cube in cubes for r, c in points)
    high = max(high * 1.05, 1e-6)
    draw.text((left, top - LABEL), "spectra" + (": solid found, dotted true" if len(cubes) > 1 else ""), INK)
    draw.rectangle(box, outline=RULE)
    span = max(float(x[-1] - x[0]), 1e-9)

    def place(band: int, value: float) -> tuple[float, float]:
        share = (x[band] - x[0]) / span
        return left + share * (right - left), bottom - min(max(value / high, 0), 1) * (bottom - top)

    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - top)
        draw.line((left - 4, y, left, y), fill=INK)
        draw.text((left - 36, y - 6), f"{share * high:.2g}", INK)
    unit = "band" if wavelengths is None else "nm"
    for band in (0, len(x) // 2, len(x) - 1):
        draw.text((min(place(band, 0)[0], right - 24), bottom + 3), f"{x[band]:.0f}", INK)
    draw.text(((left + right) / 2 + 24, bottom + 3), unit, INK)
    for (r, c), ink in zip(points, _colours(len(points)), strict=True):
        for which, (_, cube) in enumerate(cubes):
            corners = [place(b, float(cube[b, r, c])) for b in range(len(x))]
            if which == 0:
                draw.line(corners, fill=ink, width=2)
            else:
                for a, b in corners:
                    draw.ellipse((a - 2, b - 2, a + 2, b + 2), fill=ink)


def _array(cube: Tensor | np.ndarray) -> np.ndarray:
    array = cube.detach().cpu().float().numpy() if isinstance(cube, Tensor) else np.asarray(cube, dtype=np.float32)
    if array.ndim != 3:
        raise ValueError(f"expected a cube (l, h, w), got {array.shape}")
    return np.nan_to_num(array, nan=0.0, posinf=1.0, neginf=0.0)


def _visible(wavelengths: Sequence[float] | None) -> bool:
    if wavelengths is None:
        return False
    inside = [VISIBLE[0] <= w <= VISIBLE[1] for w in wavelengths]
    return sum(inside) >= 3 and sum(inside) * 2 >= len(inside)


def _band_name(band: int, wavelengths: Sequence[float] | None) -> str:
    return f"band {band + 1}" if wavelengths is None else f"{wavelengths[band]:.0f} nm"


def _gray(x: np.ndarray) -> np.ndarray:
    return (255 * np.clip(x, 0, 1) + 0.5).astype(np.uint8)[..., None]


def _srgb(linear: np.ndarray) -> np.ndarray:
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * np.maximum(linear, 1e-9) ** (1 / 2.4) - 0.055)
    return (255 * np.clip(curved, 0, 1) + 0.5).astype(np.uint8)


def _colours(count: int) -> list[tuple[int, int, int]]:
    return [POINT_COLOURS[i % len(POINT_COLOURS)] for i in range(count)]
