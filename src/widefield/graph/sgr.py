# SPDX-License-Identifier: Apache-2.0
"""Symbolic graph reasoning (SGR): positions vote for named nodes of a known graph, which reason and answer.

    a_in = softmax_n(W_a x_i)        h_n = sum_i a_in W_h x_i
    G = ReLU(A^ [ReLU(h), S] W_g)    A^ = D^-1/2 (A + I) D^-1/2, S: word vectors
    y_i = x_i + ReLU(sum_n a_ni W_y g_n)

Paper   Symbolic Graph Reasoning Meets Convolutions, NeurIPS 2018.
Facts   cost 2 n m c for m nodes, the rest on nodes. The context has rank one: the last score is linear in
        [g_n, x_i], so a softmax over nodes cancels the part of x_i, one over positions that of g_n.
Differs the part that cancels would never have a gradient and is left out: over="nodes" scores nodes alone, every
        position gets the same answer; over="positions" scores positions alone, all share one answer. The paper
        does not say which. A node is the mean of its voters; the published sum, which grows with the map, is
        normalize=False. No runnable original exists.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import unknown
from widefield.core.layout import Space
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register

AXES = ("nodes", "positions")


def even_graph(nodes: int) -> Tensor:
    """The graph of who knows nothing: every other node weighs the same, together as much as the node itself."""
    return (1 - torch.eye(nodes)) / max(1, nodes - 1)


def normalised_graph(adjacency: Tensor) -> Tensor:
    """`D^-1/2 (A + I) D^-1/2` with D the row sums of A + I."""
    linked = adjacency + torch.eye(len(adjacency), dtype=adjacency.dtype, device=adjacency.device)
    scale = linked.sum(1).rsqrt()
    return scale[:, None] * linked * scale


@register("sgr", family="graph", title="Symbolic Graph Reasoning Meets Convolutions", paper="NeurIPS", year=2018)
class SymbolicGraphReasoning(Context):
    """Votes, reasoning over a fixed graph with word vectors, and an answer to every position.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        nodes: m.
        width: of a node (None: half of the channels, at least 1).
        graph: A, `(nodes, nodes)`, non-negative, without self-loops; not trained (None: `even_graph`).
        words: S, `(nodes, any)`; not trained (None: as wide as a node, from a normal distribution, trained).
        over: axis of the softmax of the answer, "nodes" or "positions".
        normalize: nodes are means of their voters; False for sums, as published.
        reason: the step over graph and words; without it the nodes answer as they were voted for.
    """

    def __init__(
        self,
        channels: int,
        *,
        nodes: int = 64,
        width: int | None = None,
        graph: Tensor | None = None,
        words: Tensor | None = None,
        over: str = "nodes",
        normalize: bool = True,
        reason: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        if nodes < 1 or (width is not None and width < 1):
            raise ValueError(
                f"SymbolicGraphReasoning: nodes and width must be positive, got nodes={nodes} and width={width}"
            )
        if over not in AXES:
            raise unknown("axis to answer over", over, AXES)
        if not reason and (graph is not None or words is not None):
            raise ValueError(
                "SymbolicGraphReasoning: graph and words serve the reasoning, which is off; drop them"
            )
        self.nodes, self.width = nodes, max(1, channels // 2) if width is None else width
        self.over, self.normalize, self.reason = over, normalize, reason
        self.vote = Pointwise(channels, nodes, bias=False)
        self.collect = Pointwise(channels, self.width, bias=False)
        if reason:
            self.register_buffer("links", normalised_graph(_checked_graph(graph, nodes)))
            if words is None:
                self.words = nn.Parameter(torch.randn(nodes, self.width))
            else:
                self.register_buffer("words", _checked_words(words, nodes))
            self.update = Pointwise(self.width + self.words.shape[1], self.width, bias=False)
        self.score = Pointwise(self.width if over == "nodes" else channels, 1, bias=False)
        self.answer = Pointwise(self.width, channels, bias=False)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        scores = self.vote(tokens)
        votes = scores.log_softmax(1).softmax(-1) if self.normalize else scores.softmax(1)
        nodes = torch.relu(self.collect(tokens @ votes.mT))
        if self.reason:
            words = self.words.to(tokens.dtype).mT.expand(tokens.shape[0], -1, -1)
            nodes = torch.relu(self.update(torch.cat([nodes, words], 1)) @ self.links.to(tokens.dtype).mT)
        if self.over == "nodes":
            nodes = nodes @ self.score(nodes).softmax(-1).mT
            return torch.relu(self.answer(nodes)).expand(-1, -1, tokens.shape[-1])
        # The weights are positive and the same for all nodes, so sum and ReLU need not see the positions.
        return torch.relu(self.answer(nodes.sum(-1, keepdim=True))) * self.score(tokens).softmax(-1)

    def cost(self, shape: tuple[int, ...]) -> Cost:
        return Cost(
            shape[0] * self.mixing_cost(tuple(shape[2:])),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        n, c, m, d = math.prod(space), self.channels, self.nodes, self.width
        reasoning = m * d * self.update.in_channels + d * m * m if self.reason else 0
        answering = 2 * m * d if self.over == "nodes" else n * c
        return 2 * n * m * c + m * c * d + reasoning + answering + d * c


def _checked_graph(graph: Tensor | None, nodes: int) -> Tensor:
    if graph is None:
        return even_graph(nodes)
    fits = isinstance(graph, Tensor) and graph.shape == (nodes, nodes)
    if not fits or not torch.isfinite(graph).all() or (graph < 0).any():
        given = f"one with smallest value {graph.min().item():.4g}" if fits else _kind(graph)
        raise ValueError(
            f"SymbolicGraphReasoning: graph must be a finite, non-negative ({nodes}, {nodes}) tensor, for "
            f"nodes={nodes}; got {given}"
        )
    return graph.to(torch.get_default_dtype())


def _checked_words(words: Tensor, nodes: int) -> Tensor:
    if not isinstance(words, Tensor) or words.dim() != 2 or len(words) != nodes:
        raise ValueError(
            f"SymbolicGraphReasoning: words must be a ({nodes}, any) tensor, a vector for each of nodes={nodes}; "
            f"got {_kind(words)}"
        )
    return words.detach().clone().to(torch.get_default_dtype())


def _kind(given: object) -> str:
    return f"the shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
