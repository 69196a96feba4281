# SPDX-License-Identifier: Apache-2.0
"""Hierarchical multiscale LSTM: every layer finds boundaries, and the layer above moves only there.

    s = h^l_{t-1} R + z^l_{t-1} (h^{l+1}_{t-1} U) + z^{l-1}_t (h^{l-1}_t W) + b      gates i g o f and z~
    z = 1 where hardsigm(z~) = clip((a z~ + 1) / 2, 0, 1) > 1/2,  backward as if z were the hard sigmoid

    z^l_{t-1} = 1                  flush    c = i g            h = o tanh(c)
    z^l_{t-1} = 0, z^{l-1}_t = 1   update   c = f c + i g      h = o tanh(c)
    both 0                         copy     c, h as they were

Paper   Hierarchical Multiscale Recurrent Neural Networks, ICLR 2017, arXiv:1609.01704.
Facts   dense: a copied step costs what an updated one does. The gradient reaches boundaries through the products
        z h alone, not through the choice of the operation. Boundaries degenerate easily (always 0 or always 1):
        look at `boundaries(x).mean((0, 1))`.
Differs the slope a is a buffer, which `anneal` sets; forget bias 1. Layer normalisation is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.sequence.init import orthogonal_blocks_
from widefield.sequence.layer import SequenceLayer, State, masked, step_masks, zero_padding


class Trace(NamedTuple):
    """Every step: `h` `(b, t, sum of widths)`, `z` `(b, t, layers)`, and the last state."""

    h: Tensor
    z: Tensor
    state: State


def hard_sigmoid(x: Tensor, slope: Tensor | float) -> Tensor:
    """`clip((a x + 1) / 2, 0, 1)`."""
    return ((slope * x + 1) / 2).clamp(0, 1)


class StraightThrough(torch.autograd.Function):
    """1 where p is above the threshold, elsewhere 0; the gradient passes as through the identity."""

    @staticmethod
    def forward(p: Tensor, threshold: Tensor | float) -> Tensor:
        return (p > threshold).to(p.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | float], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def binary(p: Tensor, *, sample: bool = False) -> Tensor:
    """A boundary from its probability: a step at 1/2, or a Bernoulli draw; straight-through either way."""
    return StraightThrough.apply(p, torch.rand_like(p) if sample else 0.5)


class HMLSTM(SequenceLayer):
    """Layers of any widths with boundary detectors.

    Shape: `(b, t, input_size) -> (b, t, sum(hidden_sizes))`, from the lowest layer to the highest. State `(h, c,
    z)`: twice `(b, sum(hidden_sizes))` and `(b, layers)`.

    Args:
        input_size: width of x.
        hidden_sizes: of the layers.
        sample: draw the boundaries in training instead of rounding them.
        forget_bias: of the forget gates.
    """

    slope: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        sample: bool = False,
        forget_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not hidden_sizes:
            raise ValueError("HMLSTM needs at least one layer; hidden_sizes is empty")
        for width in hidden_sizes:
            require_positive("HMLSTM", hidden_sizes=width)
        super().__init__(input_size, sum(hidden_sizes))
        self.hidden_sizes, self.sample = tuple(hidden_sizes), sample
        self.register_buffer("slope", torch.ones(()))
        widths = self.hidden_sizes
        self.own, self.below, self.above, self.bias = (nn.ParameterList() for _ in range(4))
        for layer, h in enumerate(widths):
            own = torch.cat(
                [orthogonal_blocks_(torch.empty(4 * h, h)).mT, torch.empty(h, 1).uniform_(-1, 1) / h], 1
            )
            below = torch.empty(widths[layer - 1] if layer else input_size, 4 * h + 1)
            bias = torch.zeros(4 * h + 1)
            bias[3 * h : 4 * h] = forget_bias
            self.own.append(nn.Parameter(own))
            self.below.append(nn.Parameter(nn.init.xavier_uniform_(below)))
            self.bias.append(nn.Parameter(bias))
            if layer + 1 < len(widths):
                above = torch.empty(widths[layer + 1], 4 * h + 1)
                self.above.append(nn.Parameter(nn.init.xavier_uniform_(above)))
        self.to(device=device, dtype=dtype)

    def anneal(self, epoch: float) -> None:
        """Sets the slope to the paper's `min(5, 1 + 0.04 epoch)`."""
        self.slope.fill_(min(5.0, 1.0 + 0.04 * epoch))

    def initial_state(self, batch: int, like: Tensor) -> State:
        h, c = (like.new_zeros(batch, self.output_size) for _ in range(2))
        return h, c, like.new_zeros(batch, len(self.hidden_sizes))

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        trace = self.trace(x, state, lengths)
        return trace.h, trace.state

    def boundaries(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """`(b, t, layers)` of zeros and ones; their mean is the firing rate of a layer."""
        return self.trace(x, None, lengths).z

    def trace(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> Trace:
        """Outputs and boundaries of every step."""
        state = self.start(x, state)
        entering = x @ self.below[0] + self.bias[0]
        hs, zs = [], []
        for step, alive in zip(entering.unbind(1), step_masks(lengths, x), strict=True):
            state = masked(alive, self.advance(step, state), state)
            hs.append(state[0])
            zs.append(state[2])
        return Trace(zero_padding(torch.stack(hs, 1), lengths), zero_padding(torch.stack(zs, 1), lengths), state)

    def advance(self, entering: Tensor, state: State) -> State:
        """One step, from what enters the lowest layer."""
        h_old, c_old = (list(part.split(self.hidden_sizes, -1)) for part in state[:2])
        z_old = state[2].split(1, -1)
        found: list[State] = []
        for layer, width in enumerate(self.hidden_sizes):
            if layer:
                h_below, _, z_below = found[-1]
                s = z_below * (h_below @ self.below[layer]) + self.bias[layer]
            else:
                s, z_below = entering, torch.ones_like(z_old[0])
            s = s + h_old[layer] @ self.own[layer]
            if layer + 1 < len(self.hidden_sizes):
                s = s + z_old[layer] * (h_old[layer + 1] @ self.above[layer])
            i, g, o, f = s[:, :-1].split(width, -1)
            written = torch.sigmoid(i) * torch.tanh(g)
            flush, copy = z_old[layer] > 0.5, (z_old[layer] <= 0.5) & (z_below <= 0.5)
            c = torch.where(flush, written, torch.sigmoid(f) * c_old[layer] + written)
            c = torch.where(copy, c_old[layer], c)
            h = torch.where(copy, h_old[layer], torch.sigmoid(o) * torch.tanh(c))
            z = binary(hard_sigmoid(s[:, -1:], self.slope), sample=self.sample and self.training)
            found.append((h, c, z))
        return tuple(torch.cat(part, -1) for part in zip(*found, strict=True))


class GatedOutput(nn.Module):
    """The paper's reading of all layers: `ReLU(sum_l sigmoid(w_l . [h^1 ... h^L]) W_l h^l)`.

    Shape: `(..., sum(hidden_sizes)) -> (..., output_size)`.
    """

    def __init__(self, hidden_sizes: Sequence[int], output_size: int) -> None:
        super().__init__()
        require_positive("GatedOutput", output_size=output_size)
        self.hidden_sizes = tuple(hidden_sizes)
        self.gate = nn.Linear(sum(hidden_sizes), len(self.hidden_sizes), bias=False)
        self.embed = nn.ModuleList(nn.Linear(width, output_size, bias=False) for width in hidden_sizes)

    def forward(self, h: Tensor) -> Tensor:
        gates = torch.sigmoid(self.gate(h)).split(1, -1)
        parts = h.split(self.hidden_sizes, -1)
        return torch.relu(sum(g * e(p) for g, e, p in zip(gates, self.embed, parts, strict=True)))  # type: ignore[arg-type]
