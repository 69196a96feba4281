# SPDX-License-Identifier: Apache-2.0
"""The report as a whole."""

import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from widefield.measure import cost


def test_a_linear_layer():
    report = cost(nn.Linear(784, 512), (1, 784), backward=True, min_run_time=0.01)
    assert report.module == "Linear"
    assert report.shapes == ((1, 784),)
    assert report.parameters == 784 * 512 + 512
    assert report.multiply_adds == 784 * 512
    assert report.operations == 2 * 784 * 512
    assert report.multiply_adds_backward == 2 * 784 * 512
    assert report.multiply_adds_training == 3 * 784 * 512
    assert report.activation_memory_forward == 512 * 4
    # Output, cotangent, gradients of input, weight and bias.
    assert report.activation_memory_training == 4 * (2 * 512 + 784 + 784 * 512 + 512)
    assert report.latency_forward is not None
    assert report.latency_training is not None
    assert 0 < report.latency_forward.median == report.latency_forward_s
    assert report.latency_forward.threads == torch.get_num_threads()
    assert not report.lower_bound


def test_as_dict_is_json_and_names_its_units():
    report = cost(nn.Conv2d(3, 4, 1), (2, 3, 5, 5), backward=True, min_run_time=0.01)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["multiply_adds"] == 2 * 25 * 4 * 3
    assert plain["shapes"] == [[2, 3, 5, 5]]
    assert plain["latency_training"]["median"] == plain["latency_training_s"]
    figures = {"parameters", "multiply_adds", "operations", "activation_memory", "latency", "elementwise"}
    assert figures == set(plain["units"])


def test_without_latency_the_module_is_not_run():
    class Refuses(nn.Module):
        def forward(self, x):
            assert type(x) is not torch.Tensor
            return x @ x.mT

    report = cost(Refuses(), (1, 100_000, 64), latency=False)
    assert report.latency_forward is None
    assert report.multiply_adds == 100_000**2 * 64
    assert report.activation_memory_forward == 100_000**2 * 4


def test_shared_parameters_count_once():
    layer = nn.Linear(4, 4, bias=False)
    assert cost(nn.Sequential(layer, layer), (2, 4), latency=False).parameters == 16


def test_a_function():
    def gram(x):
        return x @ x.mT

    report = cost(gram, (6, 9), backward=True, min_run_time=0.01)
    assert report.module == "gram"
    assert report.parameters == 0
    assert report.multiply_adds == 6 * 6 * 9


def test_dtype_halves_the_memory():
    single = cost(nn.Linear(8, 8), (3, 8), latency=False)
    half = cost(nn.Linear(8, 8), (3, 8), latency=False, dtype=torch.bfloat16)
    assert (single.dtype, half.dtype) == ("float32", "bfloat16")
    assert half.activation_memory_forward * 2 == single.activation_memory_forward


def test_recurrent_workspace_is_measured():
    # Its size is known to the kernel alone, so it takes a real run: more than the outputs a backward needs.
    report = cost(nn.LSTM(8, 16), (50, 2, 8), backward=True, latency=False)
    assert report.activation_memory_training > 50 * 2 * 16 * 4 * 4


def test_memory_of_an_unrolled_loop_grows_and_of_inference_does_not():
    class Loop(nn.Module):
        def __init__(self, steps):
            super().__init__()
            self.steps = steps

        def forward(self, x):
            for _ in range(self.steps):
                x = x.tanh()
            return x

    six, sixty = (cost(Loop(steps), (1000,), backward=True, latency=False) for steps in (6, 60))
    assert six.activation_memory_forward == sixty.activation_memory_forward == 2 * 4000
    assert six.activation_memory_training is not None
    assert sixty.activation_memory_training == six.activation_memory_training + 54 * 4000


def test_the_module_stays_as_it_was():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout()).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    cost(module, (2, 3, 5, 5), backward=True, min_run_time=0.01)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(child.training for child in module.modules())


def test_the_closed_form_of_a_module_is_reported_beside_the_count():
    @dataclass(frozen=True)
    class Said:
        multiply_adds: int

    class WithForm(nn.Linear):
        def cost(self, shape):
            return Said(shape[0] * self.in_features * self.out_features)

    report = cost(WithForm(5, 7), (3, 5), latency=False)
    assert report.stated_multiply_adds == report.multiply_adds == 3 * 5 * 7


@pytest.mark.parametrize("other_use", [nn.Parameter(torch.ones(1)), nn.Linear(3, 3), None, lambda a, b: a])
def test_other_uses_of_the_name_cost_are_left_alone(other_use):
    module = nn.Linear(3, 3)
    module.cost = other_use
    assert cost(module, (2, 3), latency=False).stated_multiply_adds is None
