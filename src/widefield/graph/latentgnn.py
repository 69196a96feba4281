# SPDX-License-Identifier: Apache-2.0
"""LatentGNN: positions send to a few latent nodes, these to each other, and back with weights of their own.

    h = Psi u^T        h <- softmax(h^ h^^T) h        y = x + a norm(W [h^T Psi', one for each kernel])

u: features of unit length; Psi, Psi': non-negative, nodes by positions; h^: rows of h of unit length.

Paper   LatentGNN: Learning Efficient Non-local Relations for Visual Recognition, ICML 2019, arXiv:1905.11634.
Facts   cost O(n c (d + inner)) for d nodes; rank of each kernel's context at most d.
Differs not in the mathematics of the authors' code. There both affinities are scaled to unit length (L2), Psi over
        positions and Psi' over nodes, so nothing sums to one; the values come from the branch of Psi, that of
        Psi' serves Psi' alone. Features without direction stay zero, with no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from widefield.core import layout
from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.errors import NoOperator
from widefield.core.gates import scalar_gate
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.numerics import float32_island, inverse_length, unit, widen
from widefield.core.pointwise import together
from widefield.core.registry import register


def node_affinity(nodes: Tensor) -> Tensor:
    """`softmax_l(cos(h_k, h_l))`, `(b, d, c) -> (b, d, d)`."""
    directions = unit(nodes, 2)
    return (directions @ directions.mT).softmax(-1)


class LatentKernel(nn.Module):
    """One set of latent nodes between features u, read for sending, and u', read for giving back.

    Shape: two `(b, inner, n)` to `(b, inner, n)`.
    """

    def __init__(
        self, inner: int, nodes: int, *, symmetric: bool, reason: bool, transform: bool, norm: NormName
    ) -> None:
        super().__init__()
        self.reason = reason
        self.send = PointwiseBranch(inner, nodes, norm=norm)
        self.receive = None if symmetric else PointwiseBranch(inner, nodes, norm=norm)
        self.transform = PointwiseBranch(inner, inner, norm=norm) if transform else None

    def affinities(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Psi and Psi', `(b, d, n)`, and the factor `(b, d, 1)` that Psi still lacks, or None."""
        sent = widen(self.send(u))
        if self.receive is None:
            sent = unit(sent, 1)
            return sent, sent, None
        return sent, unit(widen(self.receive(v)), 1), inverse_length(sent, 2)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        sent, received, length = self.affinities(u, v)
        nodes = sent @ u.mT
        if length is not None:
            nodes = nodes * length
        if self.reason:
            nodes = node_affinity(nodes) @ nodes
        y = nodes.mT @ received
        return y if self.transform is None else widen(self.transform(y))

    def matrix(self, u: Tensor, v: Tensor, rows: Tensor | None) -> Tensor:
        """`(b, n, n)`: the weights with which a position receives the u of all."""
        sent, received, length = self.affinities(u, v)
        sent = sent if length is None else sent * length
        received = received if rows is None else received.index_select(-1, rows.to(received.device))
        return received.mT @ (node_affinity(sent @ u.mT) @ sent if self.reason else sent)


@register(
    "latentgnn", family="graph", title="LatentGNN: Learning Efficient Non-local Relations for Visual Recognition",
    paper="arXiv:1905.11634", year=2019, identity_at_init=True, max_rank="nodes",
)  # fmt: skip
class LatentGNN(Context):
    """Low-rank, sparse-by-ReLU affinity over positions, learned from both ends.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        nodes: d, latent nodes; several numbers for as many kernels side by side.
        inner: width of u (None: a quarter of the channels, at least 1).
        symmetric: one affinity for both ways, scaled over nodes; otherwise each way has its own, and its own u.
        reason: messages between the nodes; without them each goes back as it was gathered.
        transform: a 1x1, norm and ReLU on what each kernel returns; it lifts the bound on the rank.
        norm: after every 1x1.
        gate: initial value of the scale a; 0 as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        nodes: int | Sequence[int] = 100,
        inner: int | None = None,
        symmetric: bool = False,
        reason: bool = True,
        transform: bool = False,
        norm: NormName = "batch",
        gate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        self.nodes = (nodes,) if isinstance(nodes, int) else tuple(nodes)
        if not self.nodes or min(self.nodes) < 1:
            raise ValueError(f"LatentGNN: nodes must be one or more positive numbers, got {nodes!r}")
        if inner is not None and inner < 1:
            raise ValueError(f"LatentGNN: inner must be a positive number of channels, got {inner}")
        self.inner = max(1, channels // 4) if inner is None else inner
        self.reason = reason
        self.send = PointwiseBranch(channels, self.inner, norm=norm, slope=1)
        self.receive = None if symmetric else PointwiseBranch(channels, self.inner, norm=norm, slope=1)
        self.kernels = nn.ModuleList(
            LatentKernel(self.inner, d, symmetric=symmetric, reason=reason, transform=transform, norm=norm)
            for d in self.nodes
        )
        self.up = PointwiseBranch(self.inner * len(self.nodes), channels, norm=norm, slope=1)
        self.gate = scalar_gate(gate)
        self.to(device=device, dtype=dtype)

    def ends(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """u of both ways, `(b, inner, n)`."""
        if self.receive is None:
            u = unit(widen(self.send(tokens)), 1)
            return u, u
        sent, received = together(tokens, self.send.project, self.receive.project)
        return unit(widen(self.send.norm(sent)), 1), unit(widen(self.receive.norm(received)), 1)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        u, v = self.ends(tokens)
        found = [kernel(u, v) for kernel in self.kernels]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def leave(self, context: Tensor) -> Tensor:
        return self.gate * self.up(context)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """`Psi'^T softmax(..) Psi`, of a single kernel without `transform`."""
        kernel = self.kernels[0]
        assert isinstance(kernel, LatentKernel)
        if len(self.kernels) > 1 or kernel.transform is not None:
            raise NoOperator(
                "LatentGNN has one matrix a kernel, and none with transform=True; build it with one number of "
                "nodes and transform=False"
            )
        self._check(x)
        with float32_island(x):
            return kernel.matrix(*self.ends(layout.to_positions(widen(x))[0]), rows)

    def mixing_cost(self, space: Space) -> int:
        n, c = math.prod(space), self.inner
        return sum(2 * n * d * c + (2 * d * d * c if self.reason else 0) for d in self.nodes)

    def open_gate_(self, value: float = 1.0) -> bool:
        with torch.no_grad():
            self.gate.fill_(value)
        return True
