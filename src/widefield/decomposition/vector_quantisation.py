# SPDX-License-Identifier: Apache-2.0
"""Soft vector quantisation: every position is a convex combination of r code words.

Not to be confused with concept decomposition, whose words are unit vectors and whose codes are a regression.

Paper   Gray and Neuhoff, Quantization, IEEE Trans. Information Theory 44 (1998); soft, as context:
        arXiv:2109.04553, ICLR 2021.
Facts   one step costs 2 r c n; each row of the codes sums to 1.
Differs the sums divide the r words, not the n codes: the same numbers, less work. The released code detaches
        the norm of x in the closing assignment; that is kept in "codes_only" and differentiated elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from widefield.core.numerics import guarded, normal_quantile, unit
from widefield.decomposition.concept import EPSILON, Directed, assign, directed
from widefield.decomposition.method import Factors, State, decompose


def objective(x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
    """`sum over i, r of c_ir |x_i - d_r|^2 / 2` of each sample, `(b,)`: the soft distortion."""
    squares = x.square().sum(1)[..., None] - 2 * (x.mT @ bases) + bases.square().sum(1)[:, None]
    return 0.5 * (codes * squares).sum((1, 2))


def soft_vq(x: Tensor, bases: Tensor, *, steps: int = 6, temperature: float = 0.1) -> Factors:
    """Code words and soft assignments of x, `(b, c, n)`, from bases `(b, c, r)`."""
    return decompose(SoftVQ(temperature), x, bases, steps=steps, gradient="unrolled")


@dataclass(frozen=True)
class SoftVQ:
    """Soft k-means on directions as a `Method`; the state is the words, which determine the codes.

    Args:
        temperature: of the assignment, 1 / tau of the paper.
    """

    temperature: float = 0.1

    nonnegative = False

    def draw(self, uniform: Tensor) -> Tensor:
        return unit(normal_quantile(uniform), -2)

    def prepare(self, x: Tensor) -> Directed:
        return directed(x)

    def start(self, prepared: Directed, bases: Tensor) -> State:
        return (bases,)

    def step(self, state: State, prepared: Directed) -> State:
        (bases,) = state
        codes = assign(prepared, unit(bases, 1), self.temperature)
        return ((prepared.x @ codes) / (EPSILON + codes.sum(1, keepdim=True)),)

    def step_codes(self, bases: Tensor, prepared: Directed) -> Tensor:
        """Assignments to these words, each word's divided by their sum."""
        codes = assign(prepared, unit(bases, 1), self.temperature)
        return codes / (EPSILON + codes.sum(1, keepdim=True))

    def finish(self, state: State, prepared: Directed) -> Factors:
        (bases,) = state
        x, scale = prepared
        closing = Directed(x, guarded(scale, EPSILON))
        return Factors(bases, assign(closing, unit(bases, 1), self.temperature))

    def finish_codes_only(self, state: State, prepared: Directed) -> Factors:
        held = Directed(prepared.x, prepared.scale.detach())
        return self.finish(tuple(s.detach() for s in state), held)

    def start_cost(self, c: int, n: int, r: int) -> int:
        return 0

    def step_cost(self, c: int, n: int, r: int) -> int:
        return 2 * n * c * r

    def finish_cost(self, c: int, n: int, r: int) -> int:
        return n * c * r
