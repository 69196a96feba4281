# SPDX-License-Identifier: Apache-2.0
"""Neural Turing machine: a controller with an external memory, addressed by content and by place.

    read    r = sum_i w(i) M(i)                  write   M(i) <- M(i) * (1 - w(i) e) + w(i) a
    w_c = softmax_i(beta cos(k, M(i)))           content
    w_g = g w_c + (1 - g) w_{t-1}                interpolation
    w_s(i) = sum_j w_g(i - j) s(j), j in -1 0 1  shift
    w = w_s ^ gamma / sum                        sharpening

Paper   Neural Turing Machines, arXiv:1410.5401; start of the memory: Collier & Beel, arXiv:1807.08518.
Facts   n rows of m: cost of a head O(n m) a step. The memory is each sequence's own. Heads are called read, write,
        read, write, ... and each sees the memory as the one before left it: the first read is of M_{t-1}.
Differs the first row of a shift moves the weights forward by a place, as in loudinthecloud/pytorch-ntm, whose
        states load. There the memory starts at random numbers that are not learned and the weights at zero; here
        the memory starts at a constant 1e-6, which trains most reliably, and the weights are learned, at first
        nearly all on row 0. One of them must tell the rows apart: equal rows under equal weights stay equal for
        ever. The sharpening is done with logarithms, the cosine of an empty row is 0 with gradient 0. Output is
        before the sigmoid: `BCEWithLogits` takes it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive, unknown
from widefield.core.numerics import inverse_length
from widefield.sequence.init import orthogonal_blocks_
from widefield.sequence.layer import SequenceLayer, State, masked, step_masks, zero_padding

SHIFTS = 3
FIRST_LOGIT = 10.0  # of row 0 against 0 elsewhere: 99.4 % of the weight with 128 rows
_TINY = 1e-16


class Trace(NamedTuple):
    """Every step: `y` `(b, t, outputs)`, `weights` `(b, t, 2 heads, n)` in calling order, and the last state."""

    y: Tensor
    weights: Tensor
    state: State


def by_content(key: Tensor, strength: Tensor, memory: Tensor) -> Tensor:
    """`softmax_i(beta cos(k, M(i)))`: keys `(b, k, m)`, strengths `(b, k, 1)`, memory `(b, n, m) -> (b, k, n)`."""
    # The lengths divide the products, not the memory: n m multiplications and their backward are saved.
    lengths = inverse_length(memory, -1).mT * inverse_length(key, -1)
    return torch.softmax(strength * lengths * torch.bmm(key, memory.mT), -1)


def shift(weights: Tensor, kernel: Tensor) -> Tensor:
    """Circular: `w_s(i) = s_0 w(i-1) + s_1 w(i) + s_2 w(i+1)`; `(b, k, n), (b, k, 3) -> (b, k, n)`."""
    around = torch.cat([weights[..., -1:], weights, weights[..., :1]], -1)
    return (kernel[..., None, :] @ around.unfold(-1, weights.shape[-1], 1))[..., 0, :]


def sharpen(weights: Tensor, power: Tensor) -> Tensor:
    """`w ^ gamma` over its sum, by logarithms; weights that are all zero stay so."""
    found = torch.softmax(weights.clamp(min=_TINY).log() * power, -1)
    return torch.where(weights.sum(-1, keepdim=True) > 0, found, 0.0)


class NTM(SequenceLayer):
    """Controller, memory, and pairs of a read and a write head.

    Shape: `(b, t, input_size) -> (b, t, output_size)`, logits. State: memory `(b, rows, width)`, reads
    `(b, heads, width)`, weights `(b, 2 heads, rows)`, and the controller's `(h, c)`, `(b, layers,
    controller_size)`.

    Args:
        input_size, output_size: widths of x and y.
        rows, width: of the memory, N and M in the paper.
        heads: pairs of a read and a write head.
        controller: "lstm", or "feedforward" (one tanh layer; its memory is the external one alone).
        controller_size: width of the controller; layers: of an LSTM controller.
        memory_start: every entry of the memory before the first step.
        learned_weights: the weights before the first step are learned; else zero, for states of the original,
            whose rows differ.

    Raises:
        UnknownName: a controller that does not exist. ValueError: fewer than one of anything.
    """

    memory_start: Tensor

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        rows: int = 128,
        width: int = 20,
        heads: int = 1,
        controller: Literal["lstm", "feedforward"] = "lstm",
        controller_size: int = 100,
        layers: int = 1,
        memory_start: float = 1e-6,
        learned_weights: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, output_size)
        require_positive(
            "NTM", rows=rows, width=width, heads=heads, controller_size=controller_size, layers=layers
        )
        if controller not in ("lstm", "feedforward"):
            raise unknown("controller", controller, ("lstm", "feedforward"))
        self.rows, self.width, self.heads = rows, width, heads
        self.controller_size, self.layers, self.feedforward = controller_size, layers, controller == "feedforward"
        entering = input_size + heads * width
        if self.feedforward:
            self.controller = nn.Linear(entering, controller_size)
            nn.init.xavier_uniform_(self.controller.weight)
            nn.init.zeros_(self.controller.bias)
        else:
            self.controller = nn.ModuleList(
                nn.LSTMCell(controller_size if layer else entering, controller_size) for layer in range(layers)
            )
            for cell in self.controller:
                orthogonal_blocks_(cell.weight_hh)  # type: ignore[arg-type]
                nn.init.xavier_uniform_(cell.weight_ih)  # type: ignore[arg-type]
                for bias in (cell.bias_ih, cell.bias_hh):
                    nn.init.zeros_(bias)  # type: ignore[arg-type]
            self.first_h, self.first_c = (
                nn.Parameter(0.05 * torch.randn(layers, controller_size)) for _ in range(2)
            )
        # A read head: key, strength, gate, shifts, power. A write head: erase and add besides.
        self.sizes = (width, 1, 1, SHIFTS, 1)
        address = sum(self.sizes)
        self.read, self.write = nn.ModuleList(), nn.ModuleList()
        for part, count in ((self.read, address), (self.write, address + 2 * width)):
            for _ in range(heads):
                part.append(nn.Linear(controller_size, count))
        self.output = nn.Linear(controller_size + heads * width, output_size)
        for layer in (*self.read, *self.write, self.output):
            nn.init.xavier_uniform_(layer.weight, gain=1.0 if layer is self.output else 1.4)  # type: ignore[arg-type]
            nn.init.normal_(layer.bias, std=0.01)  # type: ignore[arg-type]
        self.first_weights = None
        if learned_weights:
            self.first_weights = nn.Parameter(torch.zeros(2 * heads, rows))
            with torch.no_grad():
                self.first_weights[:, 0] = FIRST_LOGIT
        self.register_buffer("memory_start", torch.full((rows, width), memory_start))
        self.first_reads = nn.ParameterList(nn.Parameter(0.01 * torch.randn(width)) for _ in range(heads))
        self.to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> State:
        def repeated(start: Tensor) -> Tensor:
            return start.to(like.dtype).expand(batch, *start.shape)

        weights = like.new_zeros(batch, 2 * self.heads, self.rows)
        if self.first_weights is not None:
            weights = repeated(torch.softmax(self.first_weights, -1))
        external = (repeated(self.memory_start), repeated(torch.stack(list(self.first_reads))), weights)
        return external if self.feedforward else (*external, repeated(self.first_h), repeated(self.first_c))

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        trace = self.trace(x, state, lengths)
        return trace.y, trace.state

    def trace(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> Trace:
        """Outputs and weightings of every step."""
        state = self.start(x, state)
        hidden, weights = [], []
        # All heads' parameters by one product a step.
        heads = [layer for pair in zip(self.read, self.write, strict=True) for layer in pair]
        weight = torch.cat([layer.get_parameter("weight") for layer in heads])
        bias = torch.cat([layer.get_parameter("bias") for layer in heads])
        for step, alive in zip(x.unbind(1), step_masks(lengths, x), strict=True):
            output, new = self.advance(step, state, weight, bias)
            state = masked(alive, new, state)
            hidden.append(output)
            weights.append(state[2])
        y = self.output(torch.stack(hidden, 1))
        return Trace(zero_padding(y, lengths), zero_padding(torch.stack(weights, 1), lengths), state)

    def advance(self, x: Tensor, state: State, weight: Tensor, bias: Tensor) -> tuple[Tensor, State]:
        """One step: what the output layer reads, and the next state."""
        memory, reads, previous = state[:3]
        control, internal = self.control(torch.cat([x, reads.flatten(1)], -1), state[3:])
        found, weights = [], []
        # Reading changes nothing, so both heads of a pair are addressed at once.
        pairs = zip(
            F.linear(control, weight, bias).chunk(self.heads, -1), previous.chunk(self.heads, 1), strict=True
        )
        for told, before in pairs:
            where, erase, add = told.split((2 * sum(self.sizes), self.width, self.width), -1)
            w = self.address(where.unflatten(-1, (2, -1)), memory, before)
            found.append(torch.bmm(w[:, :1], memory)[:, 0])
            # M (1 - w e) + w a
            memory = memory - w[:, 1, :, None] * (memory * torch.sigmoid(erase)[:, None] - add[:, None])
            weights.append(w)
        new = (memory, torch.stack(found, 1), torch.cat(weights, 1), *internal)
        return torch.cat([control, *found], -1), new

    def control(self, x: Tensor, internal: State) -> tuple[Tensor, State]:
        """The controller's output, and its next `(h, c)`."""
        if self.feedforward:
            return torch.tanh(self.controller(x)), ()
        hs, cs = [], []
        for cell, h, c in zip(self.controller, internal[0].unbind(1), internal[1].unbind(1), strict=True):  # type: ignore[arg-type]
            x, c = cell(x, (h.contiguous(), c.contiguous()))
            hs.append(x)
            cs.append(c)
        return x, (torch.stack(hs, 1), torch.stack(cs, 1))

    def address(self, parameters: Tensor, memory: Tensor, before: Tensor) -> Tensor:
        """New weightings `(b, k, n)` of heads that see one memory."""
        key, strength, gate, kernel, power = parameters.split(self.sizes, -1)
        w = by_content(key, F.softplus(strength), memory)
        w = shift(before + torch.sigmoid(gate) * (w - before), torch.softmax(kernel, -1))
        return sharpen(w, 1 + F.softplus(power))
