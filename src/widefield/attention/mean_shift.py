# SPDX-License-Identifier: Apache-2.0
"""Mean shift over the whole map: features move to the mean of their neighbourhood, step by step, towards modes.

    z_p <- sum_q k(z_p - x_q) x_q / sum_q k(z_p - x_q),   z = x at the start

    mean-shift         k(d) = exp(-|d|^2 / 2 h^2)
    mean-shift-flat    k(d) = 1 where |d| <= h, else 0

Paper   Mean Shift: A Robust Approach Toward Feature Space Analysis, TPAMI 2002.
Facts   cost 2 n^2 c a step, memory never n x n. No parameters. The result of the last step is a weighted mean of
        the input. One step on features of one length is non-local attention: exp(-|a - b|^2 / 2 h^2) is then
        exp(a . b / h^2) up to a constant.
Differs a fixed number of steps, so that one image costs as another. The data stay, as in the paper; blurring=True
        lets them move along (Fukunaga and Hostetler, 1975). Positions play no part. The output has no residual.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from widefield.attention.distances import gaussian_attention, gaussian_matrix, queries_keys
from widefield.attention.tiles import query_tiles
from widefield.core import layout
from widefield.core.context import Context
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen
from widefield.core.registry import register

TITLE, PAPER = "Mean Shift: A Robust Approach Toward Feature Space Analysis", "TPAMI 2002"


def near(a: Tensor, b: Tensor, radius: float) -> Tensor:
    """1 where `|a_i - b_j| <= radius`, else 0: `(batch, d, n), (batch, d, m) -> (batch, n, m)`."""
    q, k = queries_keys(a, b)
    return _reached(q, k, radius)


def _reached(q: Tensor, k: Tensor, radius: float) -> Tensor:
    """The same from the vectors of `queries_keys`: `q.k + (radius^2 - |a|^2) / 2 >= 0`."""
    squares = q[:, :-1].square().sum(1).unsqueeze(-1)
    # Rounding must not part a vector from itself.
    slack = 1e2 * torch.finfo(q.dtype).eps
    return (q.mT @ k).ge_(0.5 * (squares * (1 - slack) - radius**2))


def flat_mean(a: Tensor, b: Tensor, v: Tensor, radius: float) -> Tensor:
    """Mean of the v_j with `|a_i - b_j| <= radius`; a_i itself where there are none. Constant in the distances.

    Args:
        a: `(batch, d, n)`.
        b: `(batch, d, m)`.
        v: `(batch, d, m)`.

    Returns:
        `(batch, d, n)`.
    """
    a, b = a.detach(), b.detach()
    if torch.compiler.is_compiling():
        weights = near(a, b, radius)
        total = weights.sum(-1).unsqueeze(1)
        return torch.where(total > 0, v @ weights.mT / total.clamp(min=1), a)
    return FlatMean.apply(a, *queries_keys(a, b), v, radius)


class FlatMean(torch.autograd.Function):
    """See `flat_mean`; neighbours are found again in backward, a tile of queries at a time."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, q: Tensor, k: Tensor, v: Tensor, radius: float) -> Tensor:
        mean, total = (
            torch.empty_like(a.mT, memory_format=torch.contiguous_format),
            a.new_empty(*a.mT.shape[:2], 1),
        )
        for t in query_tiles(q.shape[-1], k.shape[-1]):
            weights = _reached(q[..., t], k, radius)
            total[:, t] = weights.sum(-1, keepdim=True)
            mean[:, t] = torch.where(total[:, t] > 0, weights @ v.mT / total[:, t].clamp(min=1), a[..., t].mT)
        ctx.save_for_backward(q, k, total)
        ctx.radius = radius
        return mean.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, total = ctx.saved_tensors
        back = grad.new_zeros(*k.mT.shape[:2], grad.shape[1])
        for t in query_tiles(q.shape[-1], k.shape[-1]):
            share = grad[..., t].mT / total[:, t].clamp(min=1)
            back = back.baddbmm_(_reached(q[..., t], k, ctx.radius).mT, share)
        return None, None, None, back.mT, None


class MeanShiftBase(Context):
    """Steps, bandwidth, and the way from one step's weights to the matrix of all."""

    def __init__(self, channels: int, *, steps: int, bandwidth: float | None, blurring: bool) -> None:
        super().__init__(channels)
        self.bandwidth = 0.5 * channels**0.5 if bandwidth is None else bandwidth
        if steps < 1:
            raise ValueError(f"{type(self).__name__}: steps must be 1 or more, got {steps}")
        if not self.bandwidth > 0:
            raise ValueError(f"{type(self).__name__}: bandwidth must be positive, got {bandwidth}")
        self.steps, self.blurring = steps, blurring

    def shift(self, z: Tensor, x: Tensor) -> Tensor:
        """One step of z, `(b, c, n)`, among the data x, `(b, c, n)`."""
        raise NotImplementedError

    def shares(self, z: Tensor, x: Tensor, rows: Tensor | None) -> Tensor:
        """The weights of that step, `(b, n, n)`, rows summing to 1."""
        raise NotImplementedError

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        z = tokens
        for _ in range(self.steps):
            z = self.shift(z, z if self.blurring else tokens)
        return z

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """`(b, n, n)`: the output as means of the input; of the last step, and with blurring of all."""
        self._check(x)
        with float32_island(x):
            tokens = layout.to_positions(widen(x))[0]
            z, matrix = tokens, None
            for step in range(self.steps):
                data, last = (z if self.blurring else tokens), step == self.steps - 1
                if last or self.blurring:
                    shares = self.shares(z, data, rows if last else None)
                    matrix = shares if matrix is None or not self.blurring else shares @ matrix
                z = z if last else self.shift(z, data)
            assert matrix is not None
            return matrix


@register("mean-shift", family="attention", title=TITLE, paper=PAPER, year=2002, row_sum=1.0, complexity="n^2")
class MeanShift(MeanShiftBase):
    """Mean shift with a Gaussian kernel. No parameters, no residual.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        steps: how often features move.
        bandwidth: h (None: half the square root of the channels).
        blurring: the data move along.
    """

    def __init__(
        self, channels: int, *, steps: int = 3, bandwidth: float | None = None, blurring: bool = False
    ) -> None:
        super().__init__(channels, steps=steps, bandwidth=bandwidth, blurring=blurring)

    def shift(self, z: Tensor, x: Tensor) -> Tensor:
        return gaussian_attention(*self.scaled(z, x), x)

    def shares(self, z: Tensor, x: Tensor, rows: Tensor | None) -> Tensor:
        return gaussian_matrix(*self.scaled(z, x), rows=rows)

    def scaled(self, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both over the bandwidth; one tensor if they are one."""
        scaled = z / self.bandwidth
        return scaled, scaled if z is x else x / self.bandwidth

    def mixing_cost(self, space: Space) -> int:
        return self.steps * math.prod(space) ** 2 * (2 * self.channels + 1)


@register(
    "mean-shift-flat", family="attention", title=TITLE, paper=PAPER, year=2002, row_sum=1.0, complexity="n^2"
)
class MeanShiftFlat(MeanShiftBase):
    """Mean shift with a flat kernel: the mean of all within the bandwidth. No parameters, no residual.

    Which features are near has no derivative; the gradient is that of the last mean.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        steps, blurring: as `mean-shift`.
        bandwidth: h (None: the square root of the channels).
    """

    def __init__(
        self, channels: int, *, steps: int = 3, bandwidth: float | None = None, blurring: bool = False
    ) -> None:
        bandwidth = channels**0.5 if bandwidth is None else bandwidth
        super().__init__(channels, steps=steps, bandwidth=bandwidth, blurring=blurring)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        z = tokens
        for step in range(self.steps):
            # While the data stay, only the last mean has a derivative.
            with torch.set_grad_enabled(torch.is_grad_enabled() and (self.blurring or step == self.steps - 1)):
                z = self.shift(z, z if self.blurring else tokens)
        return z

    def shift(self, z: Tensor, x: Tensor) -> Tensor:
        return flat_mean(z, x, x, self.bandwidth)

    def shares(self, z: Tensor, x: Tensor, rows: Tensor | None) -> Tensor:
        z = z if rows is None else z.index_select(-1, rows.to(z.device))
        weights = near(z, x, self.bandwidth)
        return weights / weights.sum(-1, keepdim=True)

    def mixing_cost(self, space: Space) -> int:
        return self.steps * math.prod(space) ** 2 * (2 * self.channels + 1)
