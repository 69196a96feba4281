# SPDX-License-Identifier: Apache-2.0
"""The one interface: a module that lets every position of a map see all the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from widefield.core import layout
from widefield.core.cost import Cost
from widefield.core.errors import NoOperator
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise


class Context(nn.Module):
    """`(b, channels, *space) -> (b, out_channels, *space)` with one to three spatial dimensions of any size.

        context = mix(enter(x))
        y       = merge(x, leave(context))         both in float32 at least, autocast off

    The base owns reshaping, memory layout, the float32 island and the checks. A module writes `mix` (the
    mathematics on positions), `operator` (its dense matrix, or a refusal) and `mixing_cost`; and, where its
    paper has them, `enter` (projections in), `leave` (projection and norm out) and `merge` (the residual).
    The output has the dtype and the memory layout of the input, and never shares memory with it.

    The way out is inside the island too: a context varies little over positions and a norm enlarges what
    varies, rounding to half included; and the gradient of its weights sums over all positions.

    Attributes:
        channels: of the input.
        out_channels: of the output.
        space_dims: the numbers of spatial dimensions that the mathematics allows.
    """

    space_dims: tuple[int, ...] = (1, 2, 3)

    def __init__(self, channels: int, *, out_channels: int | None = None) -> None:
        super().__init__()
        if not isinstance(channels, int) or channels < 1:
            raise ValueError(f"{type(self).__name__}: channels must be a positive integer, got {channels!r}")
        self.channels = channels
        self.out_channels = channels if out_channels is None else out_channels

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        with float32_island(x):
            y = self.merge(x, self.leave(self.context(x)))
        return layout.like(y.to(x.dtype), x)

    def context(self, x: Tensor) -> Tensor:
        """The context alone: before projection back, norm, gate and residual. `(b, mixed, *space)`.

        It is not zero where a closed gate makes the whole module an identity.
        """
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            return layout.to_map(self.mix(self.enter(tokens), space), space)

    def enter(self, tokens: Tensor) -> Tensor:
        """Projection in, on `(b, c, n)`."""
        return tokens

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        """The mathematics of the paper: `(b, c, n) -> (b, mixed, n)`."""
        raise NotImplementedError

    def leave(self, context: Tensor) -> Tensor:
        """Projection and norm out, on maps."""
        return context

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        """How input and context meet; a plain residual unless the paper says otherwise."""
        return x + y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """The mixing matrix: `(b, n, m)`, row i the weights with which position i averages the m others.

        Args:
            x: `(b, c, *space)`.
            rows: `(k,)` positions whose rows are wanted, so that one pixel costs O(n); all if None.

        Raises:
            NoOperator: the module does not average over positions with such a matrix.
        """
        raise NoOperator(
            f"{type(self).__name__} has no position-by-position matrix; widefield.measure has instruments "
            "(spectrum, Jacobian) that take any module"
        )

    def cost(self, shape: tuple[int, ...]) -> Cost:
        """Closed-form multiply-adds of one forward at an input shape `(b, c, *space)`, and parameters."""
        b, n = shape[0], math.prod(shape[2:])
        projections = sum(m.multiply_adds(n) for m in self.modules() if isinstance(m, Pointwise))
        return Cost(
            b * (projections + self.mixing_cost(tuple(shape[2:]))),
            self.trainable(),
        )

    def trainable(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def mixing_cost(self, space: Space) -> int:
        """Multiply-adds of `mix` for one sample."""
        return 0

    def open_gate_(self, value: float = 1.0) -> bool:
        """Sets every gate that the paper starts at zero; returns whether the module has one."""
        return False

    def _check(self, x: Tensor) -> None:
        name = type(self).__name__
        dims = x.dim() - 2
        if dims not in self.space_dims:
            accepted = " or ".join(str(d) for d in self.space_dims)
            raise ValueError(
                f"{name} takes (b, {self.channels}, *space) with {accepted} spatial dimensions, "
                f"got the shape {tuple(x.shape)}"
            )
        if x.shape[1] != self.channels:
            raise ValueError(
                f"{name} was built for {self.channels} channels, got {x.shape[1]} in the shape {tuple(x.shape)}"
            )
        if not torch.is_floating_point(x):
            raise TypeError(f"{name} takes floating-point features, got {x.dtype}; convert with x.float()")
        if not torch.compiler.is_compiling() and x.numel() == 0:
            raise ValueError(f"{name} needs at least one sample and one position, got the shape {tuple(x.shape)}")
