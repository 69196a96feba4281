# SPDX-License-Identifier: Apache-2.0
"""The snapshot operator as one object: coded apertures, the dispersion between bands, and all that follows.

One band (or video frame) c is coded by its mask, moved right by `step * c` columns, and all are summed on the
sensor. CASSI (one aperture for all bands, a step) and CACTI (a mask a frame, no step) are two constructors of one
class.

Papers  CASSI: Single disperser design for coded aperture snapshot spectral imaging, Applied Optics 2008.
        CACTI: Coded aperture compressive temporal imaging, Optics Express 2013.
*differs*: the toolboxes hand around a ready-made `mask_3d_shift` file beside the plain mask, which is not the
plain mask shifted: it holds other values outside the columns that a band occupies. Here Phi is derived from the
mask; `Snapshot.measured` takes such a file as it is for networks that were trained with it, and its `forward` and
`adjoint` use only what a scene can reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from widefield.core.errors import require_positive
from widefield.imaging.dispersion import disperse, scene_width, undisperse
from widefield.imaging.sensing import backproject, dispersed_mask, energy, first_estimate, measure


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A linear operator from a cube `(b, l, h, w)` to a snapshot `(b, h, w')`, `w' = w + (l - 1) step`.

    Build it with `cassi`, `measured` or `video`; it never changes, and `to` gives a copy elsewhere.

    Attributes:
        phi: the dispersed mask `(l, h, w')`, or `(b, l, h, w')` with one code for each sample.
        step: columns between neighbouring bands on the sensor; 0 for video.

    Raises:
        ValueError: a mask of another shape, with negative entries, or with entries that are not finite; a step or
            a number of bands out of range.
    """

    phi: Tensor
    step: int

    def __post_init__(self) -> None:
        _require_step(self.step)
        if self.phi.dim() not in (3, 4):
            raise ValueError(f"a dispersed mask is (l, h, w') or (b, l, h, w'), got {tuple(self.phi.shape)}")
        scene_width(self.phi.shape[-1], self.phi.shape[-3], self.step)

    @classmethod
    def cassi(cls, mask: Tensor, bands: int = 28, step: int = 2) -> Snapshot:
        """One plain aperture for all bands: `(h, w)`, or `(b, h, w)` with one for each sample."""
        require_positive("Snapshot.cassi", bands=bands)
        _require_step(step)
        mask = _checked(mask, "(h, w) or (b, h, w)", (2, 3))
        return cls(dispersed_mask(mask, bands, step), step)

    @classmethod
    def measured(cls, phi: Tensor, step: int = 2) -> Snapshot:
        """A dispersed mask as it was measured, `(l, h, w')` or `(b, l, h, w')`, such as `mask_3d_shift.mat`."""
        return cls(_checked(phi, "(l, h, w') or (b, l, h, w')", (3, 4)), step)

    @classmethod
    def video(cls, masks: Tensor) -> Snapshot:
        """One mask a frame and no dispersion: `(t, h, w)`, or `(b, t, h, w)` with a set for each sample."""
        return cls(_checked(masks, "(t, h, w) or (b, t, h, w)", (3, 4)), 0)

    def to(self, *args: Any, **kwargs: Any) -> Snapshot:
        """The same operator on another device or in another floating-point type; arguments as of `Tensor.to`."""
        return type(self)(self.phi.to(*args, **kwargs), self.step)

    @property
    def bands(self) -> int:
        """l: bands of the cube, or frames of the video."""
        return self.phi.shape[-3]

    @property
    def scene(self) -> tuple[int, int]:
        """`(h, w)` of the cube."""
        return self.phi.shape[-2], scene_width(self.phi.shape[-1], self.bands, self.step)

    @property
    def sensor(self) -> tuple[int, int]:
        """`(h, w')` of the snapshot."""
        return self.phi.shape[-2], self.phi.shape[-1]

    @cached_property
    def mask(self) -> Tensor:
        """Phi back in the frame of the cube, `(l, h, w)` or `(b, l, h, w)`: what each band is multiplied by."""
        return undisperse(self.phi, self.step)

    @cached_property
    def energy(self) -> Tensor:
        """The diagonal of `Phi Phi^T`, 1 where no light passes: `(h, w')` or `(b, h, w')`. The papers' Phi_s."""
        return energy(self.phi)

    def forward(self, cube: Tensor) -> Tensor:
        """`A x`: `(b, l, h, w)` to `(b, h, w')`.

        Raises:
            ValueError: a cube of another shape.
        """
        h, w = self.scene
        self._check(cube, (self.bands, h, w), "a cube")
        return measure(disperse(cube, self.step), self.phi)

    def adjoint(self, y: Tensor) -> Tensor:
        """`A^T y`: `(b, h, w')` to `(b, l, h, w)`, in the frame of the cube.

        Raises:
            ValueError: a measurement of another shape.
        """
        self._check(y, self.sensor, "a measurement")
        return undisperse(backproject(y, self.phi), self.step)

    def first_estimate(self, y: Tensor) -> Tensor:
        """`H`: the measurement shifted back, times 2 / l. `(b, h, w')` to `(b, l, h, w)`."""
        self._check(y, self.sensor, "a measurement")
        return first_estimate(y, self.bands, self.step)

    def masked_estimate(self, y: Tensor) -> Tensor:
        """`HM`: the first estimate times the mask. `(b, h, w')` to `(b, l, h, w)`."""
        return self.first_estimate(y) * self.mask

    def _check(self, x: Tensor, shape: tuple[int, ...], what: str) -> None:
        if tuple(x.shape[1:]) != shape:
            raise ValueError(
                f"this operator ({self.bands} bands, step {self.step}) takes {what} of shape "
                f"({', '.join(['b', *map(str, shape)])}), got {tuple(x.shape)}"
            )
        if self.phi.dim() == 4 and self.phi.shape[0] not in (1, x.shape[0]):
            raise ValueError(
                f"this operator holds {self.phi.shape[0]} masks for {x.shape[0]} samples; give one each"
            )


def _checked(mask: Tensor, shapes: str, dims: tuple[int, ...]) -> Tensor:
    if mask.dim() not in dims or 0 in mask.shape:
        raise ValueError(f"expected a mask of shape {shapes}, got {tuple(mask.shape)}")
    if not mask.is_floating_point():
        mask = mask.to(torch.get_default_dtype())
    broken = int((~torch.isfinite(mask)).sum())
    if broken:
        raise ValueError(f"{broken} of the {mask.numel()} entries of the mask are not finite; a mask is 0 or more")
    if mask.min() < 0:
        raise ValueError(f"the mask has entries down to {float(mask.min()):.3g}; a mask passes light: 0 or more")
    return mask


def _require_step(step: int) -> None:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ValueError(f"the step is a whole number of columns, 0 or more; got {step!r}")
