# SPDX-License-Identifier: Apache-2.0
"""Content-aware reassembly: each output position is a weighted mean of a window, with predicted weights.

    y_c(s p + a) = sum_o w_g(c),o(s p + a) x_c(p + o)      w = softmax_o(encoder(compressor(x)))

Paper   CARAFE: Content-Aware ReAssembly of FEatures, ICCV 2019, arXiv:1905.02188.
Facts   cost n c d + n 9 d s^2 k^2 g for the weights, n s^2 k^2 c elementwise for the sum. Local: k^2 weights a
        row, each group of channels with its own. No residual; a factor s enlarges the map.
Differs here the default factor is 1, so that it stands where other modules stand; published is 2. At the border
        the authors' softmax gives weight to taps outside the map, where there is nothing: mask_padding=False.
        Their code has no norm; a third-party port has, and a ReLU after the compressor's: norm="batch".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.attention.windows import inside, window, window_matrix, window_sum
from widefield.core import layout
from widefield.core.context import Context
from widefield.core.errors import NoOperator
from widefield.core.layout import Space
from widefield.core.norm import NormName, make_norm
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register


def reassemble(x: Tensor, kernels: Tensor, *, factor: int = 1, groups: int = 1) -> Tensor:
    """Weighted k x k sums around the source of each output position; zero outside the map.

    Args:
        x: `(b, c, h, w)`.
        kernels: `(b, groups k^2, factor h, factor w)`, used as they are; group after group.
        factor: of enlargement; output (i, j) has its source at (i // factor, j // factor).
        groups: blocks of channels with kernels of their own; must divide c.

    Returns:
        `(b, c, factor h, factor w)`.

    Raises:
        ValueError: shapes that do not fit.
    """
    b, c, h, w = x.shape
    size = math.isqrt(kernels.shape[1] // groups)
    if c % groups or size % 2 == 0 or kernels.shape != (b, groups * size**2, factor * h, factor * w):
        raise ValueError(
            "reassemble takes kernels (b, groups k^2, factor h, factor w) with k odd and groups that divide c; "
            f"got x {tuple(x.shape)}, kernels {tuple(kernels.shape)}, factor {factor} and {groups} groups"
        )
    kernels = F.pixel_unshuffle(kernels, factor) if factor > 1 else kernels
    return _reassemble(x, kernels.unflatten(1, (groups, size**2, factor**2)), factor, size)


def _reassemble(x: Tensor, kernels: Tensor, factor: int, size: int) -> Tensor:
    """With kernels `(b, g, k^2, factor^2, h, w)`, as the encoder gives them."""
    offsets = window(size, 2)
    if factor == 1:
        return window_sum(kernels[:, :, :, 0], x, offsets)
    parts = [window_sum(kernels[:, :, :, a], x, offsets) for a in range(factor**2)]
    return F.pixel_shuffle(torch.stack(parts, 2).flatten(1, 2), factor)


@register(
    "carafe", family="attention", title="CARAFE: Content-Aware ReAssembly of FEatures", paper="arXiv:1905.02188",
    year=2019, row_sum=1.0, complexity="n",
    limits={"dimensions": "a kernel of rows and columns: two dimensions"},
)  # fmt: skip
class Carafe(Context):
    """A k x k weighted mean around each position, with weights predicted from the content; upsamples by `factor`.

    Shape: `(b, channels, h, w) -> (b, channels, factor h, factor w)`.

    Args:
        channels: of the input.
        factor: of enlargement, 1 or more.
        kernel: k, odd; 5 as published.
        encoder_kernel: of the convolution that predicts the weights, odd; 3 as published (k - 2).
        inner: width of the compressed features; 64 as published.
        groups: blocks of channels with weights of their own; must divide the channels.
        mask_padding: weights of taps outside the map are zero before they are normalised; False as published.
        norm: after compressor and encoder, whose biases it replaces; with one, a ReLU follows the compressor.
    """

    space_dims = (2,)

    def __init__(
        self,
        channels: int,
        *,
        factor: int = 1,
        kernel: int = 5,
        encoder_kernel: int = 3,
        inner: int = 64,
        groups: int = 1,
        mask_padding: bool = True,
        norm: NormName = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        for name, value in (("kernel", kernel), ("encoder_kernel", encoder_kernel)):
            if value < 1 or value % 2 == 0:
                raise ValueError(f"Carafe: {name} must be an odd positive integer, got {value}")
        if factor < 1 or inner < 1:
            raise ValueError(f"Carafe: factor and inner must be positive integers, got {factor} and {inner}")
        if groups < 1 or channels % groups:
            raise ValueError(f"Carafe: groups must divide the {channels} channels, got {groups}")
        self.factor, self.kernel, self.encoder_kernel, self.groups = factor, kernel, encoder_kernel, groups
        self.mask_padding, self.normed = mask_padding, norm != "none"
        weights = groups * kernel**2 * factor**2
        self.compress = Pointwise(channels, inner, bias=not self.normed)
        self.compress_norm = make_norm(norm, inner)
        self.encode = nn.Parameter(torch.empty(weights, inner, encoder_kernel, encoder_kernel))
        self.encode_bias = None if self.normed else nn.Parameter(torch.zeros(weights))
        self.encode_norm = make_norm(norm, weights)
        nn.init.xavier_uniform_(self.compress.weight)
        nn.init.normal_(self.encode, std=0.001)
        if self.compress.bias is not None:
            nn.init.zeros_(self.compress.bias)
        self.to(device=device, dtype=dtype)

    def weights(self, tokens: Tensor, space: Space) -> Tensor:
        """`(b, c, n)` features to weights `(b, groups, k^2, factor^2, h, w)` that sum to 1 over the window."""
        z = self.compress_norm(self.compress(layout.to_map(tokens, space)))
        z = torch.relu(z) if self.normed else z
        bias = None if self.encode_bias is None else self.encode_bias.to(z.dtype)
        z = self.encode_norm(F.conv2d(z, self.encode.to(z.dtype), bias, padding=self.encoder_kernel // 2))
        z = z.unflatten(1, (self.groups, self.kernel**2, self.factor**2))
        if self.mask_padding:
            outside = ~inside(window(self.kernel, 2), space, z.device)
            z = z.masked_fill(outside[:, None], -math.inf)
        return z.softmax(2)

    def context(self, x: Tensor) -> Tensor:
        """The reassembled map, which is the output."""
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            size = tuple(self.factor * side for side in space)
            return layout.to_map(self.mix(tokens, space), size)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        weights = self.weights(tokens, space)
        return _reassemble(layout.to_map(tokens, space), weights, self.factor, self.kernel).flatten(2)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """`(b, n, n)`, k^2 weights a row.

        Raises:
            NoOperator: several groups, which have one each, or a factor above 1.
        """
        self._check(x)
        if self.groups > 1 or self.factor > 1:
            raise NoOperator(
                "Carafe has one position-by-position matrix with groups=1 and factor=1; every group has weights "
                "of its own, and an enlarged map has other positions: Carafe.weights gives them"
            )
        with float32_island(x):
            weights = self.weights(*layout.to_positions(widen(x)))[:, 0, :, 0]
            matrix = window_matrix(weights, window(self.kernel, 2))
            return matrix if rows is None else matrix.index_select(1, rows.to(x.device))

    def mixing_cost(self, space: Space) -> int:
        return math.prod(space) * self.encode.numel()
