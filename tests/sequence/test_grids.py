# SPDX-License-Identifier: Apache-2.0
"""Recurrence over grids: diagonals against a loop over cells; depth as an axis against a stacked LSTM."""

from __future__ import annotations

import itertools

import pytest
import torch
from benchmarks.plain.grids import grid_lstm, md_lstm, md_rnn

from widefield import sequence as s
from widefield.sequence.wavefront import plan

SPACES = [(7,), (1,), (4, 5), (1, 6), (6, 1), (3, 2, 4), (2, 1, 3)]


def double(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(ours, theirs, x):
    """Values, and gradients of input and parameters."""
    x = x.requires_grad_()
    found, expected = ours(x), theirs(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    leaves = [x, *ours.parameters()]
    cotangent = double(*found.shape, seed=5)
    a, b = (
        torch.autograd.grad(y, leaves, cotangent, allow_unused=True, materialize_grads=True)
        for y in (found, expected)
    )
    for left, right in zip(a, b, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("options", [{}, {"priority": (0,)}, {"plain": (0,)}, {"backwards": True}], ids=str)
def test_a_grid_by_diagonals_is_the_loop_over_its_cells(space, options):
    torch.manual_seed(0)
    layer = s.GridLSTM(3, 4, dims=len(space), **options).double()
    same(layer, lambda x: grid_lstm(layer, x), double(2, 3, *space))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("directions", ["one", "all"])
@pytest.mark.parametrize(("kind", "plain"), [(s.MDRNN, md_rnn), (s.MDLSTM, md_lstm)])
def test_several_dimensions_by_diagonals_are_the_loop_over_their_cells(space, directions, kind, plain):
    torch.manual_seed(0)
    layer = kind(3, 4, dims=len(space), directions=directions).double()
    same(layer, lambda x: plain(layer, x), double(2, 3, *space))


@pytest.mark.parametrize("space", SPACES)
def test_a_sweep_takes_the_sum_of_the_edges_in_steps_and_visits_each_cell_once(space):
    found = plan(space, torch.device("cpu"))
    assert len(found.diagonals) == sum(space) - len(space) + 1
    cells = list(itertools.product(*map(range, space)))
    order = [cells[i] for i in found.order.tolist()]
    assert sorted(order) == cells
    for diagonal in found.diagonals:
        sums = {sum(cell) for cell in order[diagonal.start : diagonal.start + diagonal.count]}
        assert len(sums) == 1


def test_one_direction_sees_what_lies_before_it_and_all_together_see_everything():
    torch.manual_seed(0)
    x = double(1, 2, 5, 6).requires_grad_()
    one, every = s.MDLSTM(2, 3, directions="one").double(), s.MDLSTM(2, 3).double()
    (gradient,) = torch.autograd.grad(one(x)[0, :, 2, 3].sum(), x)
    reached = gradient[0].abs().sum(0) > 0
    assert reached[:3, :4].all()
    assert int(reached.sum()) == 12
    (gradient,) = torch.autograd.grad(every(x)[0, :, 2, 3].sum(), x)
    assert (gradient[0].abs().sum(0) > 0).all()


def stacked(layer, lstm):
    """Copies the weights of a torch LSTM into a depth grid with a plain depth."""
    h = layer.hidden_size
    with torch.no_grad():
        layer.enter.weight[:h].copy_(torch.eye(h))
        layer.enter.weight[h:].zero_()
        layer.enter.bias.zero_()
        for level in range(layer.depth):
            inner, outer = (getattr(lstm, f"weight_{kind}_l{level}") for kind in ("ih", "hh"))
            layer.cell.hidden["0"][level].copy_(torch.cat([outer, inner], 1))  # H = [time; depth]
            layer.cell.bias["0"][level].copy_(getattr(lstm, f"bias_ih_l{level}"))
            layer.cell.hidden_bias["0"][level].copy_(getattr(lstm, f"bias_hh_l{level}"))
    return layer


def test_a_plain_depth_that_hands_up_the_new_hidden_vector_is_a_stacked_lstm():
    """V picks time's new hidden vector out of H: a stack of LSTMs with the plain axis's tanh above each."""
    torch.manual_seed(0)
    layer = s.DepthGridLSTM(4, 4, depth=3, plain=True).double()
    lstm = torch.nn.LSTM(4, 4, 3, batch_first=True).double()
    stacked(layer, lstm)
    with torch.no_grad():
        for level in range(3):
            layer.cell.hidden["1"][level].copy_(torch.cat([torch.eye(4), torch.zeros(4, 4)], 1))
    x = double(2, 5, 4)
    found, _ = layer(x)
    below = x
    for level in range(3):
        single = torch.nn.LSTM(4, 4, batch_first=True).double()
        state = {name: getattr(lstm, name.replace("l0", f"l{level}")) for name in single.state_dict()}
        single.load_state_dict(state)
        below = torch.tanh(single(below)[0])
    torch.testing.assert_close(found, below, rtol=1e-10, atol=1e-12)


def test_depth_has_a_memory_of_its_own():
    """With depth's f = 1 and i = 0 what enters at the foot stands at the top of 50 levels: y = o tanh(m)."""
    torch.manual_seed(0)
    layer, h = s.DepthGridLSTM(4, 8, depth=50).double(), 8
    with torch.no_grad():
        layer.cell.hidden["1"].zero_()
        layer.cell.bias["1"].zero_()
        layer.cell.bias["1"][:, :h], layer.cell.bias["1"][:, h : 2 * h] = -1e4, 1e4
    x = double(2, 3, 4)
    memory = layer.enter(x)[..., h:]
    torch.testing.assert_close(layer(x)[0], 0.5 * torch.tanh(memory), rtol=1e-12, atol=1e-12)


def test_tied_levels_share_their_weights():
    untied, tied = s.DepthGridLSTM(3, 4, depth=6), s.DepthGridLSTM(3, 4, depth=6, tied=True)
    inner = sum(p.numel() for p in untied.cell.parameters())
    assert inner == 6 * sum(p.numel() for p in tied.cell.parameters())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: s.GridLSTM(3, 4, dims=4), "one to three"),
        (lambda: s.GridLSTM(3, 4, plain=(2,)), "0 .. 1"),
        (lambda: s.MDLSTM(3, 4, directions="two"), "directions"),
        (lambda: s.GridLSTM(3, 4)(torch.zeros(1, 3, 5)), "2 dimensions"),
        (lambda: s.MDRNN(3, 4)(torch.zeros(1, 2, 5, 5)), r"\(b, 3, \*space\)"),
    ],
)
def test_bad_input_is_one_clear_sentence(build, words):
    with pytest.raises(ValueError, match=words):
        build()
