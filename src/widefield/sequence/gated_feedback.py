# SPDX-License-Identifier: Apache-2.0
"""Gated-feedback networks: every layer at t - 1 feeds every layer at t, through one scalar gate a pair.

    g_ij = sigmoid(w_j . h^{j-1}_t + u_ij . h*_{t-1})          h* = all layers side by side, h^0_t = x_t
    h^j_t = tanh(W_j h^{j-1}_t + sum_i g_ij U_ij h^i_{t-1} + b_j)

In the LSTM form the candidate alone takes the gated sum; i, f and o see the layer below and their own past.

Paper   Gated Feedback Recurrent Neural Networks, ICML 2015, arXiv:1502.02367.
Facts   l layers: recurrent cost l^2 h^2 a step, gates l (h + l^2 h).
Differs orthogonal U_ii, the others Glorot; the paper does not say. No trustworthy implementation is public: the
        tests hold the layer to the written-out equations.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.sequence.init import orthogonal_blocks_, xavier_blocks_
from widefield.sequence.layer import SequenceLayer, State, masked, step_masks, zero_padding


class _GatedFeedback(SequenceLayer):
    """Weights and the loop over time; a form says what a layer makes of its sums."""

    gates = 1  # blocks of h rows in what enters a layer from below

    def __init__(self, input_size: int, hidden_size: int, layers: int) -> None:
        super().__init__(input_size, hidden_size)
        require_positive(type(self).__name__, layers=layers)
        self.hidden_size, self.layers = hidden_size, layers
        h, n = hidden_size, layers
        below = [input_size] + [h] * (n - 1)
        # The rows below those of the gates hold w_j, which is the same for all i.
        inputs = [nn.Linear(width, self.gates * h + 1) for width in below]
        self.inputs = nn.ModuleList(inputs)
        self.feedback = nn.Parameter(torch.empty(n, h, n * h))  # i, from, (j, to)
        self.feedback_gates = nn.Linear(n * h, n * n, bias=False)  # (j, i)
        with torch.no_grad():
            for layer in inputs:
                xavier_blocks_(layer.weight[:-1], self.gates)
                layer.bias.zero_()
            blocks = self.feedback.view(n, h, n, h)
            for i in range(n):
                for j in range(n):
                    block = torch.empty(h, h)
                    blocks[i, :, j] = orthogonal_blocks_(block) if i == j else xavier_blocks_(block, 1)

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        state = self.start(x, state)
        entering = self.inputs[0](x)
        top = []
        for step, alive in zip(entering.unbind(1), step_masks(lengths, x), strict=True):
            state = masked(alive, self.advance(step, state), state)
            top.append(state[0][:, -1])
        return zero_padding(torch.stack(top, 1), lengths), state

    def advance(self, entering: Tensor, state: State) -> State:
        """One step: `(b, gates * h + 1)` of the lowest layer and the state to the next state."""
        past = state[0]  # (b, n, h)
        b, n, h = past.shape
        # U_ij h^i for all pairs: one product a layer i, none depends on this step.
        returned = torch.bmm(past.transpose(0, 1), self.feedback).view(n, b, n, h)
        opened = self.feedback_gates(past.flatten(1)).view(b, n, n)
        own = self.own(past)
        found: list[State] = []
        for j in range(n):
            if j:
                entering = self.inputs[j](found[-1][0])
            gate = torch.sigmoid(entering[:, -1:] + opened[:, j])  # (b, i)
            fed = torch.einsum("bi,ibh->bh", gate, returned[:, :, j])
            found.append(self.cell(j, entering[:, :-1], fed, own, state))
        return tuple(torch.stack(part, 1) for part in zip(*found, strict=True))

    def own(self, past: Tensor) -> Tensor:
        return past

    def cell(self, j: int, entering: Tensor, fed: Tensor, own: Tensor, state: State) -> State:
        raise NotImplementedError


class GatedFeedbackRNN(_GatedFeedback):
    """The tanh form.

    Shape: `(b, t, input_size) -> (b, t, hidden_size)`, the top layer; state `(h,)`, `(b, layers, hidden_size)`.

    Args:
        input_size, hidden_size: widths.
        layers: all of one width.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        layers: int = 3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, layers)
        self.to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> State:
        return (like.new_zeros(batch, self.layers, self.hidden_size),)

    def cell(self, j: int, entering: Tensor, fed: Tensor, own: Tensor, state: State) -> State:
        return (torch.tanh(entering + fed),)


class GatedFeedbackLSTM(_GatedFeedback):
    """The LSTM form: the gated sum enters the candidate.

    Shape: `(b, t, input_size) -> (b, t, hidden_size)`, the top layer; state `(h, c)`, each
    `(b, layers, hidden_size)`.

    Args:
        input_size, hidden_size: widths.
        layers: all of one width.
        forget_bias: of the forget gates.
    """

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        layers: int = 3,
        forget_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, layers)
        self.past = nn.Parameter(torch.empty(layers, hidden_size, 3 * hidden_size))  # i f o
        with torch.no_grad():
            for own in self.past:
                for block in own.chunk(3, -1):
                    block.copy_(orthogonal_blocks_(torch.empty(hidden_size, hidden_size)))
            for layer in self.inputs:
                assert isinstance(layer, nn.Linear)
                layer.bias[:-1].view(4, hidden_size)[1].fill_(forget_bias)
        self.to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> State:
        return tuple(like.new_zeros(batch, self.layers, self.hidden_size) for _ in range(2))

    def own(self, past: Tensor) -> Tensor:
        return torch.bmm(past.transpose(0, 1), self.past)  # (n, b, 3h)

    def cell(self, j: int, entering: Tensor, fed: Tensor, own: Tensor, state: State) -> State:
        # (b, 4h) in the order i f o g
        h = self.hidden_size
        i, f, o = torch.sigmoid(entering[:, : 3 * h] + own[j]).chunk(3, -1)
        c = f * state[1][:, j] + i * torch.tanh(entering[:, 3 * h :] + fed)
        return o * torch.tanh(c), c
