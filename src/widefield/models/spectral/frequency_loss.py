# SPDX-License-Identifier: Apache-2.0
"""FDL: how far two cubes are apart in the frequencies of their patches, the worst frequencies counting most.

    D = F(prediction - truth), patch by patch         F the orthonormal 2-D Fourier transform
    loss = weight * mean( w |D|^2 )                   w = log(1 + |D|^a) / max, without gradient

Paper   HDNet: High-resolution Dual-domain Learning for Spectral Compressive Imaging, CVPR 2022, arXiv:2203.02149
        (frequency domain learning); the form is that of Focal Frequency Loss for Image Reconstruction and
        Synthesis, ICCV 2021, arXiv:2012.12821.
*differs*: a map whose edges the patches do not divide is extended by zero difference, which adds nothing to the
sum; the mean is over the true positions. Two equal cubes have a loss and a gradient of zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.core.numerics import float32_island, widen


def frequency_domain_loss(
    prediction: Tensor,
    truth: Tensor,
    *,
    weight: float = 0.7,
    alpha: float = 2.0,
    patch_factor: int = 4,
    ave_spectrum: bool = True,
    log_matrix: bool = True,
    batch_matrix: bool = True,
) -> Tensor:
    """The scalar loss; the defaults are those HDNet is trained with.

    Args:
        prediction, truth: `(b, l, h, w)`.
        weight: of the whole. (Training weighs it by 0.7 once more: `HDNet.training_loss`.)
        alpha: exponent of the spectral distance in its own weight.
        patch_factor: patches along each edge.
        ave_spectrum: compare the mean spectra of the batch.
        log_matrix: logarithm of the weights.
        batch_matrix: the largest weight of the batch becomes 1; else that of each patch and band.

    Raises:
        ValueError: shapes that differ or are no cubes.
    """
    require_positive("frequency_domain_loss", patch_factor=patch_factor)
    if prediction.dim() != 4 or prediction.shape != truth.shape:
        raise ValueError(
            "frequency_domain_loss takes two cubes (b, l, h, w) of one shape, got "
            f"{tuple(prediction.shape)} and {tuple(truth.shape)}"
        )
    with float32_island(prediction):
        difference = widen(prediction) - widen(truth)  # the transform is linear: of the difference, once
        if ave_spectrum:
            difference = difference.mean(0, keepdim=True)
        spectrum = torch.fft.fft2(_patches(difference, patch_factor), norm="ortho")
        squared = spectrum.real.square() + spectrum.imag.square()
        weights = _focus(squared.detach(), alpha, log_matrix, batch_matrix)
        return weight * (weights * squared).sum() / difference.numel()


def _patches(x: Tensor, factor: int) -> Tensor:
    """`(b, l, h, w)` to `(b, l, factor, factor, h / factor, w / factor)`."""
    down, right = (-size % factor for size in x.shape[-2:])
    x = F.pad(x, (0, right, 0, down))
    return x.unflatten(-1, (factor, -1)).unflatten(-3, (factor, -1)).transpose(-3, -2)


def _focus(squared: Tensor, alpha: float, logarithm: bool, shared: bool) -> Tensor:
    """The weights, at most 1, from `|D|^2`; zero where there is no difference at all."""
    weights = squared.pow(alpha / 2)
    if logarithm:
        weights = weights.log1p()
    largest = weights.amax() if shared else weights.amax((-2, -1), keepdim=True)
    return torch.where(largest > 0, weights / largest, torch.zeros_like(weights))
