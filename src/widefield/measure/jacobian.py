# SPDX-License-Identifier: Apache-2.0
"""Extreme singular values of a Jacobian, from products with it alone.

Golub-Kahan-Lanczos bidiagonalisation with full reorthogonalisation and thick restarts (Baglama and Reichel,
Augmented implicitly restarted Lanczos bidiagonalization methods, SIAM J. Sci. Comput. 27, 2005). It works on
the Jacobian and not on its square, so small values keep their accuracy. The largest converge in a few
dozen products; the smallest only when they are separated or the basis may span the whole space, and
`converged` says whether they did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Apply = Callable[[Tensor], Tensor]


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

    The Jacobian is the one that the backward of `fn` multiplies by: of a module with a truncated gradient it is the
    truncated one. `fn` is evaluated once; attention inside runs in torch's plain form, the only one that can
    be differentiated twice. Use float64 for residuals below about 1e-5.

    Args:
        fn: one tensor to one tensor, differentiable; a module should be in eval mode.
        x: where, any shape.
        largest: how many of the largest values.
        smallest: how many of the smallest.
        tol: residual to reach, relative to the largest singular value.
        generator: of the start vector, on the CPU; by default seeded with 0.
        basis: vectors kept, each of the size of input or output. By default 20 more than twice the values asked for,
            and never more than the smaller side of the Jacobian, where the result is exact.
        max_restarts: how often the basis is compressed and grown again before giving up.

    Returns:
        The values, with `converged` and the residual.

    Raises:
        ValueError: nothing or too much asked for, a tolerance below the precision of `x`, or an output that does not
            depend on `x`.
        TypeError: `fn` does not return a tensor, or `x` is not real floating-point.
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; the Jacobian of a real function needs a float32 or float64 input")
    forward, transpose, rows, columns, method = products_at(fn, x)
    order = min(rows, columns)
    if largest < 0 or smallest < 0 or not 0 < largest + smallest <= order:
        raise ValueError(
            f"largest={largest} and smallest={smallest} of a {rows} x {columns} Jacobian; ask for at least one and at most "
            f"{order} values"
        )
    if tol < 10 * torch.finfo(x.dtype).eps:
        raise ValueError(
            f"tol={tol} cannot be reached in {x.dtype}; give at least {10 * torch.finfo(x.dtype).eps:.1e}"
        )
    size = min(order, max(basis or 0, 2 * (largest + smallest) + 20 if basis is None else largest + smallest + 2))
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
        forward, method = forward_mode(fn, point), "forward mode"
        check_adjoint(forward, transpose, point, y)
    else:

        def forward(v: Tensor) -> Tensor:
            (pushed,) = torch.autograd.grad(pulled, probe, v.view_as(point), retain_graph=True)
            return pushed.flatten()

        method = "double backward"
    return forward, transpose, y.numel(), point.numel(), method


def forward_mode(fn: Callable[[Tensor], Tensor], point: Tensor) -> Apply:
    """Products with the Jacobian by `torch.func.jvp`; evaluates `fn` at each."""
    primal = point.detach()

    def forward(v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            _, tangent = torch.func.jvp(fn, (primal,), (v.view_as(primal),))
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
            "the backward of fn can not be differentiated, and its forward-mode derivative is another linear map; give "
            "an fn whose gradient is exact, or one that can be differentiated twice"
        )


def bidiagonalise(
    right: Apply,
    left: Apply,
    order: int,
    other: int,
    like: Tensor,
    largest: int,
    smallest: int,
    size: int,
    tol: float,
    max_restarts: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Ritz values, descending, and their residuals relative to the first.

    With `V` of orthonormal columns in the domain (dimension `order`) and `U` in the range (`other`): `A V = U B` and
    `A^T U = V B^T + rest e^T`. A restart keeps the wanted Ritz vectors and the direction of `rest`.
    """
    random = generator if generator is not None else torch.Generator().manual_seed(0)
    options = {"dtype": like.dtype, "device": like.device}
    domain, image = torch.zeros(order, size, **options), torch.zeros(other, size, **options)
    small = torch.zeros(size, size, dtype=torch.float64)
    kept = 0
    direction, _ = orthonormal(fresh(order, random, like), domain[:, :0], random)
    values = residuals = torch.zeros(0)
    for _restart in range(max_restarts + 1):
        rest = 0.0
        for k in range(kept, size):
            domain[:, k] = direction
            column = right(direction)
            # The part along earlier left vectors is known: the coupling of a restart, or the last rest.
            column, alpha = orthonormal(column - image[:, :k] @ small[:k, k].to(column), image[:, :k], random)
            image[:, k], small[k, k] = column, alpha
            row = left(column)
            direction, rest = orthonormal(row - alpha * direction, domain[:, : k + 1], random)
            if k + 1 < size:
                small[k, k + 1] = rest
        p, values, qt = torch.linalg.svd(small)
        scale = max(float(values[0]), torch.finfo(torch.float64).tiny)
        residuals = (rest * p[-1]).abs() / scale
        wanted = [*range(largest), *range(size - smallest, size)]
        if size == order:
            residuals = torch.zeros_like(residuals)
        if float(residuals[wanted].max()) <= tol:
            break
        # Neighbours of the wanted ones come along: they speed up the next round.
        spare = max((size - largest - smallest) // 3, 1)
        top = largest + spare if largest else 0
        bottom = smallest + spare if smallest else 0
        keep = [*range(top), *range(size - bottom, size)] if top + bottom < size - 1 else wanted
        kept = len(keep)
        domain[:, :kept] = domain @ qt[keep].T.to(domain)
        image[:, :kept] = image @ p[:, keep].to(image)
        small = torch.zeros_like(small)
        small[range(kept), range(kept)] = values[keep]
        small[:kept, kept] = rest * p[-1, keep]
    return values, residuals


def fresh(length: int, random: torch.Generator, like: Tensor) -> Tensor:
    """A random start vector; drawn on the CPU so that it is the same on every device."""
    return torch.randn(length, generator=random, dtype=torch.float64).to(like)


def orthonormal(vector: Tensor, basis: Tensor, random: torch.Generator) -> tuple[Tensor, float]:
    """`vector` made orthogonal to `basis`, of length 1, and its length before that.

    A vector inside the span of the basis has length 0 and is replaced by a random one outside of it, so that
    repeated singular values are all found; the zero vector when the basis spans everything.
    """
    before = float(vector.norm())
    for _ in range(2):
        vector = vector - basis @ (basis.T @ vector)
    length = float(vector.norm())
    if length > 100 * torch.finfo(vector.dtype).eps * before:
        return vector / length, length
    if basis.shape[1] >= len(vector):
        return torch.zeros_like(vector), 0.0
    replacement = fresh(len(vector), random, vector)
    for _ in range(3):
        replacement = replacement - basis @ (basis.T @ replacement)
        replacement = replacement / replacement.norm()
    return replacement, 0.0
