# SPDX-License-Identifier: Apache-2.0
"""The backward half of a fixed point: v = g + J^T v, without ever forming J.

J is the Jacobian of one step at the solution. Its transpose is applied by back-propagating through one
evaluation of the step, so memory does not grow with the number of steps taken forward.

Paper   Deep Equilibrium Models, NeurIPS 2019, arXiv:1909.01377 (implicit function theorem);
        Saad and Schultz, GMRES, SIAM J. Sci. Stat. Comput. 7 (1986).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Tensors = tuple[Tensor, ...]
TransposedJacobian = Callable[[Tensors], Tensors]


class AdjointFailure(UserWarning):
    """The adjoint system was not solved to the tolerance: the gradient is approximate, and says so."""


@dataclass
class AdjointReport:
    """Filled in by the backward pass.

    Attributes:
        residual: `(b,)` |g + J^T v - v| / |g| of each sample; None before the backward.
        iterations: applications of J^T.
        tolerance: what was asked for.
    """

    tolerance: float
    residual: Tensor | None = None
    iterations: int = 0

    @property
    def converged(self) -> bool:
        """Whether every sample met the tolerance (False before the backward)."""
        return self.residual is not None and bool((self.residual <= self.tolerance).all())


def neumann(transposed: TransposedJacobian, gradient: Tensors, terms: int) -> Tensors:
    """`sum over i <= terms of (J^T)^i g`; no term beyond g itself is the one-step gradient."""
    total, power = gradient, gradient
    for _ in range(terms):
        power = transposed(power)
        total = tuple(t + p for t, p in zip(total, power, strict=True))
    return total


def gmres(
    transposed: TransposedJacobian, gradient: Tensors, *, tolerance: float, iterations: int
) -> tuple[Tensors, Tensor, int]:
    """Solves `(I - J^T) v = g` for each sample on its own Krylov space, in one batch.

    Args:
        transposed: applies J^T to a tuple of `(b, ...)` tensors.
        gradient: g, the same shapes.
        tolerance: on |g - (I - J^T) v| / |g| per sample.
        iterations: at most so many applications of J^T; also the memory, in copies of the state.

    Returns:
        v, the relative residual `(b,)`, the applications used.
    """
    batch = gradient[0].shape[0]
    shapes = [g.shape for g in gradient]
    sizes = [g[0].numel() for g in gradient]

    def pack(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([p.reshape(batch, -1) for p in parts], 1)

    def unpack(flat: Tensor) -> Tensors:
        return tuple(p.reshape(s) for p, s in zip(flat.split(sizes, 1), shapes, strict=True))

    g = pack(gradient)
    norm = torch.linalg.vector_norm(g, dim=1)
    safe = torch.where(norm > 0, norm, 1.0)
    basis = [g / safe[:, None]]
    hessenberg = g.new_zeros(batch, iterations + 1, iterations)
    solution, residual = torch.zeros_like(g), torch.where(norm > 0, 1.0, 0.0).to(g.dtype)
    used = 0
    for k in range(iterations):
        if bool((residual <= tolerance).all()):
            break
        w = basis[k] - pack(transposed(unpack(basis[k])))
        used += 1
        # Two passes of Gram-Schmidt keep the basis orthogonal in float32.
        for _ in range(2):
            for i, q in enumerate(basis):
                h = (q * w).sum(1)
                hessenberg[:, i, k] += h
                w = w - h[:, None] * q
        length = torch.linalg.vector_norm(w, dim=1)
        hessenberg[:, k + 1, k] = length
        # A zero length is the happy breakdown: the sample is solved and its further directions are zero.
        alive = length > torch.finfo(g.dtype).eps * safe.clamp(max=1.0)
        basis.append(torch.where(alive[:, None], w / torch.where(alive, length, 1.0)[:, None], 0.0))
        right = g.new_zeros(batch, k + 2, 1)
        right[:, 0, 0] = norm
        left = hessenberg[:, : k + 2, : k + 1]
        y = torch.linalg.pinv(left, rtol=torch.finfo(g.dtype).eps * 10) @ right
        residual = torch.linalg.vector_norm(right - left @ y, dim=(1, 2)) / safe
        solution = torch.einsum("kbm,bk->bm", torch.stack(basis[: k + 1]), y[:, :, 0])
    return unpack(solution), residual, used


class Adjoint(torch.autograd.Function):
    """Identity forward; backward replaces the incoming gradient g by what `solve` makes of it."""

    @staticmethod
    def forward(ctx, solve: Callable[[Tensors], Tensors], *state: Tensor) -> Tensors:
        ctx.solve = solve
        ctx.set_materialize_grads(True)
        return tuple(s.view_as(s) for s in state)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.solve(gradient))


def solve_implicit(
    transposed: TransposedJacobian, gradient: Tensors, report: AdjointReport, iterations: int
) -> Tensors:
    """GMRES on the adjoint system; warns with `AdjointFailure` where the tolerance is not met."""
    solution, residual, used = gmres(transposed, gradient, tolerance=report.tolerance, iterations=iterations)
    report.residual, report.iterations = residual, used
    if not report.converged:
        warnings.warn(
            f"the adjoint system of the implicit gradient was left at a relative residual of "
            f"{float(residual.max()):.1e} after {used} applications of the transposed Jacobian; asked for "
            f"{report.tolerance:.1e}. Allow more adjoint_steps, or take gradient='one_step'.",
            AdjointFailure,
            stacklevel=2,
        )
    return solution
