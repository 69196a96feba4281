# SPDX-License-Identifier: Apache-2.0
"""What every layer over a sequence shares: batch first, lengths, state in and out, and how padding is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive

State = tuple[Tensor, ...]


def padding_mask(lengths: Tensor, steps: int) -> Tensor:
    """`(b,)` lengths to `(b, t)`, True where a step counts.

    Raises:
        ValueError: a length outside `0 .. steps`.
    """
    if not torch.compiler.is_compiling() and lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()):
        raise ValueError(f"lengths must not be negative, got {lengths.tolist()}")
    if not torch.compiler.is_compiling() and lengths.numel() and int(lengths.max()) > steps:
        raise ValueError(f"a length of {int(lengths.max())} is beyond the {steps} steps of the batch")
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


class SequenceLayer(nn.Module):
    """`(b, t, input_size) -> (b, t, output_size)` and the state after the last step.

    Every layer of this room is called as `y, state = layer(x, state=None, lengths=None)`. A state is a tuple of
    tensors with the batch first; what a layer returns can be given back, so that two calls on the halves of a
    sequence equal one on the whole. With `lengths` the rows of `y` beyond them are zero and the state is that
    after the last step that counts.

    Attributes:
        input_size, output_size: widths of `x` and `y`.
    """

    input_size: int
    output_size: int

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        require_positive(type(self).__name__, input_size=input_size, output_size=output_size)
        self.input_size, self.output_size = input_size, output_size

    def initial_state(self, batch: int, like: Tensor) -> State:
        """The state before the first step, for `batch` sequences; dtype and device of `like`."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        raise NotImplementedError

    def start(self, x: Tensor, state: Sequence[Tensor] | None) -> State:
        """The state to begin with: the one given, checked, or the initial one.

        Raises:
            ValueError, TypeError: shapes or dtypes that do not fit.
        """
        name = type(self).__name__
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            raise ValueError(
                f"{name} takes (b, t, {self.input_size}), batch first, got the shape {tuple(x.shape)}"
            )
        if not torch.is_floating_point(x):
            raise TypeError(f"{name} takes floating-point features, got {x.dtype}; convert with x.float()")
        if not torch.compiler.is_compiling() and 0 in x.shape:
            raise ValueError(f"{name} needs at least one sequence and one step, got the shape {tuple(x.shape)}")
        fresh = self.initial_state(x.shape[0], x)
        if state is None:
            return fresh
        shapes, wanted = [tuple(s.shape) for s in state], [tuple(s.shape) for s in fresh]
        if shapes != wanted:
            raise ValueError(f"{name} takes a state of the shapes {wanted}, batch first, got {shapes}")
        return tuple(state)


def masked(alive: Tensor | None, new: Iterable[Tensor], old: Iterable[Tensor]) -> State:
    """The new state where a sequence goes on, `(b,)` True, and the old one where it has ended."""
    if alive is None:
        return tuple(new)
    return tuple(torch.where(alive.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in zip(new, old, strict=True))


def step_masks(lengths: Tensor | None, x: Tensor) -> list[Tensor] | list[None]:
    """For every step the `(b,)` mask of sequences that go on, or Nones."""
    if lengths is None:
        return [None] * x.shape[1]
    if lengths.shape != x.shape[:1]:
        raise ValueError(f"lengths must be one number a sequence, ({x.shape[0]},), got {tuple(lengths.shape)}")
    return list(padding_mask(lengths.to(x.device), x.shape[1]).unbind(1))


def zero_padding(y: Tensor, lengths: Tensor | None) -> Tensor:
    """`(b, t, ...)` with the rows beyond the lengths zero."""
    if lengths is None:
        return y
    alive = padding_mask(lengths.to(y.device), y.shape[1])
    return torch.where(alive.view(*alive.shape, *[1] * (y.dim() - 2)), y, 0.0)
