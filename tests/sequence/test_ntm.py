# SPDX-License-Identifier: Apache-2.0
"""The Turing machine's memory against what its equations must do."""

from __future__ import annotations

import pytest
import torch

import widefield
from widefield import sequence as s
from widefield.sequence.ntm import by_content, sharpen, shift


def double(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def machine(**options):
    torch.manual_seed(0)
    return s.NTM(3, 2, **({"rows": 6, "width": 4, "controller_size": 5} | options)).double()


def forced(**wanted):
    """A machine whose heads say the same whatever they see: read and write parameters as given, zero else."""
    net = machine()
    with torch.no_grad():
        for head in (*net.read, *net.write):
            head.weight.zero_()
            head.bias.zero_()
        for head, values in ((net.read[0], wanted["read"]), (net.write[0], wanted["write"])):
            for (first, last), value in values.items():
                head.bias[first:last] = value
    return net


# Of a head's parameters: key 0..3, strength 4, gate 5, shift 6..8, power 9; of a write head erase 10..13, add
# 14..17.
GATE, SHIFT, ERASE, ADD = (5, 6), (6, 9), (10, 14), (14, 18)
CLOSED = -1e4  # of the gate: the weights before are kept


def kernel(place):
    return torch.tensor([1e4 if i == place else 0.0 for i in range(3)], dtype=torch.float64)


@pytest.mark.parametrize(("place", "move"), [(0, 1), (1, 0), (2, -1)])
def test_a_shift_moves_a_one_hot_by_one_place_cyclically(place, move):
    one_hot = torch.eye(6, dtype=torch.float64)
    moved = shift(one_hot[:, None], torch.softmax(kernel(place), -1).expand(6, 1, 3))[:, 0]
    assert torch.equal(moved, one_hot.roll(move, 1))


def test_what_is_written_at_a_place_is_read_there():
    """One-hot weights, erase 1: reading the place returns what was added, whatever stood there."""
    add = double(4)
    net = forced(
        read={GATE: CLOSED, SHIFT: kernel(1)},
        write={GATE: CLOSED, SHIFT: kernel(1), ERASE: torch.full((4,), 1e4).double(), ADD: add},
    )
    memory, reads, weights, h, c = (part.clone() for part in net.initial_state(1, double(1)))
    weights[:], weights[:, :, 2] = 0, 1
    memory = memory + double(1, 6, 4, seed=2)
    _, state = net(double(1, 2, 3), (memory, reads, weights, h, c))
    # The first step reads what was there, the second what the first has written.
    torch.testing.assert_close(state[1][0, 0], add, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state[0][0, 2], add, rtol=1e-12, atol=1e-12)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(state[0][0, others], memory[0, others])


def test_weightings_are_distributions():
    net = machine(heads=2)
    weights = net.trace(double(3, 9, 3)).weights
    assert weights.shape == (3, 9, 4, 6)
    assert weights.min() >= 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 9, 4, dtype=torch.float64))


def test_the_start_tells_the_rows_apart():
    """Rows that are equal under weights that are equal would stay equal: one row of memory, not n."""
    net = machine(rows=8)
    memory = net(double(1, 3, 3))[1][0][0]
    assert float((memory[0] - memory[4]).detach().norm()) > 0.1 * float(memory.detach().norm())
    apart = [torch.dist(memory[i], memory[j]) for i in range(8) for j in range(i)]
    assert min(float(d.detach()) for d in apart) > 0
    uniform = machine(rows=8, learned_weights=False)
    memory = uniform(double(1, 3, 3))[1][0][0]
    torch.testing.assert_close(memory, memory[:1].expand(8, 4))


def test_the_strongest_match_by_content_wins():
    memory = torch.eye(4, dtype=torch.float64)[None]
    found = by_content(
        torch.tensor([[[0.0, 0.1, 3.0, 0.0]]]).double(), torch.tensor([[[200.0]]]).double(), memory
    )[:, 0]
    assert int(found.argmax()) == 2
    assert float(found[0, 2]) > 0.99


def test_content_of_an_empty_row_has_no_similarity_and_no_nan():
    memory = torch.zeros(1, 5, 4, dtype=torch.float64, requires_grad=True)
    found = by_content(double(1, 1, 4), torch.ones(1, 1, 1, dtype=torch.float64), memory)[:, 0]
    torch.testing.assert_close(found, torch.full((1, 5), 0.2, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(found[0, 0], memory)
    assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sharpening_is_the_power_over_its_sum_and_never_nan(dtype):
    weights = torch.tensor([[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0], [1e-30, 1e-30, 0.0, -1e-9]], dtype=dtype)
    weights.requires_grad_()
    for power in (1.0, 2.5, 40.0):
        found = sharpen(weights, torch.full((3, 1), power, dtype=dtype))
        expected = weights[0].detach() ** power
        torch.testing.assert_close(found[0].detach(), expected / expected.sum(), rtol=1e-5, atol=1e-12)
        (gradient,) = torch.autograd.grad(found.square().sum(), weights)
        assert torch.isfinite(gradient).all()


def test_weights_that_are_all_zero_stay_so():
    assert not sharpen(torch.zeros(2, 5), torch.ones(2, 1)).any()


def test_the_memory_is_each_sequences_own():
    net = machine()
    a, b = double(1, 5, 3), double(1, 5, 3, seed=2)
    both = net(torch.cat([a, b]))[1][0]
    torch.testing.assert_close(both[0], net(a)[1][0][0], rtol=1e-12, atol=1e-12)
    assert not torch.equal(both[0], both[1])


def test_a_feed_forward_controller_remembers_by_the_memory_alone():
    net = machine(controller="feedforward")
    assert len(net.initial_state(2, double(1))) == 3
    x = double(1, 4, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(net(x)[0][0, 3].sum(), x)
    assert gradient[0, 0].abs().max() > 0


def test_wrong_options():
    with pytest.raises(widefield.UnknownName, match="lstm"):
        machine(controller="lstn")
    with pytest.raises(ValueError, match="rows"):
        machine(rows=0)
