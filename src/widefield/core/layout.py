# SPDX-License-Identifier: Apache-2.0
"""From maps to positions and back, for any number of spatial dimensions and any memory layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Space = tuple[int, ...]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def to_positions(x: Tensor) -> tuple[Tensor, Space]:
    """`(b, c, *space)` to `(b, c, n)` and the space; a view for contiguous and channels-last maps."""
    space = tuple(x.shape[2:])
    tokens = x.flatten(2)
    if x.shape[0] == 1 and len(space) > 1 and x.requires_grad and torch.is_grad_enabled():
        # The gradient of a flattened batch of one may come back with positions outermost in memory, in strides
        # that a CPU batch norm of torch 2.14 before this module silently misreads. A hook makes it contiguous, at
        # no cost where it is. A graph takes no hook: there `select` is in the way, which writes it into zeros.
        if torch.compiler.is_compiling():
            return x.select(0, 0).flatten(1).unsqueeze(0), space
        tokens.register_hook(_contiguous)
    return tokens, space


def _contiguous(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.contiguous()  # None in a second derivative that stops here


def to_map(tokens: Tensor, space: Space) -> Tensor:
    """`(b, c, n)` back to `(b, c, *space)`; always a view."""
    return tokens.unflatten(2, space)


def like(y: Tensor, x: Tensor) -> Tensor:
    """`y` in the memory layout of `x`: channels-last if `x` is, contiguous otherwise."""
    layout = _CHANNELS_LAST.get(x.dim())
    if layout is not None and not x.is_contiguous() and x.is_contiguous(memory_format=layout):
        return y.contiguous(memory_format=layout)
    rows = y.movedim(1, -1)
    if not torch.compiler.is_compiling() and rows.is_contiguous() and not y.is_contiguous():
        return exchanged(rows.flatten(1, -2)).unflatten(2, y.shape[2:])
    return y.contiguous()


def exchanged(x: Tensor) -> Tensor:
    """`(b, m, n)` to `(b, n, m)`, contiguous: from channels to positions first in memory, or back.

    Its gradient returns in the layout of `x`; that of a plain transpose does not, and adding gradients of two
    layouts takes ten times as long as adding those of one.
    """
    if torch.compiler.is_compiling() or x.mT.is_contiguous():
        return x.mT.contiguous()
    return Exchange.apply(x)


class Exchange(torch.autograd.Function):
    """See `exchanged`; its own adjoint."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            # Torch copies a transposed matrix several times faster than a batch of them.
            return x[0].T.contiguous().unsqueeze(0)
        y = x.new_empty(x.mT.shape)
        for given, found in zip(x, y, strict=True):
            found.copy_(given.T)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return exchanged(grad)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return exchanged(tangent)
