# SPDX-License-Identifier: Apache-2.0
"""The 1x1 convolution as what it is: one matrix applied to the channels of every position."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.fused import convolve, serves


class Pointwise(nn.Module):
    """`(b, in, *space) -> (b, out, *space)`, for any number of spatial dimensions.

    Initialised as torch initialises a convolution (Kaiming uniform, a = sqrt 5). Runs in the dtype of its
    input, and keeps the memory layout: channels-last in, channels-last out, without a copy. Several inputs are
    taken as if they were concatenated along the channels, which they are not: `W [a, b] = W_a a + W_b b`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_channels < 1 or out_channels < 1:
            raise ValueError(f"widths must be at least 1, got {in_channels} channels in and {out_channels} out")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_channels)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        if not more:
            return _apply(self.weight, self.bias, x)
        first, *rest = self.weight.split([part.shape[1] for part in (x, *more)], 1)
        if serves(x):
            y = _apply(first, self.bias, x)
            for weight, part in zip(rest, more, strict=True):
                y += _apply(weight, None, part)
            return y
        y = _apply(first, self.bias, x.flatten(2))
        for weight, part in zip(rest, more, strict=True):
            tokens = part.flatten(2)
            if torch.compiler.is_compiling() or y._is_view() or y.dtype != tokens.dtype:
                y = y + _apply(weight, None, tokens)
            else:
                y = y.baddbmm_(weight.to(y.dtype).expand(y.shape[0], -1, -1), tokens)
        return y.unflatten(2, x.shape[2:])

    def multiply_adds(self, positions: int) -> int:
        """Multiply-adds for one sample of that many positions."""
        return self.in_channels * self.out_channels * positions

    def extra_repr(self) -> str:
        return f"{self.in_channels} -> {self.out_channels}, bias={self.bias is not None}"


class GroupedPointwise(Pointwise):
    """A 1x1 convolution in groups, bias-free. Shape: `(b, in, *space) -> (b, out, *space)`."""

    def __init__(self, in_channels: int, out_channels: int, groups: int) -> None:
        super().__init__(in_channels // groups, out_channels, bias=False)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).unflatten(1, (self.groups, -1))
        y = self.weight.to(x.dtype).unflatten(0, (self.groups, -1)) @ tokens
        return y.flatten(1, 2).unflatten(2, x.shape[2:])


def together(x: Tensor, *projections: Pointwise) -> tuple[Tensor, ...]:
    """Several projections of one map in one product, which reads it, and writes its gradient, once.

    Args:
        x: `(b, in, *space)`.
        projections: either all with a bias or all without.
    """
    weight = torch.cat([p.weight for p in projections])
    biases: list[Tensor] = [p.bias for p in projections if p.bias is not None]
    y = _apply(weight, torch.cat(biases) if biases else None, x)
    return y.split([p.out_channels for p in projections], 1)


def chained(x: Tensor, inner: Pointwise, outer: Pointwise) -> Tensor:
    """`outer(inner(x))`, as one projection by the product of their matrices where that takes less.

    A narrow end makes it so: the wide width between the two is then met once, not at every position.
    """
    # A traced graph serves all sizes, so it may not hold a choice that depends on one.
    if not torch.compiler.is_compiling() and not product_is_cheaper(x[0, 0].numel(), inner, outer):
        return outer(inner(x))
    bias = outer.bias
    if inner.bias is not None:
        moved = outer.weight @ inner.bias
        bias = moved if bias is None else moved + bias
    return _apply(outer.weight @ inner.weight, bias, x)


def product_is_cheaper(positions: int, inner: Pointwise, outer: Pointwise) -> bool:
    """Whether `chained` multiplies the matrices first, on maps of so many positions."""
    product, each = _chain(inner, outer)
    return product + positions * each < inner.multiply_adds(positions) + outer.multiply_adds(positions)


def chained_cost(batch: int, positions: int, inner: Pointwise, outer: Pointwise) -> int:
    """Multiply-adds of `chained` on a batch of maps."""
    if not product_is_cheaper(positions, inner, outer):
        return batch * (inner.multiply_adds(positions) + outer.multiply_adds(positions))
    product, each = _chain(inner, outer)
    return product + batch * positions * each


def _chain(inner: Pointwise, outer: Pointwise) -> tuple[int, int]:
    """Multiply-adds of the product of the matrices (and of a bias), and of one position through it."""
    columns = inner.in_channels + (inner.bias is not None)
    return outer.out_channels * outer.in_channels * columns, outer.out_channels * inner.in_channels


def _apply(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    if weight.dtype != x.dtype and not (x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)):
        weight = weight.to(x.dtype)
        bias = bias.to(x.dtype) if bias is not None else None
    if serves(x):
        return convolve(x, weight[:, :, None, None], bias)
    tokens = x.flatten(2)
    if tokens.stride(1) == 1 and weight.shape[1] > 1:
        y = F.linear(tokens.mT, weight, bias).mT
    else:
        y = F.conv1d(tokens, weight[:, :, None], bias)
    return y.unflatten(2, x.shape[2:])
