# SPDX-License-Identifier: Apache-2.0
"""Global reasoning unit (GloRe): the map gathered into a few nodes, a graph convolution, and back the same way.

    V = (W_s X) P^T / n        P = W_p X                  c x n -> 2m x m, by a projection without softmax
    V <- W_g ReLU(V + V A^T)                              A: learned edges between the m nodes
    y = x + norm(W_e V P)

Paper   Graph-Based Global Reasoning Networks, CVPR 2019, arXiv:1811.12814.
Facts   cost 3 n c m and, on the nodes, 4 c m^2 + 6 m^3; rank of the context at most m.
Differs W_s and W_e meet m nodes instead of n positions: the same numbers, at half of the multiply-adds for
        m = c / 4. The authors' code sums over positions, so that everything grows with the map
        (normalize=False); the mean serves any size, and the edges' bias starts at zero beside it. The code
        leaves the last norm's scale at 1 beside the remark that it should be zero; here it is, and gate=1.0 is
        theirs.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from widefield.core import layout
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import NoOperator
from widefield.core.gates import GatedProjection
from widefield.core.layout import Space
from widefield.core.norm import BatchNorm, NormName
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register


def gather(x: Tensor, weights: Tensor, state: Pointwise) -> Tensor:
    """`(W_s X + b_s) P^T` with W_s applied after the sum over positions: `(b, c, n), (b, m, n) -> (b, d, m)`."""
    nodes = state.weight.to(x.dtype) @ (x @ weights.mT)
    if state.bias is None:
        return nodes
    return nodes + state.bias.to(x.dtype)[:, None] * weights.sum(-1)[:, None, :]


@register(
    "glore", family="graph", title="Graph-Based Global Reasoning Networks", paper="arXiv:1811.12814", year=2019,
    identity_at_init=True, max_rank="nodes",
)  # fmt: skip
class GloRe(Context):
    """`x + norm(W_e reason(W_s X P^T) P)`; with reason=False a linear attention whose keys are its queries.

    Shape: `(b, channels, *space) -> (b, channels, *space)`. `context` is after W_e, before the norm.

    Args:
        channels: of the input.
        nodes: m (None: a quarter of the channels, at least 1); a node's state has 2 m numbers.
        normalize: mean over positions instead of the sum, which grows with the map; False as published.
        reason: the graph convolution between the nodes; without it they go back as they came.
        norm: after W_e; "batch" with the authors' epsilon of 1e-4.
        gate: initial scale of that norm; 0 makes a new unit an identity.
    """

    def __init__(
        self,
        channels: int,
        *,
        nodes: int | None = None,
        normalize: bool = True,
        reason: bool = True,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        if nodes is not None and nodes < 1:
            raise ValueError(f"GloRe: nodes must be a positive number, got {nodes}")
        self.nodes = max(1, channels // 4) if nodes is None else nodes
        self.normalize, self.reason = normalize, reason
        states = 2 * self.nodes
        self.state = Pointwise(channels, states)
        self.assign = Pointwise(channels, self.nodes)
        if reason:
            self.edges = Pointwise(self.nodes, self.nodes)
            # Beside means, torch's start of a bias would silence whole nodes in the ReLU.
            assert self.edges.bias is not None
            nn.init.zeros_(self.edges.bias)
            self.update = Pointwise(states, states, bias=False)
        norm = partial(BatchNorm, eps=1e-4) if norm == "batch" else norm
        self.out = GatedProjection(states, channels, bias=False, norm=norm, gate=gate)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        weights = self.assign(tokens)
        nodes = gather(tokens, weights, self.state)
        if self.normalize:
            nodes = nodes / tokens.shape[-1]
        if self.reason:
            nodes = self.update(torch.relu(nodes + self.edges(nodes.mT).mT))
        return self.out.project(nodes) @ weights

    def leave(self, context: Tensor) -> Tensor:
        return self.out.norm(context)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """`P^T P / n`, of reason=False only."""
        if self.reason:
            raise NoOperator(
                "GloRe has a ReLU between gathering and giving back, so no position-by-position matrix; "
                "reason=False has one"
            )
        self._check(x)
        with float32_island(x):
            keys = self.assign(layout.to_positions(widen(x))[0])
            queries = keys if rows is None else keys.index_select(-1, rows.to(keys.device))
            return queries.mT @ keys / (keys.shape[-1] if self.normalize else 1)

    def cost(self, shape: tuple[int, ...]) -> Cost:
        return Cost(
            shape[0] * self.mixing_cost(tuple(shape[2:])),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        n, c, m = math.prod(space), self.channels, self.nodes
        return 3 * n * c * m + 4 * c * m * m + (6 * m**3 if self.reason else 0)

    def open_gate_(self, value: float = 1.0) -> bool:
        self.out.open_(value)
        return True
