# SPDX-License-Identifier: Apache-2.0
"""Global context block: one summary of the map, the same for every position, transformed and given back.

    c = sum_j softmax_j(w . x_j) x_j        z_i = x_i * sigmoid(T(c)) + T'(c)        T(c) = W_2 ReLU(norm(W_1 c))

Paper   GCNet: Non-local Networks Meet Squeeze-Excitation Networks and Beyond, ICCV workshop 2019,
        arXiv:1904.11492.
Facts   cost n c for the weights and n c for the sum, nothing for T; the context has rank 1.
Differs the default width inside T, a sixteenth of the channels, is at least 2: the layer norm of one is constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from widefield.core import layout
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import require_positive
from widefield.core.gates import GatedProjection
from widefield.core.layout import Space
from widefield.core.norm import NormName, make_norm
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register


def summarise(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`sum_j softmax_j(w . x_j + b) x_j`: `(b, c, n)`, `(1, c)`, `(1,)` to `(b, c, 1)`."""
    if torch.compiler.is_compiling():
        return tokens @ (weight @ tokens + bias).softmax(-1).mT
    return Summary.apply(tokens, weight, bias)[0]


class Summary(torch.autograd.Function):
    """`summarise`, and the weights `(b, 1, n)` without gradient. Its gradient is written once.

    The map meets the score and the sum; each would write a gradient as large as the map, to be added.
    """

    @staticmethod
    def forward(tokens: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        weights = (weight.expand(tokens.shape[0], -1, -1) @ tokens).softmax(-1)  # which a bias does not move
        return tokens @ weights.mT, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens, weight, bias, weights = ctx.saved_tensors
        weight = weight.expand(tokens.shape[0], -1, -1)
        if torch.is_grad_enabled():
            weights = (weight @ tokens).softmax(-1)
        slopes = grad.mT @ tokens
        slopes = weights * (slopes - (weights * slopes).sum(-1, keepdim=True))
        # A matrix product of two columns takes seven times as long.
        by_token = (weight.mT * slopes).addcmul_(grad, weights)
        return by_token, (slopes @ tokens.mT).sum(0), torch.zeros_like(bias)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dw: Tensor | None, _: Tensor | None) -> tuple[Tensor, None]:
        tokens, weight, _, weights = ctx.saved_tensors
        dx, dw = (torch.zeros_like(x) if d is None else d for x, d in ((tokens, dx), (weight, dw)))
        moved = weights * (weight @ dx + dw @ tokens)
        moved = moved - weights * moved.sum(-1, keepdim=True)
        return dx @ weights.mT + tokens @ moved.mT, None


class Bottleneck(nn.Module):
    """`T(c) = W_2 ReLU(norm(W_1 c))`, on `(b, channels, 1)`; W_2 is the gate."""

    def __init__(self, channels: int, hidden: int, *, norm: NormName, gate: float) -> None:
        super().__init__()
        self.squeeze = Pointwise(channels, hidden)
        self.norm = make_norm(norm, hidden)
        self.expand = GatedProjection(hidden, channels, norm="none", gate=gate)

    def forward(self, c: Tensor) -> Tensor:
        return self.expand(torch.relu(self.norm(self.squeeze(c))))


@register(
    "gcnet", family="attention", title="GCNet: Non-local Networks Meet Squeeze-Excitation Networks and Beyond",
    paper="arXiv:1904.11492", year=2019, row_sum=1.0, identity_at_init=True,
)  # fmt: skip
class GlobalContext(Context):
    """Attention whose weights do not ask who is looking: `x * sigmoid(T(c)) + T'(c)`.

    Shape: `(b, channels, *space) -> (b, channels, *space)`. With norm="batch", in training, T normalises over the
    batch alone, and uses the running statistics where that is one.

    Args:
        channels: of the input.
        hidden: width inside T (None: a sixteenth of the channels, at least 2).
        attend: weigh the positions with a learned softmax; False for the plain mean.
        add: add T'(c). multiply: multiply by sigmoid(T(c)) first. At least one of them.
        norm: inside T.
        gate: 0 starts the last layer of T and T' at zero, as published: a new block that only adds is an identity,
            one that multiplies halves its input. Otherwise what that layer's start is multiplied by.
    """

    def __init__(
        self,
        channels: int,
        *,
        hidden: int | None = None,
        attend: bool = True,
        add: bool = True,
        multiply: bool = False,
        norm: NormName = "layer",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        require_positive("GlobalContext", hidden=hidden)
        if not (add or multiply):
            raise ValueError("GlobalContext: with add=False and multiply=False nothing uses the context; set one")
        width = max(2, channels // 16) if hidden is None else hidden
        self.score = Pointwise(channels, 1) if attend else None
        if self.score is not None:
            nn.init.kaiming_normal_(self.score.weight, mode="fan_in")
        self.multiply = Bottleneck(channels, width, norm=norm, gate=gate) if multiply else None
        self.add = Bottleneck(channels, width, norm=norm, gate=gate) if add else None
        self.to(device=device, dtype=dtype)

    def weights(self, tokens: Tensor) -> Tensor:
        """`(b, 1, n)`, the weight of each position; it sums to 1."""
        if self.score is None:
            return torch.full_like(tokens[:, :1], 1 / tokens.shape[-1])
        return self.score(tokens).softmax(-1)

    def summary(self, tokens: Tensor) -> Tensor:
        """c, `(b, channels, 1)`."""
        if self.score is None:
            return tokens.mean(-1, keepdim=True)
        weight, bias = (parameter.to(tokens.dtype) for parameter in self.score.parameters())
        return summarise(tokens, weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        with float32_island(x):
            c = self.summary(layout.to_positions(widen(x))[0])
            z = x
            if self.multiply is not None:
                z = z * torch.sigmoid(self.multiply(c)).unflatten(2, (1,) * (x.dim() - 2))
            if self.add is not None:
                z = z + self.add(c).unflatten(2, (1,) * (x.dim() - 2))
        return layout.like(z.to(x.dtype), x)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.summary(tokens).expand_as(tokens)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        self._check(x)
        with float32_island(x):
            weights = self.weights(layout.to_positions(widen(x))[0])
            return weights.expand(-1, weights.shape[-1] if rows is None else len(rows), -1)

    def open_gate_(self, value: float = 1.0) -> bool:
        for transform in (self.multiply, self.add):
            if transform is not None:
                transform.expand.open_(value)
        return True

    def cost(self, shape: tuple[int, ...]) -> Cost:
        transforms = [t for t in (self.multiply, self.add) if t is not None]
        inside = sum(2 * self.channels * t.squeeze.out_channels for t in transforms)
        return Cost(
            shape[0] * (inside + self.mixing_cost(tuple(shape[2:]))),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        return 0 if self.score is None else 2 * math.prod(space) * self.channels
