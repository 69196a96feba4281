# SPDX-License-Identifier: Apache-2.0
"""Extreme singular values of a Jacobian, from products with it alone.

The largest converge in a few dozen products. The smallest converge when they are separated, or when the basis
may span the whole space; a small residual certifies a singular value, but that no smaller one hides is certain
only in the second case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .lanczos import Apply, bidiagonalise


@dataclass(frozen=True)
class JacobianSpectrum:
    """Extreme singular values of `d fn(x) / d x`.

    Attributes:
        largest: the largest ones, descending.
        smallest: the smallest of the min(rows, columns) values, ascending.
        converged: every one has a residual of at most `tolerance`.
        residual: the largest residual `|J^T u - s v|` over the largest singular value.
        tolerance: what was asked for.
        products: how many products with the Jacobian and its transpose it took.
        rows: numbers in the output.
        columns: numbers in the input.
        method: how products with the Jacobian were made.
    """

    largest: tuple[float, ...]
    smallest: tuple[float, ...]
    converged: bool
    residual: float
    tolerance: float
    products: int
    rows: int
    columns: int
    method: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"largest": list(self.largest), "smallest": list(self.smallest)}


def jacobian_singular_values(
    fn: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    largest: int = 1,
    smallest: int = 0,
    tol: float = 1e-5,
    generator: torch.Generator | None = None,
    basis: int | None = None,
    max_restarts: int = 50,
) -> JacobianSpectrum:
    """Extreme singular values of the Jacobian of `fn` at `x`, without ever forming it.

    The Jacobian is the one that the backward of `fn` multiplies by: of a module with a truncated gradient it is
    the truncated one. `fn` is evaluated once; attention inside runs in torch's plain form, the only one that can
    be differentiated twice. Use float64 for residuals below about 1e-5.

    Args:
        fn: one tensor to one tensor, differentiable; a module should be in eval mode.
        x: where, any shape.
        largest: how many of the largest values.
        smallest: how many of the smallest.
        tol: residual to reach, relative to the largest singular value.
        generator: of the start vector, on the CPU; by default seeded with 0.
        basis: vectors kept, each of the size of input or output. By default 20 more than twice the values asked
            for; never more than the smaller side of the Jacobian, where the result is exact.
        max_restarts: how often the basis is compressed and grown again before giving up.

    Returns:
        The values, with `converged` and the residual.

    Raises:
        ValueError: nothing or too much asked for, a tolerance below the precision of `x`, or an output that does
            not depend on `x`.
        TypeError: `fn` does not return a tensor, or `x` is not real floating-point.
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; the Jacobian of a real function needs a float32 or float64 input")
    forward, transpose, rows, columns, method = products_at(fn, x)
    order = min(rows, columns)
    if largest < 0 or smallest < 0 or not 0 < largest + smallest <= order:
        raise ValueError(
            f"largest={largest} and smallest={smallest} of a {rows} x {columns} Jacobian; ask for at least "
            f"one and at most {order} values"
        )
    if tol < 10 * torch.finfo(x.dtype).eps:
        raise ValueError(
            f"tol={tol} cannot be reached in {x.dtype}; give at least {10 * torch.finfo(x.dtype).eps:.1e}"
        )
    asked = largest + smallest
    size = min(order, 2 * asked + 20 if basis is None else max(basis, asked + 2))
    counter = [0]

    def counted(apply: Apply) -> Apply:
        def product(vector: Tensor) -> Tensor:
            counter[0] += 1
            return apply(vector)

        return product

    # The smaller side carries the start vector: once it is spanned, nothing is left over.
    right, left = (forward, transpose) if columns <= rows else (transpose, forward)
    values, residuals = bidiagonalise(
        counted(right),
        counted(left),
        order,
        max(rows, columns),
        x,
        largest,
        smallest,
        size,
        tol,
        max_restarts,
        generator,
    )
    wanted = [*range(largest), *range(len(values) - smallest, len(values))]
    residual = max(float(residuals[index]) for index in wanted)
    return JacobianSpectrum(
        largest=tuple(values[:largest].tolist()),
        smallest=tuple(values.flip(0)[:smallest].tolist()),
        converged=residual <= tol,
        residual=residual,
        tolerance=tol,
        products=counter[0],
        rows=rows,
        columns=columns,
        method=method,
    )


def products_at(fn: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Apply, Apply, int, int, str]:
    """Products with the Jacobian at `x` and with its transpose, on flat vectors; its rows and columns.

    The transpose is the backward. It is linear in the cotangent, so its own backward is the product with the
    Jacobian; that keeps the two adjoint even where the backward is not the true derivative. A backward
    that cannot be differentiated is replaced by forward-mode differentiation, if that is its adjoint.

    Raises:
        ValueError, TypeError: see `jacobian_singular_values`.
    """
    point = x.detach().clone().requires_grad_()
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        y = fn(point)
        if not isinstance(y, Tensor):
            raise TypeError(f"fn returned a {type(y).__name__}; wrap it so that it returns one tensor")
        if not y.requires_grad:
            raise ValueError(
                "the output of fn does not depend differentiably on x; is it under no_grad or detached?"
            )

    def transpose(u: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(y, point, u.view_as(y), retain_graph=True, allow_unused=True)
        return torch.zeros_like(point).flatten() if gradient is None else gradient.flatten()

    try:
        with torch.enable_grad():
            probe = torch.zeros_like(y).requires_grad_()
            (pulled,) = torch.autograd.grad(y, point, probe, create_graph=True)
            torch.autograd.grad(pulled, probe, torch.ones_like(pulled), retain_graph=True)
    except RuntimeError:
        forward = forward_mode(fn, point)
        check_adjoint(forward, transpose, point, y)
        return forward, transpose, y.numel(), point.numel(), "forward mode"

    def pushed(v: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(pulled, probe, v.view_as(point), retain_graph=True)
        return product.flatten()

    return pushed, transpose, y.numel(), point.numel(), "double backward"


def forward_mode(fn: Callable[[Tensor], Tensor], point: Tensor) -> Apply:
    """Products with the Jacobian by `torch.func.jvp`; evaluates `fn` at each."""
    primal = point.detach()

    def forward(v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            tangent = torch.func.jvp(fn, (primal,), (v.view_as(primal),))[1]
        return tangent.detach().flatten()

    return forward


def check_adjoint(forward: Apply, transpose: Apply, point: Tensor, y: Tensor) -> None:
    """`u . (J v) = (J^T u) . v`, or the singular values would be those of nothing."""
    random = torch.Generator().manual_seed(0)
    v = torch.randn(point.numel(), generator=random, dtype=torch.float64).to(point)
    u = torch.randn(y.numel(), generator=random, dtype=torch.float64).to(y)
    pushed, pulled = forward(v), transpose(u)
    scale = float(u.norm() * pushed.norm() + pulled.norm() * v.norm())
    if abs(float(u @ pushed - pulled @ v)) > 1e3 * torch.finfo(point.dtype).eps * max(scale, 1e-30):
        raise ValueError(
            "the backward of fn cannot be differentiated, and its forward-mode derivative is another linear map; "
            "give an fn whose gradient is exact, or one that can be differentiated twice"
        )
