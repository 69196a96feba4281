# SPDX-License-Identifier: Apache-2.0
"""What every layer over a sequence keeps: state in and out, lengths, one sequence at a time, bad input."""

from __future__ import annotations

import pytest
import torch

from widefield import sequence as s

LAYERS = {
    "rnn": lambda: s.RNN(3, 5),
    "rnn-relu-two-layers": lambda: s.RNN(3, 5, nonlinearity="relu", recurrent="identity", layers=2),
    "lstm": lambda: s.LSTM(3, 5, layers=2),
    "gru": lambda: s.GRU(3, 5),
    "gated-feedback-rnn": lambda: s.GatedFeedbackRNN(3, 5, layers=2),
    "gated-feedback-lstm": lambda: s.GatedFeedbackLSTM(3, 5, layers=3),
    "hm-lstm": lambda: s.HMLSTM(3, (5, 4)),
    "grid-depth": lambda: s.DepthGridLSTM(3, 5, depth=3),
    "grid-depth-tied": lambda: s.DepthGridLSTM(3, 5, depth=2, tied=True, priority=False),
    "ntm": lambda: s.NTM(3, 2, rows=6, width=4, controller_size=5),
    "ntm-feedforward": lambda: s.NTM(3, 2, rows=6, width=4, heads=2, controller="feedforward", controller_size=5),
    "history": lambda: s.HistoryLSTM(3, 5),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]().double().eval()


def batch(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_two_calls_on_the_halves_are_one_on_the_whole(layer):
    x = batch(2, 7, 3)
    whole, last = layer(x)
    first, state = layer(x[:, :3])
    second, after = layer(x[:, 3:], state)
    close(torch.cat([first, second], 1), whole)
    for a, b in zip(after, last, strict=True):
        close(a, b)


def test_lengths_are_as_if_each_sequence_stood_alone(layer):
    x, lengths = batch(3, 6, 3), torch.tensor([6, 2, 4])
    y, state = layer(x, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, last = layer(x[i : i + 1, :length])
        close(y[i, :length], alone[0])
        assert not y[i, length:].any()
        for mine, theirs in zip(state, last, strict=True):
            if mine[i].shape == theirs[0].shape:  # a history keeps its padding, marked as such
                close(mine[i], theirs[0])


def test_what_lies_beyond_a_length_has_no_influence(layer):
    x, lengths = batch(2, 5, 3).requires_grad_(), torch.tensor([5, 3])
    y, _ = layer(x, lengths=lengths)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert not gradient[1, 3:].any()
    assert gradient[0].abs().sum(-1).min() > 0


def test_a_sequence_sees_no_other_and_no_future(layer):
    x = batch(2, 5, 3).requires_grad_()
    y, _ = layer(x)
    (gradient,) = torch.autograd.grad(y[0, 2].sum(), x)
    assert not gradient[1].any()
    assert not gradient[0, 3:].any()


def test_any_memory_layout_and_a_batch_of_one(layer):
    x = batch(3, 4, 5).permute(2, 1, 0)  # (5, 4, 3), steps apart in memory
    y, _ = layer(x)
    close(layer(x[2:3].contiguous())[0], y[2:3])


def test_evaluation_repeats_and_leaves_the_global_generator(layer):
    x = batch(2, 4, 3)
    before = torch.get_rng_state()
    first, second = layer(x)[0], layer(x)[0]
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e6, -1e6])
def test_constant_and_extreme_input_stays_finite(layer, value):
    if getattr(layer, "nonlinearity", "") == "relu":
        pytest.skip("a ReLU network has no bound")
    x = torch.full((1, 5, 3), value, dtype=torch.float64, requires_grad=True)
    y, _ = layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(y).all()
    assert torch.isfinite(gradient).all()


def test_gradients_against_finite_differences(layer):
    if isinstance(layer, s.HMLSTM):
        pytest.skip("steps have a gradient that is not that of the function; the golden case holds it")
    x = batch(1, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], x)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.zeros(2, 3), "batch first"),
        (torch.zeros(2, 3, 4), "batch first"),
        (torch.zeros(2, 0, 3), "at least one"),
        (torch.zeros(2, 3, 3, dtype=torch.long), "floating-point"),
    ],
)
def test_bad_input_is_one_clear_sentence(layer, bad, words):
    with pytest.raises((ValueError, TypeError), match=words):
        layer(bad)


@pytest.mark.parametrize("lengths", [[3], [4, 1], [-1, 2]])
def test_bad_lengths_are_one_clear_sentence(layer, lengths):
    with pytest.raises(ValueError, match="length"):
        layer(batch(2, 3, 3), lengths=torch.tensor(lengths))


def test_a_state_of_another_batch_is_refused(layer):
    _, state = layer(batch(2, 3, 3))
    with pytest.raises(ValueError, match="state"):
        layer(batch(3, 3, 3), state)


def test_bfloat16_autocast_stays_near(layer):
    layer, x = layer.float(), batch(2, 4, 3).float()
    if isinstance(layer, s.HMLSTM):
        pytest.skip("a boundary may fall on the other side of its step")
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(x)
    torch.testing.assert_close(y.float(), layer(x)[0], rtol=0.1, atol=0.1)


def test_a_saved_state_dict_gives_the_same_network(layer):
    torch.manual_seed(9)
    x, kind = batch(1, 4, 3), type(layer)
    other = next(build for build in (b() for b in LAYERS.values()) if type(build) is kind and
                 build.state_dict().keys() == layer.state_dict().keys() and
                 all(a.shape == b.shape for a, b in zip(build.state_dict().values(), layer.state_dict().values(),
                                                        strict=True))).double()  # fmt: skip
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(x)[0], layer(x)[0])
