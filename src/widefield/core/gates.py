# SPDX-License-Identifier: Apache-2.0
"""The closed door of residual blocks: a way out that starts at zero, so that a new block is an identity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widefield.core.norm import NormName, make_norm, set_scale_
from widefield.core.pointwise import Pointwise


def scalar_gate(value: float) -> nn.Parameter:
    """A learned scale, `(1,)`."""
    return nn.Parameter(torch.full((1,), float(value)))


def close_(project: Pointwise, norm: nn.Module, gate: float) -> None:
    """Sets the scale of a new norm to `gate`; where it has none, the weights of the projection before it."""
    if isinstance(getattr(norm, "weight", None), Tensor):
        set_scale_(norm, gate)
    else:
        _scale_(project, gate)


def open_(project: Pointwise, norm: nn.Module, value: float) -> None:
    """Sets the scale of the norm to `value`; a projection that is still zero is drawn anew and scaled."""
    if isinstance(getattr(norm, "weight", None), Tensor):
        set_scale_(norm, value)
    elif not project.weight.any():
        project.reset_parameters()
        _scale_(project, value)


@torch.no_grad()
def _scale_(project: Pointwise, value: float) -> None:
    for parameter in project.parameters():
        parameter.mul_(value)


class GatedProjection(nn.Module):
    """1x1 projection and norm, whose scale is the gate; without a scale to close, the projection itself is zero.

    While it is closed nothing behind it has a gradient: it opens itself in the first step, the rest follows.

    Shape: `(b, in_channels, *space) -> (b, out_channels, *space)`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        bias: bool = True,
        norm: NormName = "batch",
        gate: float = 0.0,
    ) -> None:
        super().__init__()
        self.project = Pointwise(in_channels, out_channels, bias=bias)
        self.norm = make_norm(norm, out_channels)
        close_(self.project, self.norm, gate)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.project(x))

    def open_(self, value: float) -> None:
        """As the function `open_`."""
        open_(self.project, self.norm, value)
