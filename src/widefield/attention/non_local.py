# SPDX-License-Identifier: Apache-2.0
"""Non-local blocks: each position receives a weighted sum of a transform of all positions.

    y_i = 1/C_i sum_j f(x_i, x_j) g(x_j)        z_i = x_i + norm(W y_i)

    nonlocal            f = exp(theta_i . phi_j)              C = sum_j f   (embedded gaussian, "self-attention")
    nonlocal-gaussian   f = exp(x_i . x_j)                    C = sum_j f
    nonlocal-bare       the same on x itself: no parameters, no projections
    nonlocal-dot, nonlocal-concat: without softmax, see `non_local_linear.py`

Paper   Non-local Neural Networks, CVPR 2018, arXiv:1711.07971.
Facts   cost n m (d + e) for n queries, m keys, widths d and e; memory never n x m; rank bounded by nothing but e.
Differs projections start as torch's convolutions, not with std 0.01: at 0.01 every row starts as the plain
        average. Sub-sampling keeps an axis of size 1, where the published code is left with no key.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from widefield.attention.sdpa import attention, attention_matrix
from widefield.core import layout
from widefield.core.context import Context
from widefield.core.gates import GatedProjection
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register
from widefield.core.resample import max_pool

TITLE, PAPER = "Non-local Neural Networks", "arXiv:1711.07971"


def sub_sample(tokens: Tensor, space: Space) -> Tensor:
    """Max-pool by 2 along the last two spatial axes (time, the first of three, is kept): `(b, c, n) -> (b, c, m)`.

    An odd last row or column is dropped, as published; an axis of size 1 stays.
    """
    kernel = _kernel(space)
    return max_pool(layout.to_map(tokens, space), kernel).flatten(2)


def sampled_positions(space: Space) -> int:
    """How many keys `sub_sample` leaves."""
    return math.prod(size // step for size, step in zip(space, _kernel(space), strict=True))


def _kernel(space: Space) -> tuple[int, ...]:
    return tuple(1 if len(space) == 3 and axis == 0 else min(2, size) for axis, size in enumerate(space))


class NonLocalBase(Context):
    """Values, sub-sampling and the gated way out; a subclass says which keys and queries, and how they pair."""

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None,
        sub_sample: bool,
        bias: bool,
        project_bias: bool,
        norm: NormName,
        gate: float,
    ) -> None:
        super().__init__(channels)
        if inner is not None and inner < 1:
            raise ValueError(f"{type(self).__name__}: inner must be a positive number of channels, got {inner}")
        self.inner = max(1, channels // 2) if inner is None else inner
        self.sub_sample = sub_sample
        self.value = Pointwise(channels, self.inner, bias=bias)
        self.out = GatedProjection(self.inner, channels, bias=project_bias, norm=norm, gate=gate)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.aggregate(tokens, space, self.keys_from(self.value(tokens), space))

    def aggregate(self, tokens: Tensor, space: Space, values: Tensor) -> Tensor:
        """`(b, c, n)` tokens and `(b, e, m)` values to `(b, e, n)`."""
        raise NotImplementedError

    def matrix(self, tokens: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        """The `(b, n, m)` weights f / C."""
        raise NotImplementedError

    def keys_from(self, tokens: Tensor, space: Space) -> Tensor:
        """The keys' side of a map: sub-sampled if the module is."""
        return sub_sample(tokens, space) if self.sub_sample else tokens

    def leave(self, context: Tensor) -> Tensor:
        return self.out(context)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            return self.matrix(*layout.to_positions(widen(x)), rows)

    def open_gate_(self, value: float = 1.0) -> bool:
        self.out.open_(value)
        return True

    def key_count(self, space: Space) -> int:
        """m, the number of keys."""
        return sampled_positions(space) if self.sub_sample else math.prod(space)


class EmbeddedBase(NonLocalBase):
    """With projections theta and phi for queries and keys."""

    def __init__(self, channels: int, *, shared_query_key: bool, bias: bool, **options: Any) -> None:
        super().__init__(channels, bias=bias, **options)
        self.query = Pointwise(channels, self.inner, bias=bias)
        self.key = None if shared_query_key else Pointwise(channels, self.inner, bias=bias)

    def queries_keys(self, tokens: Tensor, space: Space) -> tuple[Tensor, Tensor]:
        """`(b, d, n)` queries and `(b, d, m)` keys."""
        queries = self.query(tokens)
        keys = queries if self.key is None else self.key(tokens)
        return queries, self.keys_from(keys, space)


@register(
    "nonlocal", family="attention", title=TITLE, paper=PAPER, year=2018,
    row_sum=1.0, identity_at_init=True, complexity="n^2",
)  # fmt: skip
class NonLocal(EmbeddedBase):
    """Embedded gaussian: `x + norm(W softmax(theta(x)^T phi(x)) g(x))`. Also called self-attention, "SA".

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        inner: width of theta, phi and g (None: half of the channels, at least 1).
        sub_sample: max-pool keys and values by 2 (not along time, the first of three axes).
        shared_query_key: phi = theta, as in OCNet.
        scale: divide the logits by sqrt(inner), as the authors' code does; the paper's formula does not.
        bias: of theta, phi and g. project_bias: of W; mmcv has none where a norm follows.
        norm: after W.
        gate: initial scale of that norm; 0 makes a new block an identity, as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        sub_sample: bool = False,
        shared_query_key: bool = False,
        scale: bool = True,
        bias: bool = True,
        project_bias: bool = True,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels, inner=inner, sub_sample=sub_sample, shared_query_key=shared_query_key, bias=bias,
            project_bias=project_bias, norm=norm, gate=gate,
        )  # fmt: skip
        self.scale = self.inner**-0.5 if scale else 1.0
        self.to(device=device, dtype=dtype)

    def aggregate(self, tokens: Tensor, space: Space, values: Tensor) -> Tensor:
        queries, keys = self.queries_keys(tokens, space)
        return attention(queries, keys, values, scale=self.scale)

    def matrix(self, tokens: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        return attention_matrix(*self.queries_keys(tokens, space), rows=rows, scale=self.scale)

    def mixing_cost(self, space: Space) -> int:
        return math.prod(space) * self.key_count(space) * 2 * self.inner


@register(
    "nonlocal-gaussian", family="attention", title=TITLE, paper=PAPER, year=2018,
    row_sum=1.0, identity_at_init=True, complexity="n^2",
)  # fmt: skip
class NonLocalGaussian(NonLocalBase):
    """Gaussian: `x + norm(W softmax(x^T x) g(x))`; similarity of the raw features.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels, inner, sub_sample, bias, project_bias, norm, gate: as `nonlocal`.
        scale: divide the logits by sqrt(channels); off as published. Features of unit variance make rows that
            are one-hot without it.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        sub_sample: bool = False,
        scale: bool = False,
        bias: bool = True,
        project_bias: bool = True,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels,
            inner=inner,
            sub_sample=sub_sample,
            bias=bias,
            project_bias=project_bias,
            norm=norm,
            gate=gate,
        )
        self.scale = channels**-0.5 if scale else 1.0
        self.to(device=device, dtype=dtype)

    def aggregate(self, tokens: Tensor, space: Space, values: Tensor) -> Tensor:
        return attention(tokens, self.keys_from(tokens, space), values, scale=self.scale)

    def matrix(self, tokens: Tensor, space: Space, rows: Tensor | None) -> Tensor:
        return attention_matrix(tokens, self.keys_from(tokens, space), rows=rows, scale=self.scale)

    def mixing_cost(self, space: Space) -> int:
        return math.prod(space) * self.key_count(space) * (self.channels + self.inner)


@register("nonlocal-bare", family="attention", title=TITLE, paper=PAPER, year=2018, row_sum=1.0, complexity="n^2")
class NonLocalBare(Context):
    """`x + softmax(x^T x) x`: no parameters at all; what is left of attention when its projections go.

    Shape: `(b, channels, *space) -> (b, channels, *space)`. It has no gate.

    Args:
        channels: of the input.
        scale: divide the logits by sqrt(channels); off as published.
    """

    def __init__(self, channels: int, *, scale: bool = False) -> None:
        super().__init__(channels)
        self.scale = channels**-0.5 if scale else 1.0

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return attention(tokens, tokens, tokens, scale=self.scale)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens = widen(x).flatten(2)
            return attention_matrix(tokens, tokens, rows=rows, scale=self.scale)

    def mixing_cost(self, space: Space) -> int:
        return 2 * math.prod(space) ** 2 * self.channels
