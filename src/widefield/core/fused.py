# SPDX-License-Identifier: Apache-2.0
"""Convolutions of narrow maps with channels last, on a CPU, without gradients: oneDNN's kernels called directly.

On one thread PyTorch sends 1x1 convolutions to a general matrix product, which on widths such as 28 runs at half
the speed of oneDNN's own kernel, and it applies an activation in a pass of its own. Where these kernels do not
serve (gradients, another device or dtype, a graph being traced) the plain operations run, with equal results.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

_FUSED = getattr(getattr(torch.ops, "mkldnn", None), "_convolution_pointwise", None)
# Wider maps are bound by arithmetic, and the matrix product is as fast.
WIDEST = 512


def serves(x: Tensor) -> bool:
    """Whether the kernels take this map `(b, c, h, w)`."""
    return (
        _FUSED is not None
        and not torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.shape[1] <= WIDEST
        and x.numel() > 0
        and channels_last(x)
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        and not torch.is_autocast_enabled("cpu")
        and not watched()
    )


def channels_last(x: Tensor) -> bool:
    """Whether `(b, c, h, w)` lies in memory as `(b, h, w, c)`."""
    b, c, h, w = x.shape
    # A step to the next of one sample is never taken.
    return x.stride()[b == 1 :] == (h * w * c, 1, w * c, c)[b == 1 :]


def lay_channels_last(x: Tensor) -> Tensor:
    """The same map, in memory as `(b, h, w, c)`; a copy where it lies otherwise."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def watched() -> bool:
    """Whether something counts or transforms the operations: `vmap`, fake tensors, a dispatch mode."""
    return peek_interpreter_stack() is not None or _get_current_dispatch_mode() is not None


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, padding: int = 0, gelu: bool = False
) -> Tensor:
    """A convolution of stride 1, then GELU where asked for, on a map that `serves` accepts.

    Args:
        x: `(b, c, h, w)`, channels last.
        weight: `(out, c / groups, k, k)`.
        bias: `(out,)`.
        padding: zeros on every edge.
        gelu: the exact one, by the error function.
    """
    groups = x.shape[1] // weight.shape[1]
    after = ("gelu", [], "none") if gelu else ("none", [], "")
    assert _FUSED is not None
    if x.stride(0) != x[0].numel():
        # One sample: the kernel takes its layout from that unused step.
        x = x.as_strided(x.shape, (x[0].numel(), *x.stride()[1:]))
    return _FUSED(x, weight, bias, [padding] * 2, [1, 1], [1, 1], groups, *after)


def add_to(own: Tensor, x: Tensor) -> Tensor:
    """`own + x`, in the memory of `own` where the kernels serve.

    Fresh memory for a map costs more than the sum that is written into it. `own` must belong to the caller alone.
    """
    return own.add_(x) if _takes(own, x) else own + x


def multiply_to(own: Tensor, x: Tensor) -> Tensor:
    """`own * x`, as `add_to`."""
    return own.mul_(x) if _takes(own, x) else own * x


def _takes(own: Tensor, x: Tensor) -> bool:
    return serves(own) and own.shape == x.shape and own.dtype == x.dtype


def convolve_gelu(x: Tensor, weight: Tensor, *, padding: int = 0) -> Tensor:
    """GELU of a convolution of stride 1 without a bias, on any map."""
    if serves(x):
        return convolve(x, weight, padding=padding, gelu=True)
    return F.gelu(F.conv2d(x, weight.to(x.dtype), padding=padding, groups=x.shape[1] // weight.shape[1]))
