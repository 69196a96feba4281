# SPDX-License-Identifier: Apache-2.0
"""From maps to positions and back, for any number of spatial dimensions and any memory layout."""

from __future__ import annotations

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
    return y.contiguous()
