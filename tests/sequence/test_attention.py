# SPDX-License-Identifier: Apache-2.0
"""Attention scores, multi-head, history and multi-dimensional attention against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

import widefield
from widefield import sequence as s
from widefield.sequence.scores import masked_softmax


def double(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCORES = {
    "additive": lambda: s.AdditiveScore(6, 6, hidden=5),
    "concatenation": lambda: s.ConcatenationScore(6, 6),
    "bilinear": lambda: s.BilinearScore(6, 6),
    "dot": lambda: s.DotScore(6, scaled=False),
    "scaled-dot": lambda: s.DotScore(6),
}


@pytest.fixture(params=SCORES)
def score(request):
    torch.manual_seed(0)
    return SCORES[request.param]().double()


# --- the small interface


def test_a_score_is_a_number_for_every_pair_and_nothing_else_matters(score):
    q, k = double(2, 3, 6), double(2, 4, 6, seed=2)
    found = score(q, k)
    assert found.shape == (2, 3, 4)
    torch.testing.assert_close(found[1, 2, 3], score(q[1:, 2:3], k[1:, 3:4])[0, 0, 0], rtol=1e-12, atol=1e-12)


def test_weights_are_a_distribution_over_what_counts(score):
    attention = s.ScoredAttention(score)
    q, k = double(2, 3, 6), double(2, 4, 6, seed=2)
    mask = s.padding_mask(torch.tensor([4, 2]), 4)
    context, weights = attention(q, k, mask=mask)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    assert not weights[1, :, 2:].any()
    short, _ = attention(q[1:], k[1:, :2])
    torch.testing.assert_close(context[1:], short, rtol=1e-12, atol=1e-12)


def test_a_query_without_any_key_gets_zeros_with_a_gradient(score):
    q, k = double(1, 3, 6).requires_grad_(), double(1, 4, 6, seed=2).requires_grad_()
    context, weights = s.ScoredAttention(score)(q, k, mask=torch.zeros(1, 4, dtype=torch.bool))
    assert not weights.any()
    assert not context.any()
    gradients = torch.autograd.grad(context.sum() + weights.sum(), (q, k))
    assert all(torch.isfinite(g).all() for g in gradients)


def test_masks_may_differ_from_query_to_query(score):
    q = double(1, 4, 6)
    causal = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    weights = s.ScoredAttention(score).weights(q, q, causal)
    assert not weights.triu(1).any()
    assert float(weights[0, 0, 0].detach()) == 1


def test_additive_attention_is_the_layer_on_the_concatenation_with_its_halves():
    torch.manual_seed(0)
    score = s.AdditiveScore(3, 4, hidden=5).double()
    q, k = double(2, 3, 3), double(2, 4, 4, seed=2)
    joined = torch.cat([q[:, :, None].expand(2, 3, 4, 3), k[:, None].expand(2, 3, 4, 4)], -1)
    matrix = torch.cat([score.of_query.weight, score.of_key.weight], 1)
    expected = torch.tanh(joined @ matrix.mT + score.of_query.bias) @ score.vector.weight[0]
    torch.testing.assert_close(score(q, k), expected, rtol=1e-12, atol=1e-12)


def test_one_layer_on_the_concatenation_gives_every_query_the_same_weights():
    weights = s.ScoredAttention(s.ConcatenationScore(6, 6).double()).weights(
        double(1, 3, 6), double(1, 4, 6, seed=2)
    )
    torch.testing.assert_close(weights, weights[:, :1].expand(1, 3, 4), rtol=1e-12, atol=1e-12)


def test_a_bilinear_score_with_the_identity_is_the_dot_product():
    score = s.BilinearScore(6, 6).double()
    with torch.no_grad():
        score.weight.copy_(torch.eye(6))
    q, k = double(2, 3, 6), double(2, 4, 6, seed=2)
    torch.testing.assert_close(score(q, k), s.DotScore(6, scaled=False)(q, k))
    torch.testing.assert_close(score(q, k) / math.sqrt(6), s.DotScore(6)(q, k))


def test_a_masked_softmax_of_huge_scores():
    scores = torch.tensor([[1e30, -1e30, 1e30], [-1e30, -1e30, -1e30]])
    mask = torch.tensor([[True, True, False], [False, True, False]])
    assert torch.equal(masked_softmax(scores, mask), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))


# --- multi-head


def test_heads_without_any_key_give_the_bias_of_the_output_alone():
    torch.manual_seed(0)
    layer = s.MultiHeadAttention(8, heads=2).double()
    with torch.no_grad():
        layer.output.bias.copy_(double(8))
    mask = torch.tensor([[True, True, True], [False, False, False]])
    y = layer(double(2, 3, 8), mask=mask)
    torch.testing.assert_close(y[1], layer.output.bias.expand(3, 8), rtol=0, atol=0)
    torch.testing.assert_close(y, layer.weighted(double(2, 3, 8), mask=mask)[0], rtol=1e-10, atol=1e-12)


def test_a_width_that_the_heads_do_not_divide():
    with pytest.raises(ValueError, match="divide"):
        s.MultiHeadAttention(10, heads=4)


# --- history


def test_attending_over_the_own_past_is_its_equations():
    torch.manual_seed(0)
    layer = s.HistoryLSTM(3, 4).double()
    x = double(1, 5, 3)
    hs, cs, summary = [], [], torch.zeros(1, 4, dtype=torch.float64)
    for step in x.unbind(1):
        h, c = torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
        if hs:
            scores = [
                layer.score(torch.tanh(layer.of_past(p) + layer.of_input(step) + layer.of_summary(summary)))
                for p in hs
            ]
            a = torch.cat(scores, -1).softmax(-1)[0]
            h, c = (sum(w * p for w, p in zip(a, past, strict=True)) for past in (hs, cs))
        summary = h
        h, c = layer.cell(step, (h, c))
        hs.append(h)
        cs.append(c)
    torch.testing.assert_close(layer(x)[0], torch.stack(hs, 1), rtol=1e-10, atol=1e-12)


def test_a_window_forgets_what_lies_outside():
    """A window of one step attends to the step before alone: a plain LSTM."""
    torch.manual_seed(0)
    layer = s.HistoryLSTM(3, 4, window=1).double()
    lstm = torch.nn.LSTM(3, 4, batch_first=True).double()
    lstm.load_state_dict({f"{name}_l0": value for name, value in layer.cell.state_dict().items()})
    x = double(2, 6, 3)
    torch.testing.assert_close(layer(x)[0], lstm(x)[0], rtol=1e-10, atol=1e-12)


# --- feature by feature


def test_multi_dimensional_attention_with_one_score_for_all_features_is_scalar_attention():
    torch.manual_seed(0)
    layer = s.MultiDimensionalAttention(5, query_size=3).double()
    with torch.no_grad():
        layer.score.weight.copy_(layer.score.weight[:1].expand(5, 5).clone())
        layer.score.bias.zero_()
    x, q = double(2, 4, 5), double(2, 3, seed=2)
    hidden = torch.nn.functional.elu(layer.hidden(x) + layer.of_query(q)[:, None])  # type: ignore[misc]
    weights = (hidden @ layer.score.weight[0]).softmax(-1)
    torch.testing.assert_close(layer(x, q), (weights[:, None] @ x)[:, 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("direction", "seen"), [("forward", 0), ("backward", 1), ("both", 2)])
def test_a_directional_block_does_not_look_the_other_way(direction, seen):
    torch.manual_seed(0)
    layer = s.DiSABlock(4, direction=direction).double()
    x = double(1, 5, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0, 2].sum(), x)
    reached = (gradient[0].abs().sum(-1) > 0).tolist()
    assert reached == [[True] * 3 + [False] * 2, [False] * 2 + [True] * 3, [True] * 5][seen]


def test_padding_changes_nothing_in_disan():
    torch.manual_seed(0)
    layer = s.DiSAN(4).double()
    x = double(2, 6, 4)
    mask = s.padding_mask(torch.tensor([6, 3]), 6)
    torch.testing.assert_close(layer(x, mask)[1:], layer(x[1:, :3]), rtol=1e-10, atol=1e-12)


def test_a_sentence_of_padding_pools_to_zero():
    layer = s.DiSAN(4)
    y = layer(torch.randn(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool))
    assert not y.any()


def test_an_unknown_direction_suggests_the_nearest():
    with pytest.raises(widefield.UnknownName, match="forward"):
        s.DiSABlock(4, direction="forwards")  # type: ignore[arg-type]
