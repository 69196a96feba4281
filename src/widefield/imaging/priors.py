# SPDX-License-Identifier: Apache-2.0
"""Denoisers without training, `(b, l, h, w)` to the same, every band for itself: total variation, thresholding.

Papers  Nonlinear total variation based noise removal algorithms, Physica D 1992; An algorithm for total variation
        minimization and applications (Chambolle), JMIV 2004.
*differs*: the numbers of scikit-image's `denoise_tv_chambolle(..., channel_axis=...)`, for all bands of all
samples at once and on any device. A band stops by its own criterion, as there.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from widefield.core.numerics import float32_island, widen


@torch.no_grad()
def denoise_tv(
    x: Tensor, weight: float | Tensor = 0.1, *, iterations: int = 200, tolerance: float = 2e-4
) -> Tensor:
    """`argmin_u |u - x|^2 / 2 + weight TV(u)` of every map, by Chambolle's dual iteration. No gradient.

    Args:
        x: `(..., h, w)`.
        weight: 0 or more; a number, or a tensor that broadcasts against `x`.
        iterations: at most so many.
        tolerance: a map stops when its cost changes by less than this part of the first cost.

    Raises:
        ValueError: options out of range.
    """
    least = float(weight.min()) if isinstance(weight, Tensor) else weight
    if least < 0 or iterations < 1 or tolerance < 0:
        raise ValueError(
            f"weight and tolerance must be 0 or more and iterations at least 1, got weight={least}, "
            f"iterations={iterations}, tolerance={tolerance}"
        )
    if not isinstance(weight, Tensor) and weight == 0:
        return x.clone()
    image = widen(x)
    weight = torch.as_tensor(weight, dtype=image.dtype, device=image.device)
    # A weight of zero would divide by itself; its dual variable is bounded by the smallest number instead.
    weight = weight.clamp(min=torch.finfo(image.dtype).tiny)
    down, right, out = torch.zeros_like(image), torch.zeros_like(image), image
    running = torch.ones(image.shape[:-2], dtype=torch.bool, device=image.device)[..., None, None]
    first = previous = torch.zeros_like(running, dtype=image.dtype)
    for i in range(iterations):
        divergence = _divergence(down, right)
        out = image + divergence
        if i == iterations - 1:
            break
        g_down, g_right = _forward_differences(out)
        length = torch.sqrt(g_down * g_down + g_right * g_right)
        cost = ((divergence * divergence).sum((-2, -1), True) + (weight * length).sum((-2, -1), True)) / _area(x)
        if i == 0:
            first = cost
        else:
            running = running & ((previous - cost).abs() >= tolerance * first)
            if not bool(running.any()):
                break
        previous = cost
        # A step of 1 / 4, the largest that converges in two dimensions.
        shrink = 1 + length * (0.25 / weight)
        down = torch.where(running, (down - 0.25 * g_down) / shrink, down)
        right = torch.where(running, (right - 0.25 * g_right) / shrink, right)
    return out.to(x.dtype)


def total_variation(x: Tensor) -> Tensor:
    """Isotropic total variation of every map, `(..., h, w)` to `(...)`."""
    down, right = _forward_differences(widen(x))
    return torch.sqrt(down * down + right * right).sum((-2, -1))


def denoise_soft(x: Tensor, threshold: float | Tensor) -> Tensor:
    """`argmin_u |u - x|^2 / 2 + threshold |D u|_1` of every map, D the orthonormal cosine transform.

    Args:
        x: `(..., h, w)`.
        threshold: 0 or more; a number, or a tensor that broadcasts against `x`.
    """
    with float32_island(x):
        wide = widen(x)
        rows, columns = (_cosines(size, wide.dtype, wide.device) for size in x.shape[-2:])
        coefficients = rows @ wide @ columns.mT
        kept = coefficients.sign() * (coefficients.abs() - threshold).clamp(min=0)
        return (rows.mT @ kept @ columns).to(x.dtype)


def cosine_length(x: Tensor) -> Tensor:
    """`|D x|_1` of every map, `(..., h, w)` to `(...)`."""
    with float32_island(x):
        wide = widen(x)
        rows, columns = (_cosines(size, wide.dtype, wide.device) for size in x.shape[-2:])
        return (rows @ wide @ columns.mT).abs().sum((-2, -1))


def _area(x: Tensor) -> int:
    return x.shape[-2] * x.shape[-1]


def _forward_differences(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x[i + 1] - x[i]` along rows and columns, 0 at the far edge."""
    down, right = torch.zeros_like(x), torch.zeros_like(x)
    down[..., :-1, :] = x.diff(dim=-2)
    right[..., :-1] = x.diff(dim=-1)
    return down, right


def _divergence(down: Tensor, right: Tensor) -> Tensor:
    """Minus the adjoint of `_forward_differences`, negated: what its dual variables add to the image."""
    total = -(down + right)
    total[..., 1:, :] += down[..., :-1, :]
    total[..., 1:] += right[..., :-1]
    return total


@cache
def _cosine_matrix(size: int) -> Tensor:
    frequency, place = torch.arange(size, dtype=torch.float64)[:, None], torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * frequency * (2 * place + 1) / (2 * size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


def _cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _cosine_matrix(size).to(device, dtype)
