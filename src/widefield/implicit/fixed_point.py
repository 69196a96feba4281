# SPDX-License-Identifier: Apache-2.0
"""z = F(z, x): iterate without memory, differentiate as you choose.

Paper   Is Attention Better Than Matrix Decomposition?, ICLR 2021, arXiv:2109.04553, section 2.3 (one-step
        gradient); Deep Equilibrium Models, NeurIPS 2019, arXiv:1909.01377 (implicit).

The forward value does not depend on the gradient. With J the Jacobian of one step in z at the solution and
B the one in x (and in whatever parameters F closes over), the gradient of the output in x is

    one_step    B^T g                              the last step alone; memory of one step
    neumann     B^T (I + J^T + ... + (J^T)^k) g    k more terms; memory of one step
    implicit    B^T (I - J^T)^-1 g                 exact at convergence; memory of the Krylov space
    unrolled    back-propagation through all steps; exact always; memory grows with the steps

Example: an equilibrium layer. `step` may close over parameters; they get their gradients too.

>>> import torch
>>> weight = torch.nn.Parameter(0.1 * torch.randn(8, 8))
>>> x = torch.randn(4, 8)
>>> z = fixed_point(lambda z, x: torch.tanh(z @ weight + x), torch.zeros(4, 8), x, steps=30,
...                 gradient="implicit").state
>>> z.sum().backward()
>>> weight.grad.shape
torch.Size([8, 8])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widefield.core.errors import unknown
from widefield.core.status import Outcome, Status
from widefield.implicit.adjoint import Adjoint, AdjointReport, Tensors, neumann, solve_implicit

GRADIENTS = ("one_step", "unrolled", "neumann", "implicit")


class Solution(NamedTuple):
    """What an iteration found and how it went.

    Attributes:
        state: a tensor or a tuple of tensors, as the initial state was.
        status: per sample; None where `watch=False`.
        adjoint: for gradient="implicit": filled in by the backward pass.
    """

    state: Any
    status: Status | None
    adjoint: AdjointReport | None = None


def fixed_point(
    step: Callable[[Any, Any], Any],
    state: Tensor | Tensors,
    x: Any,
    *,
    steps: int,
    gradient: str = "one_step",
    terms: int = 5,
    tolerance: float | None = None,
    adjoint_steps: int = 50,
    adjoint_tolerance: float = 1e-6,
    watch: bool = True,
) -> Solution:
    """Iterates `state = step(state, x)`.

    Args:
        step: F. Takes and returns a state; every tensor of it is `(b, ...)`.
        state: where to start: a tensor or a tuple of tensors.
        x: the input, handed to every step: a tensor, or a tuple of tensors.
        steps: how many, or at most how many where a tolerance is given.
        gradient: "one_step", "unrolled", "neumann" or "implicit".
        terms: of the Neumann series beyond the one-step gradient.
        tolerance: stop each sample where |z_t - z_{t-1}| <= tolerance |z_t|. None runs exactly `steps`
            steps, as does every graph that is compiled or exported.
        adjoint_steps: at most so many applications of J^T in the implicit backward.
        adjoint_tolerance: relative residual asked of it.
        watch: compute the status (two norms of the state a step).

    Returns:
        The solution. Nothing raises because an iteration failed: the status says so, per sample.

    Raises:
        UnknownName: no such gradient. ValueError: negative steps or terms.
    """
    if gradient not in GRADIENTS:
        raise unknown("gradient", gradient, GRADIENTS)
    if steps < 0 or terms < 0 or adjoint_steps < 1:
        raise ValueError(
            f"steps and terms must not be negative and adjoint_steps at least 1, got steps={steps}, "
            f"terms={terms}, adjoint_steps={adjoint_steps}"
        )
    single = isinstance(state, Tensor)
    start: Tensors = (state,) if isinstance(state, Tensor) else tuple(state)

    def one(z: Tensors, x: Any) -> Tensors:
        result = step(z[0] if single else z, x)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    loop = _Loop(one, x, steps, None if torch.compiler.is_compiling() else tolerance, watch)
    report = None
    if gradient == "unrolled" or not torch.is_grad_enabled() or steps == 0:
        _, z = loop.run(start, steps)
    else:
        with torch.no_grad():
            previous, z = loop.run(tuple(s.detach() for s in start), steps - (loop.tolerance is None))
        before = z if loop.tolerance is None else previous
        before = tuple(s.detach() for s in before)
        z = one(before, x)
        if loop.tolerance is None:
            loop.observe(before, z)
        if gradient in ("neumann", "implicit") and any(s.requires_grad for s in z):
            report = AdjointReport(adjoint_tolerance) if gradient == "implicit" else None
            z = Adjoint.apply(_backward(one, z, x, terms, adjoint_steps, report), *z)
    return Solution(z[0] if single else z, loop.status(z) if watch else None, report)


def _backward(
    one: Callable[[Tensors, Any], Tensors],
    z: Tensors,
    x: Any,
    terms: int,
    adjoint_steps: int,
    report: AdjointReport | None,
) -> Callable[[Tensors], Tensors]:
    point = tuple(s.detach() for s in z)
    constant = _detached(x)

    def solve(gradient: Tensors) -> Tensors:
        # Evaluated here and not in the forward: between the two passes nothing is kept but the point.
        with torch.enable_grad():
            at = tuple(s.clone().requires_grad_() for s in point)
            value = one(at, constant)

        def transposed(v: Tensors) -> Tensors:
            return torch.autograd.grad(value, at, v, retain_graph=True, materialize_grads=True)

        if report is None:
            return neumann(transposed, gradient, terms)
        return solve_implicit(transposed, gradient, report, adjoint_steps)

    return solve


def _detached(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.detach()
    parts = [v.detach() for v in x]
    return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)


def _length(z: Tensors) -> Tensor:
    total = sum(
        (s.detach().float() if s.dtype != torch.float64 else s.detach()).flatten(1).square().sum(1) for s in z
    )
    assert isinstance(total, Tensor)
    return total.sqrt()


class _Loop:
    """The iteration and its bookkeeping: last two step lengths of every sample, and who has stopped."""

    def __init__(
        self,
        one: Callable[[Tensors, Any], Tensors],
        x: Any,
        steps: int,
        tolerance: float | None,
        watch: bool,
    ) -> None:
        self.one, self.x, self.steps, self.tolerance = one, x, steps, tolerance
        self.watch = watch or tolerance is not None
        self.moved: Tensor | None = None
        self.moved_before: Tensor | None = None
        self.used: Tensor | None = None

    def run(self, z: Tensors, steps: int) -> tuple[Tensors, Tensors]:
        previous, done = z, None
        for _ in range(steps):
            new = self.one(z, self.x)
            if done is not None:
                new = tuple(torch.where(_wide(done, n), o, n) for n, o in zip(new, z, strict=True))
                previous = tuple(torch.where(_wide(done, o), p, o) for p, o in zip(previous, z, strict=True))
            else:
                previous = z
            if self.watch:
                self.observe(z, new, done)
            z = new
            if self.tolerance is not None:
                assert self.moved is not None
                done = self.moved <= self.tolerance * _length(z)
                if bool(done.all()):
                    break
        return previous, z

    def observe(self, old: Tensors, new: Tensors, done: Tensor | None = None) -> None:
        """Notes how far each running sample moved."""
        if not self.watch:
            return
        moved = _length(tuple(n.detach() - o.detach() for n, o in zip(new, old, strict=True)))
        if self.moved is None or self.used is None:
            self.moved, self.moved_before = moved, torch.full_like(moved, torch.inf)
            self.used = torch.ones_like(moved, dtype=torch.int64)
            return
        running = torch.ones_like(moved, dtype=torch.bool) if done is None else ~done
        assert self.moved_before is not None
        self.moved_before = torch.where(running, self.moved, self.moved_before)
        self.moved = torch.where(running, moved, self.moved)
        self.used = self.used + running

    def status(self, z: Tensors) -> Status:
        length = _length(z)
        if self.moved is None or self.moved_before is None or self.used is None:
            nothing = torch.zeros_like(length, dtype=torch.int64)
            return Status(nothing + int(Outcome.BUDGET_SPENT), torch.full_like(length, torch.inf), nothing)
        tolerance = 1e-5 if self.tolerance is None else self.tolerance
        residual = self.moved / torch.where(length > 0, length, 1.0)
        outcome = torch.full_like(self.used, int(Outcome.BUDGET_SPENT))
        outcome = torch.where(self.moved > self.moved_before, int(Outcome.DIVERGED), outcome)
        outcome = torch.where(self.moved <= tolerance * length, int(Outcome.CONVERGED), outcome)
        outcome = torch.where(
            torch.isfinite(self.moved) & torch.isfinite(length), outcome, int(Outcome.NON_FINITE)
        )
        return Status(outcome, residual, self.used)


def _wide(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.dim() - 1))
