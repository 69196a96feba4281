# SPDX-License-Identifier: Apache-2.0
"""The flow of gradients against closed forms and against Jacobians made by torch itself."""

from __future__ import annotations

import math

import pytest
import torch

from widefield import sequence as s
from widefield.decomposition.ham import HamNMF
from widefield.measure.flow import (
    distance_from_orthogonality,
    iteration_flow,
    one_step_jacobian,
    recurrent_matrices,
    sequence_flow,
)


def inputs(steps=30, width=3, batch=2, scale=1.0):
    return scale * torch.randn(batch, steps, width, generator=torch.Generator().manual_seed(1))


def test_the_jacobian_of_a_step_is_that_of_torch():
    torch.manual_seed(0)
    layer = s.LSTM(3, 4).double()
    x, state = (
        inputs(1, batch=1).double(),
        tuple(0.3 * torch.randn(1, 1, 4, dtype=torch.float64) for _ in range(2)),
    )

    def flat(h):
        return torch.cat(layer(x, (h[:4].view(1, 1, 4), h[4:].view(1, 1, 4)))[1]).flatten()

    expected = torch.autograd.functional.jacobian(flat, torch.cat(state).flatten())
    found = one_step_jacobian(lambda t, given: layer(x.expand(len(given[0]), 1, 3), given)[1], 0, state)
    torch.testing.assert_close(found, expected)


def test_a_linear_orthogonal_recurrence_keeps_every_gradient():
    """ReLU with an identity matrix and positive states is linear: the norm is constant to rounding."""
    layer = s.RNN(3, 16, nonlinearity="relu", recurrent="identity")
    with torch.no_grad():
        next(layer.parameters_of("bias_ih")).fill_(1.0)
    flow = sequence_flow(layer, inputs(100))
    assert max(abs(math.log(g)) for g in flow.gradient) < 1e-10
    assert max(abs(math.log(j)) for j in flow.jacobian) < 1e-10
    assert flow.rate == pytest.approx(1, abs=1e-10)


def test_a_scaled_identity_decays_by_its_scale():
    layer = s.RNN(3, 16, nonlinearity="relu", recurrent="identity", gain=0.5)
    with torch.no_grad():
        next(layer.parameters_of("bias_ih")).fill_(1.0)
    flow = sequence_flow(layer, inputs(40))
    assert flow.rate == pytest.approx(0.5, abs=1e-9)
    for lag, value in zip(flow.jacobian_lags, flow.jacobian, strict=True):
        assert value == pytest.approx(0.5**lag, rel=1e-9)
    assert flow.bound is not None
    assert flow.bound[7] == pytest.approx(0.5**7)


def test_the_plain_network_vanishes_below_its_bound_and_the_orthogonal_one_slower():
    torch.manual_seed(0)
    x = inputs(51, scale=0.3)
    plain = sequence_flow(s.RNN(3, 64, recurrent="uniform"), x)
    orthogonal = sequence_flow(s.RNN(3, 64), x)
    lstm = sequence_flow(s.LSTM(3, 64), x)
    assert plain.gradient[50] < 1e-3
    assert orthogonal.gradient[50] > 100 * plain.gradient[50]
    assert lstm.gradient[50] > 100 * plain.gradient[50]
    for flow in (plain, orthogonal):
        assert flow.bound is not None
        assert all(j <= b * (1 + 1e-9) for j, b in zip(flow.jacobian, flow.bound, strict=True))
        # A gradient is a product with the Jacobian: it never exceeds its norm.
        assert all(g <= j * (1 + 1e-9) for g, j in zip(flow.gradient, flow.jacobian, strict=True))
    assert len(plain.spectrum) == 64
    assert len(lstm.spectrum) == 128  # h and c


def test_a_large_orthogonal_relu_network_explodes():
    layer = s.RNN(3, 16, nonlinearity="relu", gain=1.5, recurrent="identity")
    with torch.no_grad():
        next(layer.parameters_of("bias_ih")).fill_(1.0)
    assert sequence_flow(layer, inputs(30)).gradient[29] == pytest.approx(1.5**29, rel=1e-6)


def test_products_with_the_jacobian_find_the_norm_of_a_large_state(monkeypatch):
    torch.manual_seed(0)
    layer, x = s.GatedFeedbackRNN(3, 6, layers=2), inputs(9, batch=1)
    exact = sequence_flow(layer, x)
    monkeypatch.setattr("widefield.measure.flow.LARGEST", 5)
    few = sequence_flow(layer, x)
    assert few.spectrum == ()
    for lag, value in zip(few.jacobian_lags, few.jacobian, strict=True):
        assert value == pytest.approx(exact.jacobian[lag], rel=1e-3)


def test_the_layer_is_left_as_it_was():
    layer = s.LSTM(3, 4).train()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    sequence_flow(layer, inputs(5))
    assert layer.training
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == torch.float32


def test_a_turing_machine_and_a_multiscale_network_have_a_flow():
    torch.manual_seed(0)
    for layer in (s.NTM(3, 2, rows=5, width=3, controller_size=4), s.HMLSTM(3, (4, 4))):
        flow = sequence_flow(layer, inputs(8))
        assert len(flow.gradient) == 8
        assert all(math.isfinite(g) for g in flow.gradient)


def test_a_growing_state_is_refused():
    with pytest.raises(ValueError, match="grows"):
        sequence_flow(s.HistoryLSTM(3, 4), inputs(5))


def test_the_iterations_of_a_ham_are_a_recurrence():
    """The Jacobian over the last three iterations, by torch, of all numbers of the state."""
    torch.manual_seed(0)
    ham = HamNMF(6, rank=2).eval().ham.double()
    x = torch.rand(1, 6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    prepared = ham.method.prepare(ham.matrix(x))
    states = [tuple(ham.method.start(prepared, ham.starting_bases(ham.matrix(x))))]
    for _ in range(7):
        states.append(ham.method.step(states[-1], prepared))
    shapes, sizes = [s.shape for s in states[0]], [s.numel() for s in states[0]]

    def through(flat):
        state = tuple(part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True))
        for _ in range(3):
            state = ham.method.step(state, prepared)
        return torch.cat([part.flatten() for part in state])

    jacobian = torch.autograd.functional.jacobian(through, torch.cat([part.flatten() for part in states[4]]))
    flow = iteration_flow(ham, x, steps=8)
    assert flow.jacobian[3] == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-9)
    assert flow.bound is None


def test_distance_from_orthogonality():
    torch.manual_seed(0)
    layer = s.LSTM(3, 8, layers=2)
    found = recurrent_matrices(torch.nn.Sequential(layer))
    assert list(found) == ["0.core.weight_hh_l0", "0.core.weight_hh_l1"]
    for matrix in found.values():
        assert distance_from_orthogonality(matrix) < 1e-6
    assert distance_from_orthogonality(2 * torch.eye(5)) == pytest.approx(3)
    assert distance_from_orthogonality(torch.zeros(10, 5)) == pytest.approx(1)
