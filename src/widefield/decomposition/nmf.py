# SPDX-License-Identifier: Apache-2.0
"""Non-negative matrix factorisation: X ~ D C^T with D, C >= 0.

Paper   Lee and Seung, Algorithms for Non-negative Matrix Factorization, NIPS 2000 (multiplicative updates);
        Gillis and Glineur, Neural Computation 24 (2012), arXiv:1107.5194 (accelerated HALS);
        as context: Is Attention Better Than Matrix Decomposition?, ICLR 2021, arXiv:2109.04553.
Facts   one multiplicative step costs 2 r c n + 2 r^2 (c + n); what never rises is
        the objective plus the guard (1e-6) times the sum of both factors, as in Hoyer, NNSP 2002.
Differs the start is given, not drawn inside, so the same input has the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from widefield.core.numerics import unit
from widefield.decomposition.method import Factors, State, reconstruct, similarities

EPSILON = 1e-6


def _ratio(factor: Tensor, numerator: Tensor, denominator: Tensor) -> Tensor:
    """`factor * numerator / (denominator + eps)`, in place where nobody differentiates."""
    if torch.is_grad_enabled():
        return factor * numerator / (denominator + EPSILON)
    return numerator.mul_(factor).div_(denominator.add_(EPSILON))


def update_codes(x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
    """`C * (X^T D) / (C D^T D + eps)`."""
    return _ratio(codes, similarities(x, bases), codes @ (bases.mT @ bases))


def update_bases(x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
    """`D * (X C) / (D C^T C + eps)`."""
    return _ratio(bases, x @ codes, bases @ (codes.mT @ codes))


def objective(x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
    """`|X - D C^T|^2 / 2` of each sample, `(b,)`."""
    return 0.5 * (x - reconstruct(bases, codes)).square().sum((1, 2))


def check_nonnegative(x: Tensor) -> None:
    """Refuses negative entries.

    Raises:
        ValueError: with the smallest value.
    """
    if torch.compiler.is_compiling() or x.device.type == "meta":
        return
    smallest = float(x.detach().amin())
    if smallest < 0:
        raise ValueError(
            f"NMF factorises a non-negative matrix; the smallest value given is {smallest:.4g}. "
            "Clamp or rectify the input (torch.relu), or use concept decomposition, which takes any sign"
        )


def nmf(x: Tensor, bases: Tensor, *, steps: int = 6, codes: Tensor | None = None) -> Factors:
    """Multiplicative updates from the given bases.

    Args:
        x: `(b, c, n)`, not negative.
        bases: `(b, c, r)`, not negative.
        steps: each updates the codes, then the bases.
        codes: `(b, n, r)` to start from; softmax of `X^T D` if None.

    Raises:
        ValueError: a negative entry in x, with the smallest value.
    """
    check_nonnegative(x)
    method = NMF()
    state = method.start(x, bases) if codes is None else (bases, codes)
    for _ in range(steps):
        state = method.step(state, x)
    return Factors(state[0], state[1])


def _sweep(factor: Tensor, product: Tensor, gram: Tensor) -> Tensor:
    """One pass of coordinate descent over the r columns of a factor."""
    curvature = gram.diagonal(dim1=-2, dim2=-1)
    for k in range(factor.shape[-1]):
        scale = curvature[:, k, None]
        slope = product[..., k] - (factor @ gram[..., k, None])[..., 0]
        column = (factor[..., k] + slope / torch.where(scale > 0, scale, 1.0)).clamp(min=0)
        factor[..., k] = torch.where(scale > 0, column, factor[..., k])
    return factor


@torch.no_grad()
def nmf_hals(x: Tensor, bases: Tensor, *, steps: int = 6, inner: int = 2, codes: Tensor | None = None) -> Factors:
    """Accelerated hierarchical alternating least squares: fewer passes over X for the same objective.

    A pass over X costs r c n, a sweep over the columns of a factor only r^2 (c + n), so every product with X
    serves `inner` sweeps. Not differentiable: for `decompose` use `NMF`.

    Args, raises: as `nmf`; `inner` sweeps a half-step.
    """
    check_nonnegative(x)
    bases, codes = NMF().start(x, bases) if codes is None else (bases, codes)
    bases, codes = bases.clone(), codes.clone()
    for _ in range(steps):
        product, gram = x.mT @ bases, bases.mT @ bases
        for _ in range(inner):
            codes = _sweep(codes, product, gram)
        product, gram = x @ codes, codes.mT @ codes
        for _ in range(inner):
            bases = _sweep(bases, product, gram)
    return Factors(bases, codes)


@dataclass(frozen=True)
class NMF:
    """Multiplicative updates as a `Method`; the state is bases and codes."""

    nonnegative = True

    def draw(self, uniform: Tensor) -> Tensor:
        return unit(uniform, -2)

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def start(self, x: Tensor, bases: Tensor) -> State:
        return bases, torch.softmax(x.mT @ bases, -1)

    def step(self, state: State, x: Tensor) -> State:
        bases, codes = state
        codes = update_codes(x, bases, codes)
        return update_bases(x, bases, codes), codes

    def finish(self, state: State, x: Tensor) -> Factors:
        bases, codes = state
        return Factors(bases, update_codes(x, bases, codes))

    def finish_codes_only(self, state: State, x: Tensor) -> Factors:
        bases, codes = (s.detach() for s in state)
        return self.finish((bases, codes), x)

    def start_cost(self, c: int, n: int, r: int) -> int:
        return n * c * r

    def step_cost(self, c: int, n: int, r: int) -> int:
        return 2 * n * c * r + 2 * r * r * (n + c)

    def finish_cost(self, c: int, n: int, r: int) -> int:
        return n * c * r + r * r * (n + c)
