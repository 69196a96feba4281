# SPDX-License-Identifier: Apache-2.0
"""Snapshot sensing as plain functions of the dispersed mask Phi: `y = sum_c Phi_c x_c`, in the dispersed frame.

`phi` is `(l, h, w')` or `(b, l, h, w')`, one code for the batch or one a sample. Each sensor pixel sees entries of
its own, so `Phi Phi^T` is diagonal and every projection is pixel-wise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from widefield.imaging.dispersion import disperse, shift_back


def dispersed_mask(mask: Tensor, bands: int, step: int) -> Tensor:
    """Phi of a plain aperture: `(h, w)` to `(l, h, w')`, `(b, h, w)` to `(b, l, h, w')`."""
    return disperse(mask.unsqueeze(-3).expand(*mask.shape[:-2], bands, *mask.shape[-2:]), step)


def measure(x: Tensor, phi: Tensor) -> Tensor:
    """`A x`: `(b, l, h, w')` to `(b, h, w')`."""
    return (phi * x).sum(-3)


def backproject(y: Tensor, phi: Tensor) -> Tensor:
    """`A^T y`: `(b, h, w')` to `(b, l, h, w')`."""
    return phi * y.unsqueeze(-3)


def energy(phi: Tensor) -> Tensor:
    """The diagonal of `Phi Phi^T`, 1 where no light passes: `(h, w')` or `(b, h, w')`."""
    total = phi.square().sum(-3)
    return torch.where(total == 0, torch.ones_like(total), total)


def first_estimate(y: Tensor, bands: int, step: int) -> Tensor:
    """`H`: the measurement shifted back, times 2 / l for a mask that passes half of the light."""
    return shift_back(y * (2 / bands), bands, step)
