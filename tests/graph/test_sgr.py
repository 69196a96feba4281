# SPDX-License-Identifier: Apache-2.0
"""Symbolic graph reasoning against the paper's formulas, node by node and position by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

from registry import gradients, randn
from widefield.core import NoOperator
from widefield.graph import SymbolicGraphReasoning
from widefield.graph.sgr import even_graph, normalised_graph
from widefield.measure import count


def build(**options: Any) -> SymbolicGraphReasoning:
    torch.manual_seed(0)
    return SymbolicGraphReasoning(6, **{"nodes": 4, "width": 3, **options}).double()


def weight(part: nn.Module) -> np.ndarray:
    found = part.weight
    assert isinstance(found, Tensor)
    return found.detach().numpy()


def oracle(module: SymbolicGraphReasoning, x: np.ndarray, graph: np.ndarray, words: np.ndarray) -> np.ndarray:
    """One sample, `(c, n)`, with the score over [g_n, x_i] whole; what must cancel is drawn at random."""
    c, n = x.shape
    nodes = len(graph)
    votes = np.array([softmax(weight(module.vote) @ x[:, i]) for i in range(n)])
    gathered = np.zeros((nodes, module.width))
    for k in range(nodes):
        for i in range(n):
            gathered[k] += votes[i, k] * (weight(module.collect) @ x[:, i])
        if module.normalize:
            gathered[k] /= votes[:, k].sum()
    gathered = np.maximum(gathered, 0)
    if module.reason:
        linked = graph + np.eye(nodes)
        degrees = np.diag(linked.sum(1) ** -0.5)
        message = degrees @ linked @ degrees @ np.concatenate([gathered, words], 1) @ weight(module.update).T
        gathered = np.maximum(message, 0)
    cancels = np.random.default_rng(0).normal(size=c if module.over == "nodes" else module.width)
    of_node, of_position = (
        (weight(module.score)[0], cancels) if module.over == "nodes" else (cancels, weight(module.score)[0])
    )
    scores = (gathered @ of_node)[:, None] + (of_position @ x)[None, :]
    weights = softmax(scores, 0 if module.over == "nodes" else 1)
    y = np.zeros_like(x)
    for i in range(n):
        for k in range(nodes):
            y[:, i] += weights[k, i] * (weight(module.answer) @ gathered[k])
    return x + np.maximum(y, 0)


@pytest.mark.parametrize("over", ["nodes", "positions"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("reason", [True, False])
def test_formulas(over: str, normalize: bool, reason: bool) -> None:
    graph, words = torch.rand(4, 4, dtype=torch.float64).round(decimals=1), randn(4, 5, seed=3)
    known = {"graph": graph, "words": words} if reason else {}
    module = build(over=over, normalize=normalize, reason=reason, **known)
    x = randn(2, 6, 3, 5, dtype=torch.float64)
    for sample, y in zip(x.flatten(2).numpy(), module(x).flatten(2), strict=True):
        expected = oracle(module, sample, graph.float().double().numpy(), words.numpy().astype(float))
        np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("over", ["nodes", "positions"])
def test_the_context_has_rank_one(over: str) -> None:
    context = build(over=over).context(randn(1, 6, 4, 5, dtype=torch.float64)).flatten(2)[0]
    assert int(torch.linalg.matrix_rank(context, rtol=1e-9)) == 1
    assert torch.allclose(context, context[:, :1]) == (over == "nodes")


def test_the_default_graph_mixes_without_making_nodes_equal() -> None:
    links = normalised_graph(even_graph(5))
    torch.testing.assert_close(links, torch.full((5, 5), 1 / 8) + torch.eye(5) * 3 / 8)
    assert torch.equal(normalised_graph(even_graph(1)), torch.ones(1, 1))
    directed = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
    torch.testing.assert_close(normalised_graph(directed), torch.tensor([[0.25, 1.5], [0.0, 1.0]]))


def test_knowledge_is_not_trained_and_travels_in_the_state() -> None:
    module = build(graph=torch.ones(4, 4), words=torch.ones(4, 7))
    assert {"links", "words"} <= set(module.state_dict())
    assert not {"links", "words"} & {name for name, _ in module.named_parameters()}
    assert "words" in dict(build().named_parameters())


@pytest.mark.parametrize("over", ["nodes", "positions"])
@pytest.mark.parametrize("reason", [True, False])
def test_every_parameter_is_used_and_every_product_counted(over: str, reason: bool) -> None:
    module = build(over=over, reason=reason)
    x = randn(2, 6, 3, 5, dtype=torch.float64)
    found = gradients(module, x, randn(2, 6, 3, 5, seed=1, dtype=torch.float64))
    assert all(gradient.abs().max() > 0 for gradient in found.values())
    assert module.cost((2, 6, 3, 5)).multiply_adds == count(module.float(), (2, 6, 3, 5)).multiply_adds


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"axis to answer over 'node'.*nodes.*Accepted: nodes, positions"):
        build(over="node")
    with pytest.raises(ValueError, match=r"non-negative \(4, 4\) tensor.*\(3, 3\)"):
        build(graph=torch.ones(3, 3))
    with pytest.raises(ValueError, match="smallest value -1"):
        build(graph=-torch.eye(4))
    with pytest.raises(ValueError, match=r"must be a \(4, any\) tensor.*\(5, 2\)"):
        build(words=torch.ones(5, 2))
    with pytest.raises(ValueError, match=r"tensor.*got 3"):
        build(words=3)
    with pytest.raises(ValueError, match="reasoning"):
        build(words=torch.ones(4, 2), reason=False)
    with pytest.raises(ValueError, match="nodes=0"):
        build(nodes=0)
    with pytest.raises(NoOperator):
        build().operator(randn(1, 6, 2, 2))
