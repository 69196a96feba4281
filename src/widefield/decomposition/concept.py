# SPDX-License-Identifier: Apache-2.0
"""Concept decomposition: spherical k-means with soft assignments, then a ridge regression on the concepts.

Paper   Dhillon and Modha, Concept Decompositions for Large Sparse Text Data Using Clustering, Machine
        Learning 42 (2001); soft, as context: arXiv:2109.04553, ICLR 2021.
Facts   one step costs 2 r c n; takes any sign; the reconstruction is linear in X given the concepts.
Differs the directions of X enter through one division of the logits, not as a normalised copy of X; codes
        are divided by their sums only where they are returned, since a unit vector does not see them. The
        ridge system is solved by Cholesky, in float32, where the released code inverts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from widefield.core.numerics import tiny, unit
from widefield.decomposition.method import Factors, State, reconstruct

EPSILON = 1e-6


def inverse_norm(x: Tensor, guard: float = 0.0) -> Tensor:
    """`1 / (guard + |x_i|)` of every position, `(b, c, n) -> (b, n, 1)`; zero where there is no direction."""
    squared = (x * x).sum(1)
    alive = squared > tiny(x.dtype) ** 2
    norm = torch.where(alive, squared, 1.0).sqrt()
    return torch.where(alive, 1 / (norm + guard), 0.0)[..., None]


def assign(x: Tensor, bases: Tensor, temperature: float, scale: Tensor) -> Tensor:
    """`softmax_r(scale_i x_i^T d_r / temperature)`, `(b, n, r)`."""
    logits = x.mT @ (bases / temperature)
    if torch.is_grad_enabled():
        return torch.softmax(logits * scale, -1)
    return torch.softmax(logits.mul_(scale), -1)


def ridge(x: Tensor, bases: Tensor, beta: float) -> Tensor:
    """`X^T D (D^T D + beta I)^-1`: the codes that minimise `|X - D C^T|^2 + beta |C|^2`."""
    gram = bases.mT @ bases
    gram = gram + beta * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # The r x r inverse is applied to D, not to the n codes.
    weights = torch.cholesky_solve(bases.mT, torch.linalg.cholesky(gram))
    return x.mT @ weights.mT


def objective(x: Tensor, bases: Tensor, codes: Tensor, beta: float = 0.1) -> Tensor:
    """`(|X - D C^T|^2 + beta |C|^2) / 2` of each sample, `(b,)`: what `ridge` minimises in C."""
    return 0.5 * ((x - reconstruct(bases, codes)).square().sum((1, 2)) + beta * codes.square().sum((1, 2)))


def concept_decomposition(
    x: Tensor, bases: Tensor, *, steps: int = 6, temperature: float = 0.01, beta: float = 0.1
) -> Factors:
    """Concepts and ridge codes of x, `(b, c, n)`, from bases `(b, c, r)`."""
    method = ConceptDecomposition(temperature, beta)
    state = method.start(x, bases)
    for _ in range(steps):
        state = method.step(state, x)
    return method.finish(state, x)


@dataclass(frozen=True)
class ConceptDecomposition:
    """Spherical soft k-means as a `Method`; the state is the concepts, which determine the codes.

    Args:
        temperature: of the assignment, 1 / tau of the paper; 0.01 and 0.1 are in use.
        beta: of the ridge regression; 0.1, in the authors' GAN code 0.01.
    """

    temperature: float = 0.01
    beta: float = 0.1

    nonnegative = False

    def draw(self, uniform: Tensor) -> Tensor:
        return unit(torch.special.ndtri(uniform), -2)

    def start(self, x: Tensor, bases: Tensor) -> State:
        return (bases,)

    def step(self, state: State, x: Tensor) -> State:
        (bases,) = state
        codes = assign(x, bases, self.temperature, inverse_norm(x))
        return (unit(x @ codes, 1),)

    def step_codes(self, bases: Tensor, x: Tensor) -> Tensor:
        """Assignments to these bases, each concept's divided by their sum."""
        codes = assign(x, bases, self.temperature, inverse_norm(x))
        return codes / (EPSILON + codes.sum(1, keepdim=True))

    def finish(self, state: State, x: Tensor) -> Factors:
        (bases,) = state
        return Factors(bases, ridge(x, bases, self.beta))

    def finish_codes_only(self, state: State, x: Tensor) -> Factors:
        return self.finish(tuple(s.detach() for s in state), x)

    def start_cost(self, c: int, n: int, r: int) -> int:
        return 0

    def step_cost(self, c: int, n: int, r: int) -> int:
        return 2 * n * c * r

    def finish_cost(self, c: int, n: int, r: int) -> int:
        return n * c * r + 2 * c * r * r + -(-(r**3) // 6)
