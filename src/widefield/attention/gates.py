# SPDX-License-Identifier: Apache-2.0
"""The closed door of attention blocks: a way out that starts at zero, so that a new block is an identity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widefield.core.norm import NormName, make_norm, set_scale_
from widefield.core.pointwise import Pointwise


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
        if isinstance(getattr(self.norm, "weight", None), Tensor):
            set_scale_(self.norm, gate)
        else:
            self._scale_projection_(gate)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.project(x))

    def open_(self, value: float) -> None:
        """Sets the scale of the norm to `value`; a projection that is still zero is drawn anew and scaled."""
        if isinstance(getattr(self.norm, "weight", None), Tensor):
            set_scale_(self.norm, value)
        elif not self.project.weight.any():
            self.project.reset_parameters()
            self._scale_projection_(value)

    @torch.no_grad()
    def _scale_projection_(self, value: float) -> None:
        for parameter in self.project.parameters():
            parameter.mul_(value)
