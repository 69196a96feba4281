# SPDX-License-Identifier: Apache-2.0
"""The data step of splitting methods in closed form, in the dispersed frame.

Each sensor pixel sees entries of its own, so `Phi Phi^T` is diagonal and no linear system has to be solved:

    GAP              x = z + A^T (y - A z) / Phi_s                the nearest x to z with A x = y
    accelerated GAP  y1 = y1 + (y - A z);  x = z + r A^T (y1 - A z) / Phi_s
    HQS              x = z + A^T (y - A z) / (alpha + Phi_s)      argmin |y - A x|^2 + alpha |x - z|^2
    ADMM             x = HQS of z = theta + b with alpha = gamma

Papers  GAP: Generalized alternating projection, SIAM J. Imaging Sciences 2014. HQS as in DAUHST, NeurIPS 2022,
        arXiv:2205.10102. ADMM: Boyd et al., Foundations and Trends 2011.

`z` is `(b, l, h, w')`, `y` `(b, h, w')`, `phi` `(l, h, w')` or one a sample, `energy` `(h, w')` or one a sample, 1
where no light falls (`widefield.imaging.energy`): there `A^T` is zero, and the entries stay as they were.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from widefield.imaging.sensing import backproject, measure


class Accelerated(NamedTuple):
    """The estimate `(b, l, h, w')` and the measurement with all past misfits added, `(b, h, w')`."""

    x: Tensor
    y1: Tensor


def project_gap(z: Tensor, y: Tensor, phi: Tensor, energy: Tensor) -> Tensor:
    """The nearest cube to `z` that gives exactly the measurement `y`."""
    return z + backproject((y - measure(z, phi)) / energy, phi)


def project_gap_accelerated(
    z: Tensor, y: Tensor, y1: Tensor, phi: Tensor, energy: Tensor, relaxation: float = 1.0
) -> Accelerated:
    """GAP towards `y1`, which gathers what the steps before left over.

    Args:
        y1: as the step before returned it; zeros at the start.
        relaxation: r, 1 for a full step.
    """
    seen = measure(z, phi)
    y1 = y1 + (y - seen)
    return Accelerated(z + relaxation * backproject((y1 - seen) / energy, phi), y1)


def project_hqs(z: Tensor, y: Tensor, phi: Tensor, energy: Tensor, alpha: Tensor | float) -> Tensor:
    """The minimiser of `|y - A x|^2 + alpha |x - z|^2`.

    Args:
        alpha: the penalty weight, 0 or more; a number, or what broadcasts against `y`, such as `(b, 1, 1)`.
    """
    return z + backproject((y - measure(z, phi)) / (alpha + energy), phi)


def project_admm(
    theta: Tensor, b: Tensor, y: Tensor, phi: Tensor, energy: Tensor, gamma: Tensor | float
) -> Tensor:
    """The data step of ADMM from the denoised cube `theta` and the scaled dual variable `b`, both `(b, l, h, w')`.

    The other two steps: `theta = D(x - b)`, `b = b - (x - theta)`.
    """
    return project_hqs(theta + b, y, phi, energy, gamma)
