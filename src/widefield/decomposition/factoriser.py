# SPDX-License-Identifier: Apache-2.0
"""The decomposition as a layer on positions: where it starts, how many heads, which axis, what moves.

Differs the start does not change in evaluation, so the same image has the same answer. The released code draws
        new bases on every call, in evaluation too; and moves its "online" bases in evaluation, never in
        training. Here random bases are drawn in training only and online bases move in training only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from widefield.core.errors import unknown
from widefield.core.layout import to_map
from widefield.core.moving import Starts, move_
from widefield.core.numerics import float32_island, unit, widen
from widefield.decomposition.method import HAM_GRADIENTS, Factors, Method, decompose, reconstruct

BASES = ("fixed", "random", "online")
Enter = Callable[[Tensor], Tensor]
ONLINE_RATE = 0.9


def spread(rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Evenly spread numbers in (0, 1), `(rows, columns)`, without any generator: an additive recurrence.

    Column j is `frac(i alpha_j + 1/2)` with alpha_j the fractional part of the square root of an integer that
    is no square. A start for bases whose length is the number of positions, which no buffer can hold.
    """
    roots = (math.sqrt(k) for k in itertools.count(2) if math.isqrt(k) ** 2 != k)
    alpha = torch.tensor(list(itertools.islice(roots, columns)), device=device, dtype=torch.float64)
    index = torch.arange(1, rows + 1, device=device, dtype=torch.float64)
    value = (index[:, None] * alpha + 0.5).frac()
    return value.clamp(1e-4, 1 - 1e-4).to(dtype)


class SpatialHam(nn.Module):
    """`(b, c, n) -> (b, c, n)`: bases are feature vectors, codes say how much of each a position has.

    Channels are split into `heads` blocks, each decomposed on its own.

    Args:
        method: the decomposition.
        channels: c, divisible by heads.
        rank: bases of each head.
        heads: blocks of channels.
        steps, eval_steps: of the optimiser in training and in evaluation (None: the same).
        gradient, terms: as in `decompose`.
        bases: "fixed" starts every call from the buffer `bases`; "random" from fresh numbers of the global
            generator in training, and the buffer in evaluation; "online" moves the buffer towards the found
            bases in training: `D + 0.9 (mean D - D)`, unit vectors again.

    Attributes:
        generator: of the random bases; None is the global one.
        moving: whether training moves "online" bases. Freezing parameters with `requires_grad_(False)` does not
            stop the buffer: set `moving = False` or call `eval()`.
    """

    bases: Tensor
    gradients = HAM_GRADIENTS
    moving = True
    generator: torch.Generator | None = None

    def __init__(
        self,
        method: Method,
        channels: int,
        *,
        rank: int,
        heads: int,
        steps: int,
        eval_steps: int | None,
        gradient: str,
        terms: int,
        bases: str,
    ) -> None:
        super().__init__()
        if gradient not in HAM_GRADIENTS:
            raise unknown("gradient", gradient, HAM_GRADIENTS)
        if bases not in BASES:
            raise unknown("bases", bases, BASES)
        if rank < 1 or heads < 1 or steps < 0 or (eval_steps is not None and eval_steps < 0):
            raise ValueError(
                f"rank and heads must be at least 1, steps and eval_steps not negative; got rank={rank}, "
                f"heads={heads}, steps={steps}, eval_steps={eval_steps}"
            )
        if channels % heads:
            raise ValueError(f"{channels} channels cannot be split into {heads} heads; choose a divisor")
        self.method, self.rank, self.heads, self.start = method, rank, heads, bases
        self.steps, self.eval_steps = steps, steps if eval_steps is None else eval_steps
        self.gradient, self.terms = gradient, terms
        self.length = channels // heads
        self.starts = Starts()
        self._make_bases()

    def _make_bases(self) -> None:
        generator = torch.Generator().manual_seed(0)
        uniform = torch.rand(self.heads, self.length, self.rank, generator=generator)
        self.register_buffer("bases", self.method.draw(uniform.clamp(1e-6, 1 - 1e-6)))

    @property
    def moves(self) -> bool:
        """Whether a forward now moves the bases."""
        return self.training and self.moving and self.start == "online"

    def matrix(self, x: Tensor) -> Tensor:
        """`(b, c, n)` to the matrices that are decomposed, `(b heads, length, positions)`."""
        return x.unflatten(1, (self.heads, self.length)).flatten(0, 1)

    def starting_bases(self, matrix: Tensor) -> Tensor:
        """`(b heads, length, rank)` for these matrices."""
        if self.training and self.start == "random":
            return self._random(matrix)
        bases = self.starts.of(self.bases, matrix) if self.moves else self.bases
        return bases.to(matrix.dtype).repeat(matrix.shape[0] // self.heads, 1, 1)

    def _random(self, matrix: Tensor) -> Tensor:
        shape = (*matrix.shape[:2], self.rank)
        uniform = torch.rand(shape, generator=self.generator, device=matrix.device, dtype=matrix.dtype)
        return self.method.draw(uniform.clamp(1e-6, 1 - 1e-6))

    def factors(self, x: Tensor, *, watch: bool = False) -> Factors:
        """Bases `(b heads, length, rank)` and codes of x, `(b, c, n)`; with status if `watch`."""
        matrix = self.matrix(x)
        return decompose(
            self.method,
            matrix,
            self.starting_bases(matrix),
            steps=self.steps if self.training else self.eval_steps,
            gradient=self.gradient,
            terms=self.terms,
            watch=watch,
        )

    def forward(self, x: Tensor) -> Tensor:
        found = self.factors(x)
        if self.moves:
            self.move(found.bases)
        return self.unmatrix(reconstruct(found.bases, found.codes))

    def unmatrix(self, y: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        return y.unflatten(0, (-1, self.heads)).flatten(1, 2)

    @torch.no_grad()
    def move(self, found: Tensor) -> None:
        """The online update, from the bases found on one batch."""
        mean = found.detach().unflatten(0, (-1, self.heads)).mean(0)
        move_(self.bases, mean, ONLINE_RATE)
        self.bases.copy_(unit(self.bases, -2))

    def codes_map(self, x: Tensor) -> Tensor:
        """How much of each basis every position has, `(b, heads rank, n)`."""
        return self.factors(x).codes.mT.unflatten(0, (-1, self.heads)).flatten(1, 2)

    def mixing_cost(self, n: int) -> int:
        """Multiply-adds of one evaluation on n positions, for one sample."""
        return self._cost(self.length, n)

    def _cost(self, length: int, n: int) -> int:
        m, r = self.method, self.rank
        iterated = self.eval_steps * m.step_cost(length, n, r)
        return self.heads * (m.start_cost(length, n, r) + iterated + m.finish_cost(length, n, r) + length * n * r)


class ChannelHam(SpatialHam):
    """`(b, c, n) -> (b, c, n)`: bases are maps over positions, codes say how much of each a channel has.

    The bases are as long as the map, so no buffer holds them: the start is spread evenly, for any size, and
    cannot move online.
    """

    def _make_bases(self) -> None:
        if self.start == "online":
            raise ValueError(
                "a channel ham has bases as long as the map, which cannot be kept from image to image; "
                "take bases='fixed' or bases='random'"
            )

    def matrix(self, x: Tensor) -> Tensor:
        return super().matrix(x).mT

    def unmatrix(self, y: Tensor) -> Tensor:
        return super().unmatrix(y.mT)

    def starting_bases(self, matrix: Tensor) -> Tensor:
        if self.training and self.start == "random":
            return self._random(matrix)
        batch, length = matrix.shape[:2]
        return self.method.draw(spread(length, self.rank, matrix.device, matrix.dtype)).expand(batch, -1, -1)

    def codes_map(self, x: Tensor) -> Tensor:
        return self.factors(x).bases.mT.unflatten(0, (-1, self.heads)).flatten(1, 2)

    def mixing_cost(self, n: int) -> int:
        return self._cost(n, self.length)


def solve(enter: Enter, ham: SpatialHam, x: Tensor) -> Factors:
    """The factors that a ham finds for what `enter` makes of x, with how the iteration went."""
    with float32_island(x), torch.no_grad():
        return ham.factors(enter(widen(x).flatten(2)), watch=True)


def codes_map(enter: Enter, ham: SpatialHam, x: Tensor) -> Tensor:
    """`(b, heads rank, *space)` coefficient maps of a ham for what `enter` makes of x."""
    with float32_island(x), torch.no_grad():
        return to_map(ham.codes_map(enter(widen(x).flatten(2))), tuple(x.shape[2:]))
