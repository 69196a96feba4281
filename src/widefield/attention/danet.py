# SPDX-License-Identifier: Apache-2.0
"""Dual attention: over positions, over channels, and both.

    danet-pam   y = x + a v softmax(q^T k)^T           q, k of width c / 8, v of width c
    danet-cam   y = x + b softmax(max(E) - E) X        E = X X^T, c x c
    danet       y = x + a (position) + b (channel)

Paper   Dual Attention Network for Scene Segmentation, CVPR 2019, arXiv:1809.02983.
Facts   cost n^2 (c + c/8) for positions, 2 n c^2 for channels; memory never n x n. Not a bound on the rank.
Differs the logits have no 1/sqrt(d), as published. `danet` is one residual block; in the authors' head the two
        branches have convolutions of their own (`widefield.models.heads.DANetHead`). Channel attention weighs
        by difference, as the authors' code does; the paper's formula (similarity) is invert=False.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widefield.attention.sdpa import attention, attention_matrix
from widefield.core import layout
from widefield.core.context import Context
from widefield.core.errors import NoOperator
from widefield.core.gates import scalar_gate
from widefield.core.layout import Space
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register

TITLE, PAPER = "Dual Attention Network for Scene Segmentation", "arXiv:1809.02983"


def channel_matrix(x: Tensor, *, invert: bool = True) -> Tensor:
    """`softmax_d(+-x_c . x_d)`, weights of channel d for channel c: `(b, c, n) -> (b, c, c)`, rows sum to 1.

    Args:
        x: `(b, c, n)`; its energies are sums over all positions, so float32 at least.
        invert: the most different channel weighs most. `max(E) - E` in the authors' code: the softmax does not
            see what is constant along a row.
    """
    energy = x @ x.mT
    return (-energy if invert else energy).softmax(-1)


@register(
    "danet-pam", family="attention", title=TITLE, paper=PAPER, year=2019,
    row_sum=1.0, identity_at_init=True, complexity="n^2",
)  # fmt: skip
class PositionAttention(Context):
    """Position attention module (PAM): softmax attention with narrow keys and a learned scalar gate.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        inner: width of queries and keys (None: an eighth of the channels, at least 1).
        gate: initial value of the learned scale; 0 makes a new module an identity, as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        if inner is not None and inner < 1:
            raise ValueError(f"PositionAttention: inner must be a positive number of channels, got {inner}")
        self.inner = max(1, channels // 8) if inner is None else inner
        self.query = Pointwise(channels, self.inner)
        self.key = Pointwise(channels, self.inner)
        self.value = Pointwise(channels, channels)
        self.gate = scalar_gate(gate)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return attention(self.query(tokens), self.key(tokens), self.value(tokens))

    def leave(self, context: Tensor) -> Tensor:
        return self.gate * context

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, _ = layout.to_positions(widen(x))
            return attention_matrix(self.query(tokens), self.key(tokens), rows=rows)

    def mixing_cost(self, space: Space) -> int:
        return math.prod(space) ** 2 * (self.channels + self.inner)

    def open_gate_(self, value: float = 1.0) -> bool:
        with torch.no_grad():
            self.gate.fill_(value)
        return True


@register(
    "danet-cam", family="attention", title=TITLE, paper=PAPER, year=2019, identity_at_init=True, complexity="n"
)
class ChannelAttention(Context):
    """Channel attention module (CAM): each channel becomes a weighted mean of all channels. One parameter.

    Not over positions: every position is mixed in the same way, with weights that see the whole map.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        invert: weigh by difference, as the authors' code; False for the paper's formula.
        gate: initial value of the learned scale; 0 as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        invert: bool = True,
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        self.invert = invert
        self.gate = scalar_gate(gate)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return channel_matrix(tokens, invert=self.invert) @ tokens

    def leave(self, context: Tensor) -> Tensor:
        return self.gate * context

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Refused: the matrix is over channels (`channel_matrix`)."""
        raise NoOperator(
            "ChannelAttention mixes channels, not positions: it has a c x c matrix, which "
            "widefield.attention.channel_matrix gives"
        )

    def mixing_cost(self, space: Space) -> int:
        return 2 * math.prod(space) * self.channels**2

    def open_gate_(self, value: float = 1.0) -> bool:
        with torch.no_grad():
            self.gate.fill_(value)
        return True


@register(
    "danet", family="attention", title=TITLE, paper=PAPER, year=2019,
    row_sum=1.0, identity_at_init=True, complexity="n^2",
)  # fmt: skip
class DualAttention(Context):
    """Position and channel attention side by side on the same input, each with its gate, added to it.

    `context` holds both, `(b, 2 channels, *space)`, position first; `operator` is that of the positions.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        inner: width of the position branch's queries and keys (None: an eighth of the channels).
        invert: of the channel branch.
        gate: initial value of both scales; 0 as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        invert: bool = True,
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        self.position = PositionAttention(channels, inner=inner, gate=gate)
        self.channel = ChannelAttention(channels, invert=invert, gate=gate)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            # One branch after the other: side by side, as in `context`, they would be held twice.
            y = torch.addcmul(tokens, self.position.gate, self.position.mix(tokens, space))
            y = torch.addcmul(y, self.channel.gate, self.channel.mix(tokens, space))
        return layout.like(layout.to_map(y, space).to(x.dtype), x)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return torch.cat([self.position.mix(tokens, space), self.channel.mix(tokens, space)], 1)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """`(b, n, n)`: the weights of the position branch."""
        return self.position.operator(x, rows)

    def mixing_cost(self, space: Space) -> int:
        return self.position.mixing_cost(space) + self.channel.mixing_cost(space)

    def open_gate_(self, value: float = 1.0) -> bool:
        return self.position.open_gate_(value) and self.channel.open_gate_(value)
