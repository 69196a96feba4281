# SPDX-License-Identifier: Apache-2.0
"""Norms by name, over `(b, c, *space)` of any number of dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from widefield.core.errors import unknown
from widefield.core.moving import in_recomputation
from widefield.core.numerics import HALF

NormName = str | Callable[[int], nn.Module]


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm for any number of spatial dimensions that survives the last batch of an epoch.

    Where a channel has one value only (a branch pooled to 1x1, batch of 1) there are no batch statistics:
    that call normalises with the running ones and leaves them as they are, instead of raising "Expected
    more than 1 value per channel". A replay by activation checkpointing does not move them a second time.
    Everywhere else it equals `torch.nn.BatchNorm2d`, names included.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"BatchNorm takes (b, c, *space), got the shape {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        input = _in_dtype_of(self.weight, input)
        rows = input.movedim(1, -1)
        if input.dim() > 2 and not torch.compiler.is_compiling() and rows.is_contiguous():
            # A channel last in memory: as a matrix it is normalised several times faster than as a map.
            return self.forward(rows.flatten(0, -2)).unflatten(0, rows.shape[:-1]).movedim(-1, 1)
        if input.shape[0] == 1 and input.dim() > 3:
            # torch 2.14 on the CPU mistakes the layout of a batch of one with positions outermost in memory, and
            # returns a wrong gradient without a word. With one spatial dimension there is no such doubt.
            return self.forward(input.flatten(2)).unflatten(2, input.shape[2:])
        if not self.training or self.running_mean is None or self.running_var is None:
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        if input.shape[0] * input[0, 0].numel() == 1:
            return nn.functional.batch_norm(input, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        if in_recomputation():
            mean, var = mean.clone(), var.clone()
            return nn.functional.batch_norm(input, mean, var, self.weight, self.bias, True, 0.0, self.eps)
        return super().forward(input)


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm` that, as `BatchNorm` here, takes the float32 context of a half-precision module.

    Raises:
        ValueError: a group has one value only, on a map of one position.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.num_channels == self.num_groups and input[0, 0].numel() == 1:
            raise ValueError(
                f"GroupNorm with {self.num_groups} groups of one channel has one value a group on a map of one "
                f"position (the shape {tuple(input.shape)}); take fewer groups, norm='batch' or norm='none'"
            )
        return super().forward(_in_dtype_of(self.weight, input))


def _in_dtype_of(weight: Tensor | None, x: Tensor) -> Tensor:
    return x if weight is None or weight.dtype not in HALF else x.to(weight.dtype)


def _group(channels: int) -> nn.Module:
    groups = next(g for g in (32, 16, 8, 4, 2, 1) if channels % g == 0 and (channels > g or g == 1))
    return GroupNorm(groups, channels)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": BatchNorm,
    "group": _group,
    "layer": lambda channels: GroupNorm(1, channels),
    "none": lambda channels: nn.Identity(),
}


def make_norm(norm: NormName, channels: int) -> nn.Module:
    """A norm over `channels`.

    Args:
        norm: "batch", "group" (32 groups, or the largest power of two that leaves two channels a group),
            "layer" (over channels and positions), "none", or any callable from channels to a module.
        channels: how many.

    Raises:
        UnknownName: a norm that is none of these.
    """
    if not isinstance(norm, str):
        return norm(channels)
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    return NORMS[norm](channels)


def set_scale_(norm: nn.Module, value: float) -> None:
    """Sets the scale of a norm (a gate where it starts at 0); norms without a scale are left alone."""
    weight = getattr(norm, "weight", None)
    if isinstance(weight, Tensor):
        with torch.no_grad():
            weight.fill_(value)
