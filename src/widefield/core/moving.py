# SPDX-License-Identifier: Apache-2.0
"""The one momentum rule for running bases: out of place, one update a training forward, equal on all ranks."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor


def in_recomputation() -> bool:
    """Whether this forward is a replay by activation checkpointing (it runs inside a backward pass)."""
    if torch.compiler.is_compiling():
        return False
    node = getattr(torch._C, "_current_autograd_node", None)
    return node is not None and node() is not None


class Starts:
    """What the last training forwards started from, so that a replay by activation checkpointing does so too.

    By the time of the replay the buffer has moved. A forward is recognised by the sum of its input.
    """

    REMEMBERED = 8

    def __init__(self) -> None:
        self._seen: deque[tuple[Tensor, Tensor]] = deque(maxlen=self.REMEMBERED)

    @torch.no_grad()
    def of(self, buffer: Tensor, x: Tensor) -> Tensor:
        """A copy of the buffer as it was when x came first."""
        if torch.compiler.is_compiling():
            return buffer.clone()
        key = x.detach().sum(dtype=torch.float64)
        if in_recomputation() and self._seen:
            nearest = min(reversed(self._seen), key=lambda seen: float((seen[0] - key).abs()))
            return nearest[1].to(buffer.device)
        self._seen.append((key, buffer.clone()))
        return self._seen[-1][1]


@torch.no_grad()
def rank_mean(x: Tensor) -> Tensor:
    """Mean of `x` over all processes; `x` itself where there is one."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        x = x.clone()
        dist.all_reduce(x)
        x = x / dist.get_world_size()
    return x


@torch.no_grad()
def move_(buffer: Tensor, observed: Tensor, new_weight: float) -> None:
    """`buffer <- buffer + new_weight * (mean over ranks of observed - buffer)`.

    Backward passes that are still to come are not disturbed: modules read the buffer through a copy.
    A replay by activation checkpointing moves nothing, so a forward counts once.
    """
    if in_recomputation():
        return
    observed = rank_mean(observed.to(buffer.dtype))
    buffer.copy_(torch.lerp(buffer, observed, new_weight))
