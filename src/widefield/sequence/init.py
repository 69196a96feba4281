# SPDX-License-Identifier: Apache-2.0
"""How recurrent matrices and forget gates start.

Paper   orthogonal: Saxe et al., arXiv:1312.6120; identity: Le, Jaitly, Hinton, A Simple Way to Initialize
        Recurrent Networks of Rectified Linear Units, arXiv:1504.00941; forget bias: Gers et al. 2000, Jozefowicz
        et al. 2015;
        chrono: Tallec & Ollivier, arXiv:1804.11188.
Differs matrices that hold several gates are orthogonal gate by gate: on the stack, each gate would have singular
        values near 1 / sqrt(gates).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.core.errors import unknown

RECURRENT = ("uniform", "orthogonal", "identity")


@torch.no_grad()
def orthogonal_blocks_(weight: Tensor, gain: float = 1.0) -> Tensor:
    """`(gates * h, h)`: every square block a uniformly drawn orthogonal matrix times `gain`, in place.

    QR of a Gaussian matrix; without the signs of the diagonal of R the draw would not be uniform.

    Raises:
        ValueError: the rows are no multiple of the columns.
    """
    rows, width = weight.shape
    if rows % width:
        raise ValueError(
            f"orthogonal blocks need rows that are a multiple of the columns, got {tuple(weight.shape)}"
        )
    draw = torch.randn(rows // width, width, width, device=weight.device, dtype=torch.float64)
    q, r = torch.linalg.qr(draw)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    return weight.copy_(gain * q.reshape(rows, width))


@torch.no_grad()
def identity_blocks_(weight: Tensor, gain: float = 1.0) -> Tensor:
    """`(gates * h, h)`: every block the identity times `gain`, in place."""
    rows, width = weight.shape
    return weight.copy_(gain * torch.eye(width, device=weight.device, dtype=weight.dtype).repeat(rows // width, 1))


@torch.no_grad()
def xavier_blocks_(weight: Tensor, gates: int) -> Tensor:
    """`(gates * h, d)`: Glorot's uniform start for every gate on its own, in place."""
    rows, width = weight.shape
    bound = math.sqrt(6 / (rows // gates + width))
    return weight.uniform_(-bound, bound)


@torch.no_grad()
def uniform_(weight: Tensor, hidden: int) -> Tensor:
    """Uniform in +- 1 / sqrt(h), as torch starts every recurrent parameter; in place."""
    bound = 1 / math.sqrt(hidden)
    return weight.uniform_(-bound, bound)


@torch.no_grad()
def recurrent_(weight: Tensor, start: str, gain: float = 1.0) -> Tensor:
    """A recurrent matrix `(gates * h, h)` by the name of its start, in place.

    Raises:
        UnknownName: none of `RECURRENT`.
    """
    if start == "uniform":
        return uniform_(weight, weight.shape[1])
    if start == "orthogonal":
        return orthogonal_blocks_(weight, gain)
    if start == "identity":
        return identity_blocks_(weight, gain)
    raise unknown("start of a recurrent matrix", start, RECURRENT)


@torch.no_grad()
def chrono_(forget: Tensor, write: Tensor, horizon: int) -> None:
    """Biases for dependencies over up to `horizon` steps: `b_f = log U(1, horizon - 1)`, `b_i = -b_f`; in place.

    Raises:
        ValueError: a horizon below 3.
    """
    if horizon < 3:
        raise ValueError(f"the horizon must be at least 3 steps, got {horizon}")
    forget.copy_(torch.empty_like(forget).uniform_(1, horizon - 1).log_())
    write.copy_(-forget)
