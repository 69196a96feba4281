# SPDX-License-Identifier: Apache-2.0
"""Gradient policies of a small iteration whose gradients are known in closed form."""

import json
import math

import pytest
import torch
from torch import nn

from widefield.measure import gradient_agreement


class Iteration(nn.Module):
    """h <- a h + b x, from h = 0; the gradient passes the last `differentiated` steps only."""

    def __init__(self, differentiated, steps=4):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.steps, self.differentiated = steps, differentiated

    def forward(self, x):
        h = torch.zeros_like(x)
        for t in range(self.steps):
            if t == self.steps - self.differentiated:
                h = h.detach()
            h = (
                self.a * h + self.b * x
                if t >= self.steps - self.differentiated
                else (self.a * h + self.b * x).detach()
            )
        return h


STEPS = {"one_step": 1, "neumann": 2, "unrolled": 4}


def build(policy):
    return Iteration(STEPS[policy])


def test_closed_form():
    x = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    cotangent = torch.tensor([[1.0, 1.0, 2.0]], dtype=torch.float64)
    results = {r.policy: r for r in gradient_agreement(build, x, policies=STEPS, cotangent=cotangent)}
    assert list(results) == ["one_step", "neumann", "unrolled"]
    length = math.sqrt(6)
    # dy/dx = b (1 + a + a^2 + ...), as many terms as differentiated steps.
    for name, slope in {"one_step": 2.0, "neumann": 3.0, "unrolled": 3.75}.items():
        assert results[name].input_norm == pytest.approx(slope * length)
        assert results[name].input_ratio == pytest.approx(slope / 3.75)
        assert results[name].input_cosine == pytest.approx(1)
        assert results[name].output_difference == 0
    # Weighted sum of x under the cotangent is 5. One step: dy/da = h_3 = 3.5 x, dy/db = x.
    assert results["one_step"].parameter_norm == pytest.approx(5 * math.hypot(3.5, 1))
    # Unrolled, y = b x (1 + a + a^2 + a^3): dy/da = b x (1 + 2a + 3a^2) = 5.5 x, dy/db = 1.875 x.
    full = (5.5, 1.875)
    assert results["unrolled"].parameter_norm == pytest.approx(5 * math.hypot(*full))
    cosine = (3.5 * full[0] + full[1]) / (math.hypot(3.5, 1) * math.hypot(*full))
    assert results["one_step"].parameter_cosine == pytest.approx(cosine)
    assert results["unrolled"].parameter_cosine == pytest.approx(1)
    assert json.loads(json.dumps(results["one_step"].as_dict()))["policy"] == "one_step"


def test_memory_of_the_policies():
    x = torch.randn(1, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    short = {r.policy: r for r in gradient_agreement(lambda p: Iteration(STEPS[p], 6), x, policies=["one_step"])}
    long = {r.policy: r for r in gradient_agreement(lambda p: Iteration(STEPS[p], 60), x, policies=["one_step"])}
    assert short["one_step"].peak_memory == long["one_step"].peak_memory

    def unrolled(steps):
        (result,) = gradient_agreement(lambda p: Iteration(steps, steps), x, policies=["unrolled"])
        return result.peak_memory

    assert unrolled(60) > unrolled(6) + 50 * 8000


def test_no_parameters_no_gradient():
    class Halve(nn.Module):
        def forward(self, x):
            return x / 2

    class Blocked(nn.Module):
        def forward(self, x):
            return 0 * x + (x / 2).detach()

    (given,) = gradient_agreement(
        lambda p: Halve() if p == "unrolled" else Blocked(), torch.ones(1, 3), policies=["blocked"]
    )
    assert given.input_norm == 0
    assert given.input_cosine is None
    assert given.input_ratio == 0
    assert given.parameter_cosine is None
    assert given.parameter_ratio is None


def test_the_same_random_start_for_all():
    class RandomStart(Iteration):
        def forward(self, x):
            return super().forward(x) + torch.rand_like(x)

    state = torch.get_rng_state()
    results = gradient_agreement(lambda p: RandomStart(STEPS[p]), torch.ones(1, 3).double(), policies=STEPS)
    assert all(result.output_difference == 0 for result in results)
    assert torch.equal(state, torch.get_rng_state())


def test_one_module_switched_between_policies_stays_as_it_was():
    module = Iteration(4)

    def switch(policy):
        module.differentiated = STEPS[policy]
        return module

    results = gradient_agreement(switch, torch.ones(1, 3).double(), policies=STEPS)
    assert [round(r.input_ratio, 6) for r in results] == [round(s / 3.75, 6) for s in (2.0, 3.0, 3.75)]
    assert module.a.grad is None


def test_bad_input_is_answered():
    x = torch.ones(1, 3)
    with pytest.raises(ValueError, match="equal weights"):
        gradient_agreement(lambda p: nn.Linear(3, 3), x, policies=["one_step"])
    with pytest.raises(TypeError, match=r"must return an nn\.Module"):
        gradient_agreement(lambda p: torch.tanh, x, policies=["one_step"])
    with pytest.raises(ValueError, match=r"shape \(3,\) for an output of shape \(1, 3\)"):
        gradient_agreement(build, x.double(), policies=["one_step"], cotangent=torch.ones(3))
