# SPDX-License-Identifier: Apache-2.0
"""Golub-Kahan-Lanczos bidiagonalisation with full reorthogonalisation and thick restarts.

Baglama and Reichel, Augmented implicitly restarted Lanczos bidiagonalization methods, SIAM J. Sci. Comput. 27
(2005), with Ritz vectors. It works on the map and not on its square, so small values keep their accuracy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Apply = Callable[[Tensor], Tensor]


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

    With `V` of orthonormal columns in the domain and `U` in the range: `A V = U B` and `A^T U = V B^T + rest e^T`.
    A restart keeps the wanted Ritz vectors and the direction of `rest`.

    Args:
        right: v -> A v; left: u -> A^T u.
        order: dimension of the domain, the smaller of the two.
        other: dimension of the range.
        like: a tensor of the dtype and device to work in.
        largest, smallest: how many values at either end must converge.
        size: columns of `V` and `U`.
        tol: residual to reach, relative to the largest value.
        max_restarts: rounds before giving up.
        generator: of random vectors, on the CPU; None is a new one seeded with 0.

    Returns:
        (size) values and (size) residuals, float64 on the CPU.
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
