# SPDX-License-Identifier: Apache-2.0
"""What a sensor adds to a clean snapshot: Gaussian noise, or the shot noise of counted photons.

The shot noise is the one that published real-data models were trained with: an 11-bit sensor of quantum efficiency
0.4 (TSA-Net, ECCV 2020, and the toolbox of MST). It belongs to training on real data only; the simulated benchmark
has no noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from widefield.core.numerics import widen


def gaussian_noise(y: Tensor, deviation: float, generator: torch.Generator | None = None) -> Tensor:
    """`y + deviation * n`, n standard normal. Any shape.

    Raises:
        ValueError: a negative deviation.
    """
    if deviation < 0:
        raise ValueError(f"the standard deviation of noise is 0 or more, got {deviation}")
    return y + deviation * torch.empty_like(y).normal_(generator=generator)


def expose(y: Tensor, bands: int, gain: float = 1.2) -> Tensor:
    """The measurement as a real camera is exposed: `gain * 2 / l * y`. The label stays as it is, so a network
    that is trained on it learns the gain too."""
    return y / bands * 2 * gain


def photons(y: Tensor, quantum_efficiency: float = 0.4, levels: int = 2048) -> Tensor:
    """Photons that arrive: `floor(levels y / quantum_efficiency)`, y in [0, 1] of full scale.

    Raises:
        ValueError: a negative or non-finite measurement, or options out of range.
    """
    if not 0 < quantum_efficiency <= 1 or levels < 1:
        raise ValueError(
            f"quantum_efficiency must lie in (0, 1] and levels be 1 or more, got {quantum_efficiency} and {levels}"
        )
    if not bool((y >= 0).all()) or bool(torch.isinf(y).any()):
        raise ValueError("photons can be counted of a finite measurement that is 0 or more; this one is not")
    return (widen(y) * levels / quantum_efficiency).floor()


def shot_noise(
    y: Tensor,
    *,
    quantum_efficiency: float = 0.4,
    levels: int = 2048,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Counts a photon with probability `quantum_efficiency`: `Binomial(photons, quantum_efficiency) / levels`.

    Args:
        y: the exposed measurement (see `expose`), any shape, 1 is full scale.
        quantum_efficiency: share of the photons that are counted.
        levels: counts at full scale; 2048 for 11 bits.
        generator: of the random numbers; on the device of `y`.

    Raises:
        ValueError: as `photons`.
    """
    arrived = photons(y, quantum_efficiency, levels)
    counts = torch.binomial(arrived, torch.full_like(arrived, quantum_efficiency), generator=generator)
    return (counts / levels).to(y.dtype)
