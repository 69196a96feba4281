# SPDX-License-Identifier: Apache-2.0
"""Expectation-maximisation for a mixture with r unit means: attention to r bases instead of n positions.

Paper   Expectation-Maximization Attention Networks for Semantic Segmentation, ICCV 2019, arXiv:1907.13426.
Facts   one step costs 2 r c n; each row of the responsibilities sums to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from widefield.core.numerics import normal_quantile, unit
from widefield.decomposition.method import Factors, State, decompose, similarities

EPSILON = 1e-6


def responsibilities(x: Tensor, bases: Tensor, temperature: float = 1.0) -> Tensor:
    """E-step: `softmax_r(x_i^T mu_r / temperature)`, `(b, n, r)`."""
    return torch.softmax(similarities(x, bases / temperature if temperature != 1 else bases), -1)


def means(x: Tensor, codes: Tensor, guard: float = EPSILON) -> Tensor:
    """M-step: the weighted means of x, as unit vectors (`v / (guard + |v|)`), `(b, c, r)`."""
    return unit((x @ codes) / (guard + codes.sum(1, keepdim=True)), 1, guard=guard)


def objective(x: Tensor, bases: Tensor, temperature: float = 1.0) -> Tensor:
    """`-sum_i log sum_r exp(x_i^T mu_r / temperature)` of each sample, `(b,)`: EM lowers it for fixed |mu|."""
    return -torch.logsumexp(x.mT @ (bases / temperature), -1).sum(1)


def em(x: Tensor, bases: Tensor, *, steps: int = 3, temperature: float = 1.0) -> Factors:
    """Means, and the responsibilities of the last E-step, of x, `(b, c, n)`, from bases `(b, c, r)`."""
    return decompose(EM(temperature), x, bases, steps=steps, gradient="unrolled")


@dataclass(frozen=True)
class EM:
    """EM as a `Method`. The state is the means and the responsibilities that made them.

    The paper reconstructs from the last E-step, made with the means before the last M-step.

    Args:
        temperature: of the responsibilities; 1 in the paper.
        guard: added to sums and norms before they divide; 1e-6 in the authors' code, 0 in mmsegmentation.
    """

    temperature: float = 1.0
    guard: float = EPSILON

    nonnegative = False

    def draw(self, uniform: Tensor) -> Tensor:
        return unit(normal_quantile(uniform), -2, guard=self.guard)

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def start(self, x: Tensor, bases: Tensor) -> State:
        # Never read: the first step makes the responsibilities. Uniform ones for a run of zero steps.
        return bases, x.new_full((x.shape[0], x.shape[2], bases.shape[2]), 1 / bases.shape[2])

    def step(self, state: State, x: Tensor) -> State:
        codes = responsibilities(x, state[0], self.temperature)
        return means(x, codes, self.guard), codes

    def finish(self, state: State, x: Tensor) -> Factors:
        return Factors(state[0], state[1])

    def finish_codes_only(self, state: State, x: Tensor) -> Factors:
        return Factors(state[0].detach(), responsibilities(x, state[0].detach(), self.temperature))

    def start_cost(self, c: int, n: int, r: int) -> int:
        return 0

    def step_cost(self, c: int, n: int, r: int) -> int:
        return 2 * n * c * r

    def finish_cost(self, c: int, n: int, r: int) -> int:
        return 0
