# SPDX-License-Identifier: Apache-2.0
"""What a training set-up does to a module: checkpointing, and several processes."""

from __future__ import annotations

import pickle
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widefield.testing.behaviour import close, gradients
from widefield.testing.ranks import gradients_on_two_ranks
from widefield.testing.subject import Subject, check


class _Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, checkpoint(self.inner, x, use_reentrant=False))


@check
def checkpointing(s: Subject) -> None:
    """Activation checkpointing gives the same gradients, and moves running state once."""
    x = s.randn()
    with s.given(f"randn{tuple(x.shape)}, training"), torch.random.fork_rng():
        plain, inner = s.build().train(), s.build().train()
        torch.manual_seed(0)
        expected = gradients(plain, x)
        torch.manual_seed(0)
        found = gradients(_Checkpointed(inner), x)
        for name, gradient in expected.items():
            again = found[name if name == "x" else f"inner.{name}"]
            close(again, gradient, 1e-5, f"the gradient of {name}")
        for name, buffer in plain.named_buffers():
            close(inner.get_buffer(name).float(), buffer.float(), 1e-5, f"the buffer {name}")


@check
def distributed(s: Subject) -> None:
    """DistributedDataParallel on two processes gives the gradients of one; no parameter is left without."""
    x = s.randn(4, s.channels, *s.space)
    with s.given(f"randn{tuple(x.shape)}, two samples a process (gloo), evaluation"):
        # Not training: the statistics of a batch, and what a dropout drops, are each process's own.
        module = s.build().eval()
        with torch.no_grad():
            cotangent = s.randn(*module(x).shape, seed=1)
        expected = gradients(module, x, cotangent / 2)  # the mean over two processes
        del expected["x"]
        if not expected:
            return  # nothing to train, and DistributedDataParallel refuses it
        try:
            sent = pickle.dumps(module)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise AssertionError(
                f"cannot be sent to another process ({error}); define its class and functions at the top "
                "level of a module that can be imported"
            ) from None
        for rank, found in enumerate(gradients_on_two_ranks(sent, x, cotangent)):
            for name, gradient in expected.items():
                assert found.get(name) is not None, f"process {rank}: {name} has no gradient"
                close(found[name], gradient, 1e-4, f"process {rank}, the gradient of {name}")
