# SPDX-License-Identifier: Apache-2.0
"""Expectation-maximisation attention (EMA): the whole map explained by a few bases that outlive the image.

Paper   Expectation-Maximization Attention Networks for Semantic Segmentation, ICCV 2019, arXiv:1907.13426.
Facts   cost 2 t r c n + projections; context of rank <= r; rows of the responsibilities sum to 1.
Differs the released code back-propagates nothing through EM, so its first convolution never trains;
        gradient="stopped" is that. The bases move inside forward (training only, one update a forward, equal on
        all ranks), where the original's training script moved them outside and let ranks diverge. The norm
        has torch's momentum, not 3e-4 (see `hamburger.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.core.context import Context
from widefield.core.errors import unknown
from widefield.core.layout import Space, to_map
from widefield.core.moving import Starts, move_
from widefield.core.norm import NormName, make_norm
from widefield.core.numerics import float32_island, unit, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register
from widefield.decomposition.em import EM, EPSILON
from widefield.decomposition.hamburger import initialise_breads
from widefield.decomposition.method import Factors, decompose, reconstruct
from widefield.implicit.fixed_point import GRADIENTS

TITLE = "Expectation-Maximization Attention Networks for Semantic Segmentation"
EM_GRADIENTS = (*GRADIENTS, "stopped")


class EMAttention(Context):
    """EM alone: every position replaced by its expectation under the mixture, `mu z^T`. No parameters.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        rank: K, number of bases.
        steps: T, of EM.
        gradient: "one_step", "unrolled", "neumann", "implicit", or "stopped": the output is a constant, as in
            the released code.
        terms: of the Neumann series.
        momentum: weight of the old bases in the moving average.
        renormalise: the batch mean becomes unit vectors before it is averaged in (mmsegmentation does).
        guard: added to sums and norms before they divide (mmsegmentation: 0).
        moving: whether training moves the bases; also an attribute. Freezing parameters with
            `requires_grad_(False)` does not stop the buffer: set `module.moving = False` or call `eval()`.
    """

    bases: Tensor
    gradients = EM_GRADIENTS

    def __init__(
        self,
        channels: int,
        *,
        rank: int = 64,
        steps: int = 3,
        gradient: str = "one_step",
        terms: int = 5,
        momentum: float = 0.9,
        renormalise: bool = False,
        guard: float = EPSILON,
        moving: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        if gradient not in EM_GRADIENTS:
            raise unknown("gradient", gradient, EM_GRADIENTS)
        if rank < 1 or steps < 1 or not 0 <= momentum <= 1:
            raise ValueError(
                f"rank and steps must be at least 1 and momentum in [0, 1]; got rank={rank}, steps={steps}, "
                f"momentum={momentum}"
            )
        self.method, self.rank, self.steps = EM(guard=guard), rank, steps
        self.gradient, self.terms = gradient, terms
        self.momentum, self.renormalise, self.moving = momentum, renormalise, moving
        self.starts = Starts()
        generator = torch.Generator().manual_seed(0)
        uniform = torch.rand(1, channels, rank, generator=generator)
        self.register_buffer("bases", self.method.draw(uniform.clamp(1e-6, 1 - 1e-6)))
        self.to(device=device, dtype=dtype)

    def factors(self, tokens: Tensor, *, watch: bool = False) -> Factors:
        """Bases `(b, c, r)` and responsibilities `(b, n, r)` of `(b, c, n)`."""
        # A copy: the buffer may move before a backward pass still to come has read it.
        bases = self.starts.of(self.bases, tokens) if self.training and self.moving else self.bases.clone()
        start = bases.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        if self.gradient == "stopped":
            with torch.no_grad():
                return decompose(self.method, tokens, start, steps=self.steps, watch=watch)
        return decompose(
            self.method, tokens, start, steps=self.steps, gradient=self.gradient, terms=self.terms, watch=watch
        )

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        bases, codes, _ = self.factors(tokens)
        if self.training and self.moving:
            self.move(bases)
        return reconstruct(bases, codes)

    @torch.no_grad()
    def move(self, found: Tensor) -> None:
        """`mu_0 <- momentum mu_0 + (1 - momentum) mean mu`, from the bases found on one batch."""
        mean = found.detach().mean(0, keepdim=True)
        move_(self.bases, unit(mean, 1, guard=self.method.guard) if self.renormalise else mean, 1 - self.momentum)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def solve(self, x: Tensor) -> Factors:
        """Factors and status of x, `(b, channels, *space)`."""
        with float32_island(x), torch.no_grad():
            return self.factors(self.enter(widen(x).flatten(2)), watch=True)

    def codes_map(self, x: Tensor) -> Tensor:
        """`(b, rank, *space)`: the responsibility of each basis for a position."""
        return to_map(self.solve(x).codes.mT, tuple(x.shape[2:]))

    def mixing_cost(self, space: Space) -> int:
        n = math.prod(space)
        return self.steps * self.method.step_cost(self.channels, n, self.rank) + self.channels * n * self.rank


register(
    "em-attention", family="decomposition", title=TITLE, paper="arXiv:1907.13426", year=2019, iterative=True,
    has_state=True, exact_gradient=False, max_rank="rank",
)(EMAttention)  # fmt: skip


@register("emau", family="decomposition", title=TITLE, paper="arXiv:1907.13426", year=2019, iterative=True,
          has_state=True, exact_gradient=False, max_rank="rank")  # fmt: skip
class EMAU(EMAttention):
    """The unit of EMANet: `ReLU(x + norm(W_2 ReLU(EM(W_1 x))))`.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        rank: K, number of bases.
        steps: T, of EM.
        gradient: "one_step", "unrolled", "neumann", "implicit", or "stopped": nothing passes through EM, as in
            the released code; then `lower` never trains.
        terms: of the Neumann series.
        momentum: weight of the old bases in the moving average.
        renormalise: the batch mean becomes unit vectors before it is averaged in (mmsegmentation does).
        guard: added to sums and norms before they divide (mmsegmentation: 0).
        moving: whether training moves the bases; also an attribute. Freezing parameters with
            `requires_grad_(False)` does not stop the buffer: set `module.moving = False` or call `eval()`.
        norm: after the second projection.
    """

    def __init__(
        self,
        channels: int,
        *,
        rank: int = 64,
        steps: int = 3,
        gradient: str = "one_step",
        terms: int = 5,
        momentum: float = 0.9,
        renormalise: bool = False,
        guard: float = EPSILON,
        moving: bool = True,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, rank=rank, steps=steps, gradient=gradient, terms=terms, momentum=momentum,
            renormalise=renormalise, guard=guard, moving=moving,
        )  # fmt: skip
        self.lower = Pointwise(channels, channels)
        self.upper = Pointwise(channels, channels, bias=False)
        self.norm = make_norm(norm, channels)
        initialise_breads(self)
        self.to(device=device, dtype=dtype)

    def enter(self, tokens: Tensor) -> Tensor:
        return self.lower(tokens)

    def leave(self, context: Tensor) -> Tensor:
        return self.norm(self.upper(torch.relu(context)))

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x + y)
