# SPDX-License-Identifier: Apache-2.0
"""Compact generalised non-local blocks (CGNL): attention across positions and channels at once, in linear time.

    cgnl        y = theta <phi, g>                                      a group's map as one vector of c n numbers
    cgnl-rbf    y = sum_p a_p theta^p <phi^p, g>                        a_p = b (2 gamma)^p / p!, b = exp(-2 gamma)
    z = x + norm(W y)                                                   W and norm in the same groups

Paper   Compact Generalized Non-local Network, NeurIPS 2018, arXiv:1810.13125.
Facts   cost of the four projections and n c / 2; no map at all. What a group learns from the whole map is one
        number (a polynomial's coefficients, for rbf). With the published group norm, which takes every factor
        out again, only the sign of that number is left in `cgnl`, and phi and g hardly have a gradient.
        Values grow with the cube of the features (rbf: the power 2 order + 1); beyond 1e4 float32 overflows.
Differs projections start as torch's, not with std 0.01. The series of the kernel assumes unit vectors, which
        neither the authors' code nor this makes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.core.context import Context
from widefield.core.errors import NoOperator
from widefield.core.gates import close_, open_
from widefield.core.layout import Space
from widefield.core.norm import GroupNorm, NormName, make_norm
from widefield.core.pointwise import GroupedPointwise, Pointwise, together
from widefield.core.registry import register

TITLE, PAPER = "Compact Generalized Non-local Network", "arXiv:1810.13125"


def inner_product(a: Tensor, b: Tensor, groups: int) -> Tensor:
    """Of whole maps, one number a group: two `(b, c, n)` to `(b, groups, 1, 1)`."""
    return (a * b).sum(-1).unflatten(1, (groups, -1)).sum(-1)[..., None, None]


def taylor(theta: Tensor, phi: Tensor, g: Tensor, *, groups: int, gamma: float, order: int) -> Tensor:
    """`sum_p a_p theta^p <phi^p, g>`, the RBF kernel to an order: three `(b, c, n)` to `(b, groups, c', n)`."""
    weights = [math.exp(-2 * gamma) * (2 * gamma) ** p / math.factorial(p) for p in range(order + 1)]
    coefficients = [weights[0] * g.sum(-1).unflatten(1, (groups, -1)).sum(-1)[..., None, None]]
    power = g
    for weight in weights[1:]:
        power = power * phi
        coefficients.append(weight * power.sum(-1).unflatten(1, (groups, -1)).sum(-1)[..., None, None])
    theta = theta.unflatten(1, (groups, -1))
    y = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        y = y * theta + coefficient
    return y.expand_as(theta)


def default_groups(channels: int, inner: int) -> int:
    """8, or the most below that divide both widths and leave four inner channels a group.

    In a group of one or two channels the norm enlarges hardly more than rounding.
    """
    return next(g for g in (8, 4, 2, 1) if channels % g == inner % g == 0 and (inner >= 4 * g or g == 1))


class CGNLBase(Context):
    """Projections, groups and the gated way out; a subclass says how theta, phi and g meet."""

    def __init__(
        self, channels: int, *, inner: int | None, groups: int | None, norm: NormName | None, gate: float
    ) -> None:
        super().__init__(channels)
        if inner is not None and inner < 1:
            raise ValueError(f"{type(self).__name__}: inner must be a positive number of channels, got {inner}")
        self.inner = max(1, channels // 2) if inner is None else inner
        self.groups = default_groups(channels, self.inner) if groups is None else groups
        if self.groups < 1 or channels % self.groups or self.inner % self.groups:
            raise ValueError(
                f"{type(self).__name__}: groups must divide channels={channels} and inner={self.inner}, got "
                f"{groups}"
            )
        self.theta = Pointwise(channels, self.inner, bias=False)
        self.phi = Pointwise(channels, self.inner, bias=False)
        self.value = Pointwise(channels, self.inner, bias=False)
        self.project = GroupedPointwise(self.inner, channels, self.groups)
        self.norm = GroupNorm(self.groups, channels) if norm is None else make_norm(norm, channels)
        close_(self.project, self.norm, gate)

    def meet(self, theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
        """Three `(b, inner, n)` to `(b, groups, inner / groups, n)`."""
        raise NotImplementedError

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.meet(*together(tokens, self.theta, self.phi, self.value)).flatten(1, 2)

    def scaled(self, n: int) -> float:
        """1 over the square root of a group's c n."""
        return (self.inner // self.groups * n) ** -0.5

    def leave(self, context: Tensor) -> Tensor:
        return self.norm(self.project(context))

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Refused: a group's numbers, over channels and positions alike, meet in one product."""
        raise NoOperator(
            f"{type(self).__name__} mixes channels and positions of a group in one product; it has no "
            "position-by-position matrix"
        )

    def open_gate_(self, value: float = 1.0) -> bool:
        open_(self.project, self.norm, value)
        return True


@register(
    "cgnl", family="decomposition", title=TITLE, paper=PAPER, year=2018, identity_at_init=True, max_rank="inner"
)
class CGNL(CGNLBase):
    """Dot product: `x + norm(W theta <phi, g>)`, a group at a time.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        inner: width of theta, phi and g (None: half of the channels, at least 1).
        groups: of channels, each with its own product (None: 8 as published, fewer for narrow widths,
            see `default_groups`).
        scale: divide the product by the square root of its length; off as published.
        norm: after W (None: group norm in the same groups, as published, which needs two channels a group or
            more than one position).
        gate: initial scale of that norm; 0 as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        groups: int | None = None,
        scale: bool = False,
        norm: NormName | None = None,
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, inner=inner, groups=groups, norm=norm, gate=gate)
        self.scale = scale
        self.to(device=device, dtype=dtype)

    def meet(self, theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
        product = inner_product(phi, g, self.groups)
        if self.scale:
            product = product * self.scaled(theta.shape[-1])
        return theta.unflatten(1, (self.groups, -1)) * product


@register(
    "cgnl-rbf", family="decomposition", title=TITLE, paper=PAPER, year=2018, identity_at_init=True,
    max_rank="inner",
)  # fmt: skip
class CGNLRBF(CGNLBase):
    """Gaussian kernel by its Taylor series: `x + norm(W sum_p a_p theta^p <phi^p, g>)`, a group at a time.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels, inner, groups, norm, gate: as `cgnl`.
        scale: divide the products by the square root of their length; off as published.
        gamma: of the kernel `exp(-gamma |a - b|^2)`; 1e-4 as published, so that the orders from 1 count little.
        order: of the series, at least 0.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        groups: int | None = None,
        scale: bool = False,
        gamma: float = 1e-4,
        order: int = 3,
        norm: NormName | None = None,
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, inner=inner, groups=groups, norm=norm, gate=gate)
        if gamma <= 0 or order < 0:
            raise ValueError(
                f"CGNLRBF: gamma must be positive and order at least 0, got gamma={gamma} and order={order}"
            )
        self.scale, self.gamma, self.order = scale, gamma, order
        self.to(device=device, dtype=dtype)

    def meet(self, theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
        y = taylor(theta, phi, g, groups=self.groups, gamma=self.gamma, order=self.order)
        return y * self.scaled(theta.shape[-1]) if self.scale else y
