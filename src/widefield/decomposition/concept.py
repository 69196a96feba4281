# SPDX-License-Identifier: Apache-2.0
"""Concept decomposition: spherical k-means with soft assignments, then a ridge regression on the concepts.

Paper   Dhillon and Modha, Concept Decompositions for Large Sparse Text Data Using Clustering, Machine
        Learning 42 (2001); soft, as context: arXiv:2109.04553, ICLR 2021.
Facts   one step costs 2 r c n; takes any sign; the reconstruction is linear in X given the concepts.
Differs the directions of X enter through one division of the logits, not as a normalised copy of X; codes
        are divided by their sums only where they are returned, since a unit vector does not see them. The
        ridge system is solved by Cholesky, in float32, where the released code inverts; in an exported graph, by
        Newton-Schulz iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from widefield.core.numerics import inverse_length, normal_quantile, unit
from widefield.decomposition.method import Factors, State, decompose, reconstruct

EPSILON = 1e-6


class Directed(NamedTuple):
    """A matrix with the inverse length of each of its columns.

    Attributes:
        x: `(b, c, n)`.
        scale: `(b, n, 1)`, `1 / |x_i|`; zero where there is no direction.
    """

    x: Tensor
    scale: Tensor


def directed(x: Tensor) -> Directed:
    """x, `(b, c, n)`, with its inverse lengths.

    In one memory layout: a low temperature enlarges the last bit in which products of two layouts differ.
    """
    x = x.contiguous()
    return Directed(x, inverse_length(x, 1).mT)


def assign(prepared: Directed, bases: Tensor, temperature: float) -> Tensor:
    """`softmax_r(scale_i x_i^T d_r / temperature)`, `(b, n, r)`."""
    x, scale = prepared
    logits = x.mT @ (bases / temperature)
    if torch.is_grad_enabled():
        return torch.softmax(logits * scale, -1)
    return torch.softmax(logits.mul_(scale), -1)


def ridge(x: Tensor, bases: Tensor, beta: float) -> Tensor:
    """`X^T D (D^T D + beta I)^-1`: the codes that minimise `|X - D C^T|^2 + beta |C|^2`."""
    gram = bases.mT @ bases
    gram = gram + beta * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # The r x r inverse is applied to D, not to the n codes.
    if torch.compiler.is_exporting():
        weights = _newton_schulz_inverse(gram) @ bases.mT
    else:
        weights = torch.cholesky_solve(bases.mT, torch.linalg.cholesky(gram))
    return x.mT @ weights.mT


def _newton_schulz_inverse(gram: Tensor) -> Tensor:
    """The inverse of a positive definite matrix by products alone: ONNX has no Cholesky factorisation.

    Each step squares the error `I - A Y`, whose largest eigenvalue is at first `1 - smallest / (bound on the
    largest)`; 24 steps serve condition numbers up to 1e6.
    """
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    inverse = identity / gram.abs().sum(-1).amax(-1)[:, None, None]
    for _ in range(24):
        inverse = inverse @ (2 * identity - gram @ inverse)
    return inverse


def objective(x: Tensor, bases: Tensor, codes: Tensor, beta: float = 0.1) -> Tensor:
    """`(|X - D C^T|^2 + beta |C|^2) / 2` of each sample, `(b,)`: what `ridge` minimises in C."""
    return 0.5 * ((x - reconstruct(bases, codes)).square().sum((1, 2)) + beta * codes.square().sum((1, 2)))


def concept_decomposition(
    x: Tensor, bases: Tensor, *, steps: int = 6, temperature: float = 0.1, beta: float = 0.1
) -> Factors:
    """Concepts and ridge codes of x, `(b, c, n)`, from bases `(b, c, r)`."""
    return decompose(ConceptDecomposition(temperature, beta), x, bases, steps=steps, gradient="unrolled")


@dataclass(frozen=True)
class ConceptDecomposition:
    """Spherical soft k-means as a `Method`; the state is the concepts, which determine the codes.

    Args:
        temperature: of the assignment, 1 / tau of the paper; the authors recommend 0.1 or 0.01. At 0.01 the steps
            enlarge rounding: the same picture alone and in a batch then differs by 1e-4 in float32.
        beta: of the ridge regression; 0.1, in the authors' GAN code 0.01.
    """

    temperature: float = 0.1
    beta: float = 0.1

    nonnegative = False

    def draw(self, uniform: Tensor) -> Tensor:
        return unit(normal_quantile(uniform), -2)

    def prepare(self, x: Tensor) -> Directed:
        return directed(x)

    def start(self, prepared: Directed, bases: Tensor) -> State:
        return (bases,)

    def step(self, state: State, prepared: Directed) -> State:
        (bases,) = state
        codes = assign(prepared, bases, self.temperature)
        return (unit(prepared.x @ codes, 1),)

    def step_codes(self, bases: Tensor, prepared: Directed) -> Tensor:
        """Assignments to these bases, each concept's divided by their sum."""
        codes = assign(prepared, bases, self.temperature)
        return codes / (EPSILON + codes.sum(1, keepdim=True))

    def finish(self, state: State, prepared: Directed) -> Factors:
        (bases,) = state
        return Factors(bases, ridge(prepared.x, bases, self.beta))

    def finish_codes_only(self, state: State, prepared: Directed) -> Factors:
        return self.finish(tuple(s.detach() for s in state), prepared)

    def start_cost(self, c: int, n: int, r: int) -> int:
        return 0

    def step_cost(self, c: int, n: int, r: int) -> int:
        return 2 * n * c * r

    def finish_cost(self, c: int, n: int, r: int) -> int:
        return n * c * r + 2 * c * r * r + round(r**3 / 6)
