# SPDX-License-Identifier: Apache-2.0
"""The baseline of every comparison: no context at all."""

from __future__ import annotations

from torch import Tensor

from widefield.core.context import Context
from widefield.core.registry import register


@register("none", family="none", title="No context", paper="baseline", year=0, linear_in_x=True, complexity="1")
class NoContext(Context):
    """Returns a copy of its input: what a network without a context module does.

    Shape: `(b, c, *space) -> (b, c, *space)`. No parameters, no multiply-adds.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return x.clone()

    def context(self, x: Tensor) -> Tensor:
        """Zero: there is none."""
        return x.new_zeros(x.shape)
