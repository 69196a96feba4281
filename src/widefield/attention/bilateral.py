# SPDX-License-Identifier: Apache-2.0
"""Bilateral filter: the mean of positions that are near and alike.

    y_p = sum_q w_pq x_q / sum_q w_pq        w_pq = exp(-|p - q|^2 / 2 s^2 - |x_p - x_q|^2 / 2 r^2)

Paper   Bilateral Filtering for Gray and Color Images, ICCV 1998.
Facts   cost n^2 (2 c + dims + 1) over the whole map, memory never n x n; n k^2 c elementwise in a window of k.
        No parameters. Attention whose queries and keys are features beside coordinates; without s (infinite) a
        step of mean shift.
Differs the paper's images have one or three channels; here any number, at the distance of their vectors. The
        output is the filtered map, without residual.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.attention.distances import gaussian_attention, gaussian_matrix
from widefield.attention.windows import inside, window, window_dot, window_matrix, window_sum
from widefield.core import layout
from widefield.core.context import Context
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen
from widefield.core.registry import register


def coordinates(space: Space, like: Tensor) -> Tensor:
    """`(dims, n)`: the position of each position, in pixels."""
    axes = [torch.arange(size, dtype=like.dtype, device=like.device) for size in space]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)


@register(
    "bilateral", family="attention", title="Bilateral Filtering for Gray and Color Images", paper="ICCV 1998",
    year=1998, row_sum=1.0, complexity="n^2",
)  # fmt: skip
class Bilateral(Context):
    """Mean weighted by nearness in space and in features. No parameters, no residual.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        sigma_space: s, in pixels; `math.inf` for features alone.
        sigma_range: r (None: half the square root of the channels; independent features of unit variance are 2.8
            times that apart).
        window: side of the window that is averaged, odd; None for the whole map. Taps outside the map take no
            part.
    """

    def __init__(
        self,
        channels: int,
        *,
        sigma_space: float = 8.0,
        sigma_range: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(channels)
        self.sigma_space = sigma_space
        self.sigma_range = 0.5 * channels**0.5 if sigma_range is None else sigma_range
        self.window = window
        if not (self.sigma_space > 0 and self.sigma_range > 0):
            raise ValueError(
                f"Bilateral: sigma_space and sigma_range must be positive, got {sigma_space} and {sigma_range}"
            )
        if window is not None and (window < 1 or window % 2 == 0):
            raise ValueError(f"Bilateral: window must be an odd positive integer or None, got {window}")

    def features(self, tokens: Tensor, space: Space) -> Tensor:
        """Features and coordinates over their widths, `(b, c + dims, n)`: weights go by the distances there."""
        place = coordinates(space, tokens).expand(tokens.shape[0], -1, -1)
        return torch.cat([tokens / self.sigma_range, place / self.sigma_space], 1)

    def weights(self, tokens: Tensor, space: Space, size: int) -> Tensor:
        """`(b, taps, *space)`, the weights of a window, which sum to 1."""
        offsets = window(size, len(space))
        a = (tokens - tokens.mean(-1, keepdim=True).detach()) / self.sigma_range
        a = layout.to_map(a, space)
        squares = a.square().sum(1, keepdim=True)
        logits = window_dot(a, a, offsets) - 0.5 * window_dot(torch.ones_like(squares), squares, offsets)
        far = [-0.5 * sum(o * o for o in offset) / self.sigma_space**2 for offset in offsets]
        logits = logits[:, 0] + logits.new_tensor(far).view(-1, *(1,) * len(space))
        return logits.masked_fill(~inside(offsets, space, tokens.device), -math.inf).softmax(1)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        if self.window is None:
            features = self.features(tokens, space)
            return gaussian_attention(features, features, tokens)
        weights = self.weights(tokens, space, self.window).unsqueeze(1)
        return window_sum(weights, layout.to_map(tokens, space), window(self.window, len(space))).flatten(2)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            if self.window is None:
                features = self.features(tokens, space)
                return gaussian_matrix(features, features, rows=rows)
            matrix = window_matrix(self.weights(tokens, space, self.window), window(self.window, len(space)))
            return matrix if rows is None else matrix.index_select(1, rows.to(x.device))

    def mixing_cost(self, space: Space) -> int:
        if self.window is not None:
            return 0
        return math.prod(space) ** 2 * (2 * self.channels + len(space) + 1)
