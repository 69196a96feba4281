# SPDX-License-Identifier: Apache-2.0
"""The matrix products that a decomposition cannot do without."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def nmf_products(x: Tensor, rank: int, steps: int) -> Callable[[], None]:
    """The products of an NMF ham on `(1, c, n)`, into buffers that are there already."""
    c, n = x.shape[1:]
    bases, codes = torch.rand(1, c, rank), torch.rand(1, n, rank)
    small, wide, y = torch.empty(1, rank, rank), torch.empty(1, c, rank), torch.empty_like(x)
    tall, tall2 = torch.empty(1, n, rank), torch.empty(1, n, rank)

    def run() -> None:
        torch.bmm(x.mT, bases, out=tall)
        for _ in range(steps):
            torch.bmm(x.mT, bases, out=tall)
            torch.bmm(bases.mT, bases, out=small)
            torch.bmm(codes, small, out=tall2)
            torch.bmm(x, codes, out=wide)
            torch.bmm(codes.mT, codes, out=small)
            torch.bmm(bases, small, out=wide)
        torch.bmm(x.mT, bases, out=tall)
        torch.bmm(bases.mT, bases, out=small)
        torch.bmm(codes, small, out=tall2)
        torch.bmm(bases, codes.mT, out=y)

    return run


def clustering_products(x: Tensor, rank: int, steps: int, *, closing: int) -> Callable[[], None]:
    """The products of `steps` of CD, VQ or EM on `(1, c, n)`, `closing` for the last codes, and `D C^T`."""
    c, n = x.shape[1:]
    bases, codes = torch.rand(1, c, rank), torch.rand(1, n, rank)
    tall, wide, y = torch.empty(1, n, rank), torch.empty(1, c, rank), torch.empty_like(x)

    def run() -> None:
        for _ in range(steps):
            torch.bmm(x.mT, bases, out=tall)
            torch.bmm(x, codes, out=wide)
        for _ in range(closing):
            torch.bmm(x.mT, bases, out=tall)
        torch.bmm(bases, codes.mT, out=y)

    return run
