# SPDX-License-Identifier: Apache-2.0
"""Moving the bands of a spectral cube apart and together again, as a prism does.

Two frames: a cube `(b, l, h, w)`, and the same cube dispersed, `(b, l, h, w')` with band c moved right by
`step * c` columns on a canvas of `w' = w + (l - 1) step`. A measurement `(b, h, w')` lies in the dispersed frame.
With a step of 0 the frames are one: snapshot video.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def dispersed_width(width: int, bands: int, step: int) -> int:
    """`w' = w + (l - 1) step`: columns that a scene of `width` columns takes on the sensor."""
    return width + (bands - 1) * step


def scene_width(measured: int, bands: int, step: int) -> int:
    """The inverse of `dispersed_width`.

    Raises:
        ValueError: so many bands do not fit on a sensor of `measured` columns.
    """
    width = measured - (bands - 1) * step
    if width < 1:
        raise ValueError(
            f"{bands} bands at a step of {step} take {(bands - 1) * step} columns beside the scene's own; the "
            f"measurement has {measured}"
        )
    return width


def disperse(cube: Tensor, step: int) -> Tensor:
    """`(b, l, h, w)` to `(b, l, h, w')`, zero outside the band."""
    bands, width = cube.shape[-3], cube.shape[-1]
    canvas = dispersed_width(width, bands, step)
    # Rows of w' + step, read again as rows of w': each band starts `step` columns later than the one before.
    rows = F.pad(cube.transpose(-3, -2), (0, canvas + step - width)).flatten(-2)
    return rows[..., : bands * canvas].unflatten(-1, (bands, canvas)).transpose(-3, -2)


def undisperse(dispersed: Tensor, step: int) -> Tensor:
    """`(b, l, h, w')` to `(b, l, h, w)`: the columns that band c occupies. The adjoint of `disperse`."""
    bands, canvas = dispersed.shape[-3], dispersed.shape[-1]
    width = scene_width(canvas, bands, step)
    rows = F.pad(dispersed.transpose(-3, -2).flatten(-2), (0, bands * step))
    return rows.unflatten(-1, (bands, canvas + step))[..., :width].transpose(-3, -2)


def shift_back(measurement: Tensor, bands: int, step: int) -> Tensor:
    """`(b, h, w')` to `(b, l, h, w)`: every band gets the columns it could have come from. A view."""
    width = scene_width(measurement.shape[-1], bands, step)
    if step == 0:
        return measurement.unsqueeze(-3).expand(*measurement.shape[:-2], bands, *measurement.shape[-2:])
    return measurement.unfold(-1, width, step).transpose(-3, -2)


def roll_forward(x: Tensor, step: int) -> Tensor:
    """`(b, l, h, w')`, band c rolled right by `step * c` columns; what leaves comes in on the left."""
    return _roll(x, -step)


def roll_back(x: Tensor, step: int) -> Tensor:
    """`(b, l, h, w')`, band c rolled left by `step * c` columns. The inverse and the adjoint of `roll_forward`."""
    return _roll(x, step)


def _roll(x: Tensor, step: int) -> Tensor:
    bands, canvas = x.shape[-3], x.shape[-1]
    columns = torch.arange(canvas, device=x.device) + step * torch.arange(bands, device=x.device)[:, None]
    return x.gather(-1, (columns % canvas)[:, None].expand(x.shape))
