# SPDX-License-Identifier: Apache-2.0
"""How good a reconstructed cube is: PSNR, SSIM, SAM and others, each under a named protocol.

Scores of the same cube differ by hundredths of SSIM and tenths of a dB between the protocols of the field, so a
table must say which it used:

    published      clip to [0, 1], round to 8 bits; per band with peak 255; SSIM without padding. The tables of the
                   CASSI papers (their MATLAB evaluation).
    training_log   PSNR of 256 x, rounded, not clipped, with peak 255; SSIM of x with zero padding, range 1. What
                   the toolbox prints while training.
    float          x as it is, range 1, SSIM without padding.

Papers  SSIM: Wang et al., TIP 2004. SAM: Yuhas et al., 1992. UIQI: Wang and Bovik, SPL 2002. ERGAS: Wald, 2000.
All take an estimate and the truth `(..., l, h, w)` in [0, 1] and return `(...)`. Means over bands are means of the
bands' scores: the PSNR here is not the PSNR of the mean error.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.core.errors import unknown
from widefield.core.numerics import widen

PROTOCOLS = ("published", "training_log", "float")
WINDOW, SIGMA = 11, 1.5
BLOCK = 32
_EPS = 2.0**-52  # MATLAB's eps, in the spectral angle


def psnr(estimate: Tensor, truth: Tensor, *, protocol: str = "published") -> Tensor:
    """Mean over bands of `10 log10(peak^2 / MSE)`, in dB; infinite where both are equal.

    Raises:
        ValueError: shapes that differ. UnknownName: no such protocol.
    """
    estimate, truth = _pair(estimate, truth, protocol)
    peak = 1.0
    if protocol == "published":
        estimate, truth, peak = _bytes(estimate), _bytes(truth), 255.0
    elif protocol == "training_log":
        estimate, truth, peak = (256 * estimate).round(), (256 * truth).round(), 255.0
    error = (estimate - truth).square().mean((-2, -1))
    return (10 * torch.log10(peak**2 / error)).mean(-1)


def ssim(estimate: Tensor, truth: Tensor, *, protocol: str = "published") -> Tensor:
    """Structural similarity with the 11 x 11 Gaussian of deviation 1.5, mean over positions and bands.

    Raises:
        ValueError: shapes that differ, or maps smaller than the window where nothing is padded. UnknownName.
    """
    estimate, truth = _pair(estimate, truth, protocol)
    peak, padding = 1.0, 0
    if protocol == "published":
        estimate, truth, peak = _bytes(estimate), _bytes(truth), 255.0
    elif protocol == "training_log":
        padding = WINDOW // 2
    if not padding and min(truth.shape[-2:]) < WINDOW:
        raise ValueError(
            f"SSIM looks through a window of {WINDOW} x {WINDOW}, the maps are {tuple(truth.shape[-2:])}; "
            "protocol='training_log' pads"
        )
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2

    def blur(x: Tensor) -> Tensor:
        return _filtered(x, _gaussian(x), padding)

    mean_e, mean_t = blur(estimate), blur(truth)
    var_e, var_t = blur(estimate.square()) - mean_e.square(), blur(truth.square()) - mean_t.square()
    shared = blur(estimate * truth) - mean_e * mean_t
    similarity = (2 * mean_e * mean_t + c1) * (2 * shared + c2)
    similarity = similarity / ((mean_e.square() + mean_t.square() + c1) * (var_e + var_t + c2))
    return similarity.mean((-3, -2, -1))


def sam(estimate: Tensor, truth: Tensor, *, protocol: str = "published") -> Tensor:
    """Spectral angle: mean over pixels of the angle between the two spectra, in degrees.

    Raises:
        ValueError: shapes that differ. UnknownName: no such protocol.
    """
    estimate, truth = _prepared(estimate, truth, protocol)
    cosine = (estimate * truth).sum(-3) + _EPS
    cosine = cosine / (estimate.norm(dim=-3) + _EPS) / (truth.norm(dim=-3) + _EPS)
    return torch.rad2deg(torch.acos(cosine.clamp(-1, 1))).mean((-2, -1))


def rmse(estimate: Tensor, truth: Tensor, *, protocol: str = "published") -> Tensor:
    """Root of the mean squared error over the cube; in units of the protocol (8-bit levels, or 1).

    Raises:
        ValueError: shapes that differ. UnknownName: no such protocol.
    """
    estimate, truth = _prepared(estimate, truth, protocol)
    return (estimate - truth).square().mean((-3, -2, -1)).sqrt()


def ergas(estimate: Tensor, truth: Tensor, *, protocol: str = "published", ratio: float = 1.0) -> Tensor:
    """Relative global error: `100 ratio sqrt(mean over bands of (RMSE / mean)^2)`.

    Raises:
        ValueError: shapes that differ. UnknownName: no such protocol.
    """
    estimate, truth = _prepared(estimate, truth, protocol)
    error = (estimate - truth).square().mean((-2, -1)).sqrt()
    return 100 * ratio * (error / truth.mean((-2, -1))).square().mean(-1).sqrt()


def uiqi(estimate: Tensor, truth: Tensor, *, protocol: str = "published") -> Tensor:
    """Universal image quality index over blocks of 32 x 32, mean over blocks and bands.

    Raises:
        ValueError: shapes that differ, or maps smaller than a block. UnknownName: no such protocol.
    """
    estimate, truth = _prepared(estimate, truth, protocol)
    if min(truth.shape[-2:]) < BLOCK:
        raise ValueError(f"UIQI looks at blocks of {BLOCK} x {BLOCK}, the maps are {tuple(truth.shape[-2:])}")
    flat = truth.new_full((BLOCK,), 1 / BLOCK)

    def mean(x: Tensor) -> Tensor:
        return _filtered(x, flat, 0)

    mean_e, mean_t = mean(estimate), mean(truth)
    shared = mean(estimate * truth) - mean_e * mean_t
    spread = mean(estimate.square()) - mean_e.square() + mean(truth.square()) - mean_t.square()
    squares = mean_e.square() + mean_t.square()
    # A block without structure is judged by its mean alone, an empty one is right.
    flat_block, empty = spread.abs() <= 1e-9 * squares, squares == 0
    full = 4 * shared * mean_e * mean_t / torch.where(flat_block | empty, 1.0, spread * squares)
    quality = torch.where(flat_block, 2 * mean_e * mean_t / torch.where(empty, 1.0, squares), full)
    return torch.where(empty, 1.0, quality).mean((-3, -2, -1))


QUALITY: dict[str, Callable[..., Tensor]] = {
    "psnr": psnr, "ssim": ssim, "sam": sam, "rmse": rmse, "ergas": ergas, "uiqi": uiqi,
}  # fmt: skip


def _pair(estimate: Tensor, truth: Tensor, protocol: str) -> tuple[Tensor, Tensor]:
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if estimate.shape != truth.shape or truth.dim() < 3:
        raise ValueError(
            f"expected two cubes (..., l, h, w) of one shape, got {tuple(estimate.shape)} and {tuple(truth.shape)}"
        )
    return widen(estimate), widen(truth)


def _prepared(estimate: Tensor, truth: Tensor, protocol: str) -> tuple[Tensor, Tensor]:
    estimate, truth = _pair(estimate, truth, protocol)
    return (_bytes(estimate), _bytes(truth)) if protocol == "published" else (estimate, truth)


def _bytes(x: Tensor) -> Tensor:
    """8-bit levels; a half is rounded up, as MATLAB does."""
    return (x.clamp(0, 1) * 255 + 0.5).floor()


def _gaussian(like: Tensor) -> Tensor:
    x = torch.arange(WINDOW, dtype=like.dtype, device=like.device) - WINDOW // 2
    weights = torch.exp(-x.square() / (2 * SIGMA**2))
    return weights / weights.sum()


def _filtered(x: Tensor, weights: Tensor, padding: int) -> Tensor:
    """Each map through a separable window."""
    maps = x.reshape(-1, 1, *x.shape[-2:])
    maps = F.conv2d(maps, weights[None, None, :, None], padding=(padding, 0))
    maps = F.conv2d(maps, weights[None, None, None], padding=(0, padding))
    return maps.unflatten(0, x.shape[:-2]).squeeze(-3)
