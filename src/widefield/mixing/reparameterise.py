# SPDX-License-Identifier: Apache-2.0
"""Convolutions and norms as matrices: what merges the branches of RepMLP into one map.

A convolution of stride 1 is a sparse matrix on the positions of a map, and a batch norm with fixed statistics a
scale and a shift, so branches that are summed are one matrix. Everything here is in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.norm import BatchNorm


def norm_scale_shift(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """`s = gamma / sqrt(var + eps)` and `t = beta - s mean`: what the norm does in evaluation, `s x + t`."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    return scale, norm.bias.double() - scale * norm.running_mean.double()


def sum_kernels(branches: Sequence[tuple[nn.Conv2d, BatchNorm]]) -> tuple[Tensor, Tensor]:
    """One kernel `(out, in / groups, k, k)` and bias `(out,)` for convolutions and their norms, summed.

    Smaller kernels are padded with zeros to the largest.
    """
    widest = max(conv.kernel_size[0] for conv, _ in branches)
    kernels, biases = [], []
    for conv, norm in branches:
        scale, shift = norm_scale_shift(norm)
        margin = (widest - conv.kernel_size[0]) // 2
        kernels.append(F.pad(conv.weight.double() * scale[:, None, None, None], [margin] * 4))
        biases.append(shift)
    return torch.stack(kernels).sum(0), torch.stack(biases).sum(0)


def convolution_matrix(kernel: Tensor, size: Sequence[int], groups: int) -> Tensor:
    """The matrix of a convolution of stride 1, padded with (k - 1) / 2 zeros: `(out h w, in h w / groups)`.

    Row (o, i, j) holds the weights with which output channel o at (i, j) reads the channels of its group.

    Args:
        kernel: `(out, in / groups, k, k)`, k odd.
        size: h and w.
        groups: of the convolution.
    """
    h, w = size
    each = kernel.shape[1] * h * w
    unit = torch.eye(each, dtype=kernel.dtype, device=kernel.device).reshape(each, -1, h, w)
    y = F.conv2d(unit.repeat(1, groups, 1, 1), kernel, padding=kernel.shape[-1] // 2, groups=groups)
    return y.flatten(1).T


def check_kernels(owner: str, kernels: Sequence[int]) -> None:
    """Raises a ValueError for kernels that are not odd, positive and each given once."""
    if any(not isinstance(k, int) or k < 1 or k % 2 == 0 for k in kernels) or len(set(kernels)) != len(kernels):
        raise ValueError(f"{owner}: kernels takes different odd positive numbers, got {tuple(kernels)}")


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest entry expected."""
    largest = expected.abs().max().item()
    return (found - expected).abs().max().item() / largest if largest else 0.0
