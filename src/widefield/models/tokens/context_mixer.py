# SPDX-License-Identifier: Apache-2.0
"""A context module of feature maps as the mixer of a network of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

from widefield.core.context import Context
from widefield.core.pointwise import Pointwise
from widefield.core.registry import create, entry


class ContextMixer(nn.Module):
    """`C(u) - u` on patch tokens laid out as their map: `(b, h w, width) -> (b, h w, width)`.

    The residual is the block's, so that the module's own is taken out again: `x + C(LN(x)) - LN(x)`. With "none"
    for C tokens are not mixed at all; a module whose gate starts closed starts as that (up to its ReLU, where its
    paper has one). A module that gives other channels than it takes (it concatenates) is followed by a learned
    projection to the width, and nothing is taken out. Prefix tokens have no place on a map, so such a network has
    none.

    Args:
        name: of a registered context module.
        width: of a token, the module's channels.
        grid: (height, width) in patches, for modules of a fixed size.
        options: of the module; the number of output channels, where that is an option, is set to the width.

    Raises:
        UnknownName, UnknownOption: as `widefield.create`. ValueError: at the call, a module that changes the
        map's size.
    """

    spatial = True

    def __init__(self, name: str, width: int, grid: tuple[int, int], options: Mapping[str, Any]) -> None:
        super().__init__()
        found = entry(name)
        self.fixed_size = found.facts.fixed_size
        given = dict(found.tied_to(grid))
        if "out_channels" in found.options:
            given["out_channels"] = width
        self.context = create(name, width, **{**given, **options})
        self.name, self.width = name, width
        out = getattr(self.context, "out_channels", width)
        self.project = None if out == width else Pointwise(out, width)

    def forward(self, x: Tensor, space: tuple[int, int]) -> Tensor:
        u = x.mT.unflatten(2, space)  # (b, width, h, w), channels last in memory
        y = self.context(u)
        if y.shape[2:] != u.shape[2:]:
            raise ValueError(
                f"{self.name} turns a map {tuple(u.shape)} into {tuple(y.shape)}; a mixer must keep the size: "
                "choose its options so that it does"
            )
        y = y - u if self.project is None else self.project(y)
        return y.flatten(2).mT

    def map_cost(self, batch: int, space: tuple[int, int]) -> int:
        """Multiply-adds on a batch of maps."""
        total = cast(Context, self.context).cost((batch, self.width, *space)).multiply_adds
        if self.project is not None:
            total += batch * self.project.multiply_adds(space[0] * space[1])
        return total
