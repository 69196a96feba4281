# SPDX-License-Identifier: Apache-2.0
"""The one momentum rule for running bases: out of place, one update a training forward, equal on all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def in_recomputation() -> bool:
    """Whether this forward is a replay by activation checkpointing (it runs inside a backward pass)."""
    if torch.compiler.is_compiling():
        return False
    node = getattr(torch._C, "_current_autograd_node", None)
    return node is not None and node() is not None


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
