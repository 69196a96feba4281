# SPDX-License-Identifier: Apache-2.0
"""Starts and carried memory of RNN, LSTM and GRU; the gated-feedback and multiscale networks against their
equations."""

from __future__ import annotations

import math

import pytest
import torch

import widefield
from widefield import sequence as s
from widefield.sequence.hm_lstm import hard_sigmoid


def double(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- starts


@pytest.mark.parametrize(("kind", "gates"), [(s.RNN, 1), (s.LSTM, 4), (s.GRU, 3)])
def test_orthogonal_gate_by_gate_in_every_layer_and_direction(kind, gates):
    layer = kind(3, 8, layers=2, bidirectional=True)
    for weight in layer.parameters_of("weight_hh"):
        for block in weight.view(gates, 8, 8):
            torch.testing.assert_close(block @ block.mT, torch.eye(8), atol=1e-5, rtol=0)


def test_the_draw_of_orthogonal_matrices_is_uniform():
    """The trace of a Haar orthogonal matrix has mean 0 and variance 1; without the signs of R it has not."""
    torch.manual_seed(0)
    traces = torch.stack([s.orthogonal_blocks_(torch.empty(5, 5)).trace() for _ in range(2000)])
    assert abs(float(traces.mean())) < 4 / math.sqrt(2000)
    assert abs(float(traces.var()) - 1) < 0.15


def test_identity_start_holds_a_state_for_ever():
    """The IRNN: with no input, a state that ReLU lets through stays."""
    layer = s.RNN(3, 6, nonlinearity="relu", recurrent="identity").double()
    h = double(2, 1, 6).abs()
    _, (last,) = layer(torch.zeros(2, 500, 3, dtype=torch.float64), (h,))
    assert torch.equal(last, h)


@pytest.mark.parametrize("forget_bias", [0.0, 1.0, 2.5])
def test_the_forget_bias_is_there_once_in_every_layer_and_direction(forget_bias):
    layer = s.LSTM(3, 4, layers=2, bidirectional=True, forget_bias=forget_bias, recurrent="uniform")
    biases = zip(layer.parameters_of("bias_ih"), layer.parameters_of("bias_hh"), strict=True)
    found = [(a + b)[4:8] for a, b in biases]
    assert len(found) == 4
    for gate in found:
        assert torch.equal(gate, torch.full((4,), forget_bias))


def test_the_start_of_torch_is_to_be_had():
    torch.manual_seed(0)
    ours = s.LSTM(3, 4, recurrent="uniform", forget_bias=None)
    bound = 1 / math.sqrt(4)
    for parameter in ours.parameters():
        assert float(parameter.detach().abs().max()) <= bound
        assert float(parameter.detach().std()) > 0.15 * bound


def test_the_chrono_start_covers_the_horizon():
    layer = s.LSTM(3, 200, horizon=100)
    (bias,) = layer.parameters_of("bias_ih")
    write, forget = bias.detach()[:400].chunk(2)
    assert float(forget.min()) >= 0
    assert float(forget.max()) <= math.log(99)
    assert torch.equal(write, -forget)


def test_wrong_words_name_the_right_ones():
    with pytest.raises(widefield.UnknownName, match="orthogonal"):
        s.RNN(3, 4, recurrent="orthogonl")  # type: ignore[arg-type]
    with pytest.raises(widefield.UnknownName, match="relu"):
        s.RNN(3, 4, nonlinearity="gelu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hidden_size"):
        s.LSTM(3, 0)
    with pytest.raises(ValueError, match="horizon"):
        s.LSTM(3, 4, horizon=2)


# --- memory


def test_an_open_forget_gate_carries_the_cell_for_a_thousand_steps():
    """f = 1, i = 0: c is unchanged, and its gradient exactly 1."""
    layer = s.LSTM(3, 4).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        (bias,) = layer.parameters_of("bias_ih")
        bias[:4], bias[4:8] = -1e4, 1e4
    c = double(1, 1, 4).requires_grad_()
    _, (_, last) = layer(double(1, 1000, 3), (torch.zeros(1, 1, 4, dtype=torch.float64), c))
    assert torch.equal(last, c)
    (gradient,) = torch.autograd.grad(last.sum(), c)
    assert torch.equal(gradient, torch.ones_like(c))


def test_the_reset_gate_of_the_gru_is_inside_the_hidden_product():
    """n = tanh(W x + b + r (U h + b')), not tanh(W x + U (r h))."""
    layer = s.GRU(2, 3, recurrent="uniform").double()
    w, u, b, c = (p.detach() for p in layer.core.parameters())
    x, h = double(1, 2), double(1, 3, seed=2)
    (wr, wz, wn), (ur, uz, un), (br, bz, bn), (cr, cz, cn) = (p.chunk(3) for p in (w, u, b, c))
    r = torch.sigmoid(x @ wr.T + br + h @ ur.T + cr)
    z = torch.sigmoid(x @ wz.T + bz + h @ uz.T + cz)
    n = torch.tanh(x @ wn.T + bn + r * (h @ un.T + cn))
    y, _ = layer(x[:, None], (h[:, None],))
    torch.testing.assert_close(y[:, 0], (1 - z) * n + z * h)


# --- gated feedback


def written_out(layer, x, h, c=None):
    """The equations of the paper, one layer, pair and step at a time."""
    n, width = layer.layers, layer.hidden_size
    tops = []
    for step in x.unbind(1):
        before, cells = list(h.unbind(1)), None if c is None else list(c.unbind(1))
        star, below, new_h, new_c = torch.cat(before, -1), step, [], []
        for j in range(n):
            told = layer.inputs[j](below)
            fed = 0
            for i in range(n):
                u_ij = layer.feedback[i].view(width, n, width)[:, j]
                gate = torch.sigmoid(told[:, -1] + star @ layer.feedback_gates.weight[j * n + i])
                fed = fed + gate[:, None] * (before[i] @ u_ij)
            if c is None:
                below = torch.tanh(told[:, :-1] + fed)
            else:
                i_, f_, o_ = torch.sigmoid(told[:, : 3 * width] + before[j] @ layer.past[j]).chunk(3, -1)
                new_c.append(f_ * cells[j] + i_ * torch.tanh(told[:, 3 * width : -1] + fed))
                below = o_ * torch.tanh(new_c[-1])
            new_h.append(below)
        h = torch.stack(new_h, 1)
        c = torch.stack(new_c, 1) if c is not None else None
        tops.append(below)
    return torch.stack(tops, 1), h


@pytest.mark.parametrize("layers", [1, 3])
def test_gated_feedback_is_its_equations(layers):
    torch.manual_seed(0)
    x = double(2, 4, 3)
    plain, gated = (k(3, 5, layers=layers).double() for k in (s.GatedFeedbackRNN, s.GatedFeedbackLSTM))
    h, c = double(2, layers, 5, seed=2), double(2, layers, 5, seed=3)
    for layer, state in ((plain, (h,)), (gated, (h, c))):
        y, last = layer(x, state)
        expected, end = written_out(layer, x, *state)
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(last[0], end, rtol=1e-10, atol=1e-12)


def test_closed_gates_cut_the_feedback():
    """With every gate at 0 the tanh form forgets: the second step is that of a network without a past."""
    layer = s.GatedFeedbackRNN(3, 5, layers=2).double()
    with torch.no_grad():
        layer.feedback_gates.weight.zero_()
        for inputs in layer.inputs:
            inputs.weight[-1].zero_()
            inputs.bias[-1] = -1e4
    x = double(2, 2, 3)
    torch.testing.assert_close(layer(x)[0][:, 1:], layer(x[:, 1:])[0], rtol=0, atol=0)


# --- multiscale


def multiscale(below, rest):
    """A network whose boundaries are forced to `below` in the lowest layer and `rest` above."""
    torch.manual_seed(0)
    layer = s.HMLSTM(3, (4, 4, 4)).double()
    with torch.no_grad():
        for place, (own, under, bias) in enumerate(zip(layer.own, layer.below, layer.bias, strict=True)):
            own[:, -1], under[:, -1] = 0, 0
            bias[-1] = 1e3 if (below if place == 0 else rest) else -1e3
        for above in layer.above:
            above[:, -1] = 0
    return layer


def test_layers_above_a_silent_one_never_move():
    layer = multiscale(False, False)
    trace = layer.trace(double(2, 6, 3))
    assert not trace.z.any()
    assert not trace.h[..., 4:].any()
    steps = trace.h[:, :, :4].diff(dim=1).abs().amin(-1)
    assert float(steps.detach().min()) > 0  # the lowest layer updates at every step, its input always counts


def test_with_every_boundary_the_lowest_layer_is_an_lstm_that_forgets():
    layer = multiscale(True, True)
    x = double(2, 5, 3)
    trace = layer.trace(x)
    assert torch.equal(trace.z, torch.ones_like(trace.z))
    # From the second step every layer flushes: c = i g. The equations by hand for the lowest, top feedback
    # included.
    h_below, h_above = trace.h[:, 1, :4], trace.h[:, 1, 4:8]
    sums = x[:, 2] @ layer.below[0] + h_below @ layer.own[0] + h_above @ layer.above[0] + layer.bias[0]
    i, g, o, _ = sums[:, :-1].chunk(4, -1)
    expected = torch.sigmoid(o) * torch.tanh(torch.sigmoid(i) * torch.tanh(g))
    torch.testing.assert_close(trace.h[:, 2, :4], expected, rtol=1e-10, atol=1e-12)


def test_copy_is_exact_and_update_adds():
    """Above a lowest layer that is silent but for a step, the second one moves at that step alone."""
    layer = multiscale(False, False)
    with torch.no_grad():
        layer.below[0][0, -1] = 1.0  # the first feature opens the boundary
    x = 0.1 * double(1, 6, 3)
    x[:, :, 0], x[:, 3, 0] = 0, 5e3
    h = layer.trace(x).h[0, :, 4:8]
    moves = h.diff(dim=0).abs().sum(-1)
    assert moves[2] > 0
    assert not moves[[0, 1, 3, 4]].any()


def test_the_slope_anneals_as_published_and_is_saved():
    layer = s.HMLSTM(3, (4, 4))
    for epoch, slope in ((0, 1.0), (25, 2.0), (1000, 5.0)):
        layer.anneal(epoch)
        assert float(layer.state_dict()["slope"]) == pytest.approx(slope)
    x = torch.tensor([-1.0, -0.1, 0.0, 0.1, 1.0])
    torch.testing.assert_close(hard_sigmoid(x, 5.0), torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))


def test_sampled_boundaries_follow_their_probability_in_training_only():
    torch.manual_seed(0)
    layer = s.HMLSTM(3, (4, 4), sample=True)
    with torch.no_grad():
        layer.own[0][:, -1], layer.below[0][:, -1], layer.above[0][:, -1] = 0, 0, 0
        layer.bias[0][-1] = -0.4  # hard sigmoid 0.3
    rate = layer.train().boundaries(torch.randn(50, 40, 3))[..., 0].detach().mean()
    assert float(rate) == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 2000))
    assert not layer.eval().boundaries(torch.randn(5, 10, 3))[..., 0].any()


def test_boundaries_learn():
    layer = s.HMLSTM(3, (4, 4)).double()
    layer(double(4, 8, 3))[0].square().sum().backward()
    gradient = layer.own[0].grad
    assert gradient is not None
    assert gradient[:, -1].abs().max() > 0
