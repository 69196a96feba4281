# SPDX-License-Identifier: Apache-2.0
"""Large scenes in strips of rows, in bounded memory.

A sensor row sees one row of the scene, so a strip of rows is a whole problem of its own; a tile cut out of the
columns is not, since dispersion carries light of its neighbours into it. Strips overlap, and are faded into each
other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Reconstructor = Callable[[Tensor, Tensor], Tensor]


def strips(height: int, rows: int, overlap: int) -> list[tuple[int, int]]:
    """Bounds of the strips: all of one height, the first at the top, the last at the bottom.

    Raises:
        ValueError: strips that do not advance.
    """
    if rows < 1 or not 0 <= overlap < rows:
        raise ValueError(
            f"strips need rows of at least 1 and an overlap below that, got rows {rows} and overlap {overlap}"
        )
    if height <= rows:
        return [(0, height)]
    count = -(-(height - overlap) // (rows - overlap))
    starts = [round(i * (height - rows) / (count - 1)) for i in range(count)]
    return [(start, start + rows) for start in starts]


def in_strips(
    reconstruct: Reconstructor,
    y: Tensor,
    phi: Tensor,
    *,
    rows: int = 256,
    overlap: int = 32,
    told: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Reconstructs strip by strip.

    Args:
        reconstruct: `(b, r, w')` measurement and `(.., l, r, w')` mask to `(b, l, r, w)`.
        y: measurement `(b, h, w')`.
        phi: dispersed mask `(l, h, w')` or `(b, l, h, w')`.
        rows: of a strip.
        overlap: rows that neighbouring strips share at least; there the two are mixed linearly.
        told: given the strips done and their number.

    Returns:
        `(b, l, h, w)`.

    Raises:
        ValueError: strips that do not advance.
    """
    height = y.shape[1]
    bounds = strips(height, rows, overlap)
    total: Tensor | None = None
    weights = y.new_zeros(height)
    for number, (top, bottom) in enumerate(bounds):
        part = reconstruct(y[:, top:bottom], phi[..., top:bottom, :])
        fade = _fade(bottom - top, overlap if len(bounds) > 1 else 0, y)
        if total is None:
            total = part.new_zeros(*part.shape[:2], height, part.shape[3])
        total[:, :, top:bottom] += part * fade[:, None]
        weights[top:bottom] += fade
        if told:
            told(number + 1, len(bounds))
    assert total is not None
    return total / weights[:, None]


def _fade(rows: int, overlap: int, like: Tensor) -> Tensor:
    """1 inside, falling linearly over the overlap at both ends, never 0."""
    ramp = torch.arange(1, rows + 1, dtype=like.dtype, device=like.device) / (overlap + 1)
    return torch.minimum(ramp, ramp.flip(0)).clamp(max=1)
