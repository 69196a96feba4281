# SPDX-License-Identifier: Apache-2.0
"""ENVI: a text header `.hdr` beside a file of raw numbers, in any interleave, type and byte order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from widefield.core.files import write_bytes, write_text
from widefield.data.images import DataError

TYPES = {
    1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip
# Order of the axes in the file, and how to get from there to rows, columns, bands.
INTERLEAVES = {"bsq": ("bands lines samples", (1, 2, 0)), "bil": ("lines bands samples", (0, 2, 1)),
               "bip": ("lines samples bands", (0, 1, 2))}  # fmt: skip
DATA_ENDINGS = ("", ".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip")


class EnviFile(NamedTuple):
    """`values` `(rows, columns, bands)`, mapped from the file; wavelengths in nm, if the header has them."""

    values: np.ndarray
    wavelengths: tuple[float, ...] | None


def read_envi(header: Path) -> EnviFile:
    """Reads a header and maps its data.

    Raises:
        DataError: a header that is none, or data that is missing or too short.
    """
    fields = read_header(header)

    def number(name: str, default: int | None = None) -> int:
        text = fields.get(name, None if default is None else str(default))
        try:
            return int(text)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise DataError(f"{header}: the header needs a whole number for {name!r}, it says {text!r}") from error

    sizes = {name: number(name) for name in ("lines", "samples", "bands")}
    if min(sizes.values()) < 1:
        raise DataError(f"{header}: lines, samples and bands must be at least 1, got {sizes}")
    kind = number("data type")
    if kind not in TYPES:
        raise DataError(f"{header}: data type {kind} is not one of {', '.join(map(str, TYPES))} (real numbers)")
    interleave = fields.get("interleave", "bsq").lower()
    if interleave not in INTERLEAVES:
        raise DataError(f"{header}: interleave {interleave!r} is not one of {', '.join(INTERLEAVES)}")
    dtype = np.dtype((">" if number("byte order", 0) else "<") + TYPES[kind])
    order, back = INTERLEAVES[interleave]
    shape = tuple(sizes[name] for name in order.split())
    data = _data_file(header)
    offset = number("header offset", 0)
    wanted = offset + dtype.itemsize * int(np.prod(shape))
    if data.stat().st_size < wanted:
        raise DataError(f"{data}: {data.stat().st_size} bytes, {header.name} promises {wanted}")
    values = np.memmap(data, dtype=dtype, mode="r", offset=offset, shape=shape)
    return EnviFile(values.transpose(back), _wavelengths(fields, header))


def read_header(path: Path) -> dict[str, str]:
    """The fields of a header, names in lower case; lists keep their text without braces.

    Raises:
        DataError: not an ENVI header.
    """
    try:
        text = path.read_text(encoding="latin-1")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    if not text.lstrip().startswith("ENVI"):
        raise DataError(f"{path}: not an ENVI header (its first word is not ENVI)")
    found = re.findall(r"^[ \t]*([^=;\n{}]+?)[ \t]*=[ \t]*(\{[^}]*\}|[^\n]*)", text, flags=re.MULTILINE)
    return {name.lower(): value.strip().strip("{}").strip() for name, value in found}


def write_envi(header: Path, values: np.ndarray, wavelengths: tuple[float, ...] | None = None) -> None:
    """Writes `(rows, columns, bands)` as little-endian float32, band after band; the header last."""
    rows, columns, bands = values.shape
    data = header.with_suffix(".img")
    write_bytes(data, np.ascontiguousarray(values.transpose(2, 0, 1), dtype="<f4").tobytes())
    lines = [
        "ENVI", "file type = ENVI Standard", f"samples = {columns}", f"lines = {rows}", f"bands = {bands}",
        "header offset = 0", "data type = 4", "interleave = bsq", "byte order = 0",
    ]  # fmt: skip
    if wavelengths is not None:
        lines += ["wavelength units = Nanometers", f"wavelength = {{{', '.join(f'{w:g}' for w in wavelengths)}}}"]
    write_text(header, "\n".join(lines) + "\n")


def _data_file(header: Path) -> Path:
    stem = header.with_suffix("")
    for ending in DATA_ENDINGS:
        for path in (Path(f"{stem}{ending}"), Path(f"{stem}{ending.upper()}")):
            if path != header and path.is_file():
                return path
    raise DataError(f"{header}: no data beside it; looked for {stem.name} with {', '.join(DATA_ENDINGS[1:])}")


def _wavelengths(fields: dict[str, str], header: Path) -> tuple[float, ...] | None:
    text = fields.get("wavelength")
    if not text:
        return None
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise DataError(f"{header}: the wavelengths are no numbers ({error})") from error
    if len(found) != int(fields["bands"]):
        raise DataError(f"{header}: {len(found)} wavelengths for {fields['bands']} bands")
    micro = fields.get("wavelength units", "").lower().startswith(("micro", "um"))
    return tuple(1000 * w for w in found) if micro or max(found) < 30 else found
