# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of dense linear algebra: the textbook counts, leading order, real arithmetic.

Source: Golub and Van Loan, Matrix Computations, 4th edition (LU 3.2, Cholesky 4.2, QR 5.2, eigenvalues 7.5
and 8.3, SVD 8.6, figure 8.6.1); their flop is half a multiply-add. What a library runs may differ by a small
factor (blocking, divide and conquer), and iterative methods depend on the data; the count is a convention
that makes modules comparable, and it is never zero. Complex matrices count four times. While an instrument looks
on, torch runs `svdvals` and `eigvalsh` as if a gradient were wanted, vectors included, and so they are counted.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from .formulas import Formula, complexity


def stack(a: Tensor) -> int:
    """How many matrices `a` holds, weighted by the cost of its arithmetic."""
    return math.prod(a.shape[:-2]) * complexity(a)


def elimination(m: int, n: int) -> float:
    """Sum over k < min(m, n) of (m - k)(n - k): the updates of one pass of elimination over an m x n matrix."""
    k = min(m, n)
    return m * n * k - (m + n) * k * k / 2 + k**3 / 3


def svd(m: int, n: int, vectors: bool) -> float:
    """The cheaper of Golub and Reinsch's and R-bidiagonalisation; thin; `m` and `n` in any order."""
    m, n = max(m, n), min(m, n)
    if vectors:
        return min(7 * m * n * n + 4 * n**3, 3 * m * n * n + 10 * n**3)
    return min(2 * m * n * n - 2 * n**3 / 3, m * n * n + n**3)


def singular_values(
    out: Any, a: Tensor, full_matrices: bool = False, compute_uv: bool = True, **kwargs: Any
) -> int:
    """`svd` and `svdvals`."""
    return round(stack(a) * svd(a.shape[-2], a.shape[-1], compute_uv))


def eigh(out: Any, a: Tensor, uplo: str = "L", compute_v: bool = True, **kwargs: Any) -> int:
    """Symmetric eigenvalues: tridiagonalisation and QR steps."""
    return round(stack(a) * a.shape[-1] ** 3 * (9 / 2 if compute_v else 2 / 3))


def eig(out: Any, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """General eigenvalues and vectors: Hessenberg form and the QR algorithm."""
    return round(stack(a) * a.shape[-1] ** 3 * 25 / 2)


def eigvals(out: Any, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """General eigenvalues alone."""
    return stack(a) * a.shape[-1] ** 3 * 5


def qr(out: tuple[Tensor, Tensor], a: Tensor, mode: str = "reduced", **kwargs: Any) -> int:
    """Householder QR; forming Q costs another pass over the matrix it has the shape of."""
    m, n = a.shape[-2:]
    columns = {"r": 0, "reduced": min(m, n), "complete": m}[mode]
    return round(stack(a) * 2 * (elimination(m, n) + (elimination(m, columns) if columns else 0)))


def qr_factor(out: Any, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """`geqrf`: the reflectors and R."""
    return round(stack(a) * 2 * elimination(*a.shape[-2:]))


def reflectors(out: Any, a: Tensor, tau: Tensor, *args: Any, **kwargs: Any) -> int:
    """`householder_product`: the columns of Q from its reflectors."""
    return round(stack(a) * 2 * elimination(a.shape[-2], min(a.shape[-1], tau.shape[-1])))


def apply_reflectors(out: Tensor, a: Tensor, tau: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> int:
    """`ormqr`: each reflector reads and updates the other matrix once."""
    return 2 * other.numel() * tau.shape[-1] * complexity(a)


def cholesky(out: Any, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """Cholesky and LDL: half of an elimination, by symmetry."""
    return stack(a) * round(a.shape[-1] ** 3 / 6)


def lu(out: Any, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """LU, and the determinants that follow from it."""
    return round(stack(a) * elimination(*a.shape[-2:]))


def columns(a: Tensor, other: Tensor) -> int:
    """Numbers in the right-hand sides of systems with the matrices `a`, vectors or matrices."""
    return max(other.numel(), math.prod(a.shape[:-1])) * complexity(a)


def solve(out: Any, a: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> int:
    """LU, then two triangular systems a right-hand side."""
    return lu(out, a) + columns(a, other) * a.shape[-1]


def inverse(out: Any, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """LU and n right-hand sides, whose zeros are used."""
    return stack(a) * a.shape[-1] ** 3


def symmetric_inverse(out: Any, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """`cholesky_inverse`: from the factor."""
    return round(stack(a) * a.shape[-1] ** 3 / 3)


def triangular(out: Any, a: Tensor, other: Tensor, **kwargs: Any) -> int:
    """One triangular system a right-hand side."""
    return columns(a, other) * a.shape[-1] // 2


def factored_solve(out: Tensor, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """Two triangular systems a right-hand side."""
    return out.numel() * a.shape[-1] * complexity(a)


def least_squares(out: Any, a: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> int:
    """QR of the matrix, its reflectors applied to the right-hand sides, one triangular system."""
    m, n = a.shape[-2], min(a.shape[-2:])
    systems = other.numel() // m * complexity(a)
    return qr_factor(out, a) + systems * (2 * m * n - n * n) + systems * n * n // 2


def pseudo_inverse(out: Tensor, a: Tensor, *args: Any, hermitian: bool = False, **kwargs: Any) -> int:
    """SVD (eigenvalues when hermitian) and one product of its factors."""
    factors = eigh(out, a) if hermitian else singular_values(out, a)
    return factors + stack(a) * a.shape[-2] * a.shape[-1] * min(a.shape[-2:])


FACTORISATIONS: dict[str, Formula] = {
    "_linalg_svd": singular_values,
    "_linalg_eigh": eigh,
    "linalg_eig": eig,
    "_linalg_eigvals": eigvals,
    "linalg_qr": qr,
    "geqrf": qr_factor,
    "linalg_householder_product": reflectors,
    "ormqr": apply_reflectors,
    **dict.fromkeys(("linalg_cholesky_ex", "linalg_ldl_factor_ex"), cholesky),
    **dict.fromkeys(("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet"), lu),
    "_linalg_solve_ex": solve,
    "linalg_inv_ex": inverse,
    "cholesky_inverse": symmetric_inverse,
    "linalg_solve_triangular": triangular,
    "triangular_solve": lambda out, other, a, *args, **kwargs: triangular(out, a, other),
    **dict.fromkeys(("linalg_lu_solve", "linalg_ldl_solve"), factored_solve),
    **dict.fromkeys(
        ("cholesky_solve", "_cholesky_solve_helper"),
        lambda out, other, a, *args, **kwargs: factored_solve(out, a),
    ),
    "linalg_lstsq": least_squares,
    "linalg_pinv": pseudo_inverse,
}
