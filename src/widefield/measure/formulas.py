# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of torch's product operators, in closed form, from the shapes of their arguments.

One multiply-add is one multiplication followed by one addition; the "operations" (FLOPs) of other tables are
twice as many. `torch.utils.flop_counter` has part of this table. It misses attention on a CPU, in-place
products, matrix-vector products, recurrences, distances and transforms, counts a complex product like a real
one, and counts the backward of a convolution with g groups (g + 1) times instead of twice; those formulas are
restated here and take precedence over torch's.

Conventions: attention is counted in full whether or not a mask empties half of it; a distance costs one
multiply-add a coordinate; a fast Fourier transform of n complex numbers costs 5 n log2(n) operations (Cooley
and Tukey; the convention of FFTW's benchmarks), of n real numbers half of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# (output, *args, **kwargs) of the operator's call -> multiply-adds
Formula = Callable[..., int]


def product(out: Tensor, a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> int:
    """`mm`, `bmm`, `mv`, `dot`: every number of the output sums over the last axis of `a`."""
    return out.numel() * a.shape[-1] * complexity(a)


def added_product(out: Tensor, bias: Tensor, a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> int:
    """`addmm`, `baddbmm`, `addmv`: the bias is part of the accumulation."""
    return product(out, a, b)


def summed_product(out: Tensor, bias: Tensor, a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> int:
    """`addbmm`: the products of a batch, summed over the batch."""
    return a.numel() * b.shape[-1] * complexity(a)


def complexity(x: Tensor) -> int:
    """Real multiply-adds in one of the dtype of `x`."""
    return 4 if x.is_complex() else 1


def rows(x: Tensor) -> int:
    """Vectors along the last axis of `x`."""
    return math.prod(x.shape[:-1])


def trilinear(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    *args: Any,
    **kwargs: Any,
) -> int:
    """`_trilinear`, the kernel of `nn.Bilinear`: one multiply-add for each entry of the broadcast product."""
    shapes = []
    for tensor, dims in ((a, expand_a), (b, expand_b), (c, expand_c)):
        shape = list(tensor.shape)
        for dim in sorted(dims):
            shape.insert(dim, 1)
        shapes.append(shape)
    return math.prod(torch.broadcast_shapes(*shapes)) * complexity(a)


def convolution(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *args: Any,
    **kwargs: Any,
) -> int:
    """Each output number (each input number when transposed) meets one slice of the weight. Any groups."""
    return (x if transposed else out).numel() * (weight.numel() // weight.shape[0]) * complexity(x)


def convolution_tbc(out: Tensor, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> int:
    """`conv_tbc`, time first: the weight is (time, in, out)."""
    return out.numel() * weight.shape[0] * weight.shape[1]


def convolution_backward(
    out: Sequence[Tensor | None],
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *args: Any,
    **kwargs: Any,
) -> int:
    """The gradients of input and weight cost what the forward costs, each; the bias is a plain sum."""
    wanted = sum(gradient is not None for gradient in out[:2])
    return wanted * convolution(grad, x, weight, None, stride, padding, dilation, transposed)


def attention(out: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """Fused scaled dot-product attention: scores, then their product with the values."""
    return attention_scores(query, key) * (query.shape[-1] + value.shape[-1])


def attention_backward(
    out: Any, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> int:
    """Five products: the scores again, and the gradients of scores, query, key and value."""
    return attention_scores(query, key) * (3 * query.shape[-1] + 2 * value.shape[-1])


def attention_scores(query: Tensor, key: Tensor) -> int:
    """Entries of the score matrices: what the softmax inside a fused attention runs over."""
    return rows(query) * key.shape[-2]


def onednn_rnn(out: Any, x: Tensor, input_weight: Tensor, state_weight: Tensor, *args: Any, **kwargs: Any) -> int:
    """One direction of one layer of an LSTM or GRU: both weights meet every step of every sequence."""
    return rows(x) * (input_weight.numel() + state_weight.numel())


def cudnn_rnn(out: Any, x: Tensor, weights: Sequence[Tensor], *args: Any, **kwargs: Any) -> int:
    """A whole stack of recurrent layers; projections included, packed sequences too."""
    return rows(x) * sum(weight.numel() for weight in weights if weight.dim() == 2)


def twice(formula: Formula) -> Formula:
    """The backward of a linear map in two arguments: one product of the same size for each gradient."""
    return lambda out, *args, **kwargs: 2 * formula(out, *args, **kwargs)


def distances(out: Tensor, a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> int:
    """`cdist`, by either of its kernels."""
    return out.numel() * a.shape[-1]


def distances_backward(out: Tensor, grad: Tensor, a: Tensor, *args: Any, **kwargs: Any) -> int:
    """The gradient of `cdist` for one of its arguments."""
    return grad.numel() * a.shape[-1]


def own_distances(out: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> int:
    """`pdist`: the n(n-1)/2 distances within one set."""
    return out.numel() * x.shape[-1]


def fourier(complex_numbers: float, length: int) -> int:
    """Multiply-adds of transforms of `length` numbers each, `complex_numbers` in all."""
    return round(2.5 * complex_numbers * math.log2(length)) if length > 1 else 0


def fourier_complex(out: Tensor, x: Tensor, dims: Sequence[int], *args: Any, **kwargs: Any) -> int:
    """`fft`, `ifft` and their many-dimensional forms."""
    return fourier(x.numel(), math.prod(x.shape[dim] for dim in dims))


def fourier_from_real(out: Tensor, x: Tensor, dims: Sequence[int], *args: Any, **kwargs: Any) -> int:
    """`rfft`: a real transform is half a complex one."""
    return fourier(x.numel() / 2, math.prod(x.shape[dim] for dim in dims))


def fourier_to_real(out: Tensor, x: Tensor, dims: Sequence[int], *args: Any, **kwargs: Any) -> int:
    """`irfft`: sized by its real output."""
    return fourier(out.numel() / 2, math.prod(out.shape[dim] for dim in dims))


# Names without the trailing underscore of an in-place form.
PRODUCTS: dict[str, Formula] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm"), product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), added_product),
    "addbmm": summed_product,
    "_trilinear": trilinear,
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), convolution),
    "convolution_backward": convolution_backward,
    "conv_tbc": convolution_tbc,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        attention,
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention_backward",
            "_scaled_dot_product_fused_attention_overrideable_backward",
        ),
        attention_backward,
    ),
    "mkldnn_rnn_layer": onednn_rnn,
    "mkldnn_rnn_layer_backward": twice(onednn_rnn),
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), cudnn_rnn),
    **dict.fromkeys(("_cudnn_rnn_backward", "miopen_rnn_backward"), twice(cudnn_rnn)),
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), distances),
    "_cdist_backward": distances_backward,
    "_pdist_forward": own_distances,
    "_pdist_backward": lambda out, grad, x, *args, **kwargs: grad.numel() * x.shape[-1],
    "_fft_c2c": fourier_complex,
    "_fft_r2c": fourier_from_real,
    "_fft_c2r": fourier_to_real,
}
