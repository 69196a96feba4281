# SPDX-License-Identifier: Apache-2.0
"""Capacities that are known, and what bounds, stops and resumes a measurement."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from widefield.measure.capacity import Gallop, Procedure, Samples, StepByStep, capacity

SOLVE = Procedure(optimizer="lbfgs", rates=(1.0,), updates=200, check_every=1, dtype="float64",
                  schedule="constant", hopeless=None)  # fmt: skip
QUICK = Procedure(rates=(0.05,), updates=100, batch_size=16, check_every=20)


def regression(d, n, seed=0, outputs=1):
    g = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(n, k, generator=g, dtype=torch.float64) for k in (d, outputs))
    return Samples(x, y)


def classes(n, d=4, k=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(n, d, generator=g), torch.randint(k, (n,), generator=g), k)


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(("d", "bias"), [(1, False), (7, True), (23, False)])
def test_linear_regression_recovers_the_number_of_parameters_exactly(d, bias):
    found = capacity(lambda: nn.Linear(d, 1, bias=bias), regression(d, 100), SOLVE, seeds=3,
                     search=Gallop(tolerance=0))  # fmt: skip
    assert found.parameters == d + bias
    assert found.sizes == (d + bias,) * 3
    assert found.interval == (pytest.approx(d + bias), pytest.approx(d + bias))
    assert {seed.edge for seed in found.seeds} == {"minimum"}
    assert not found.notes


@pytest.mark.slow
def test_the_search_takes_a_fifth_of_the_updates_of_the_published_protocol():
    """Random labels, an MLP; the published protocol grows by one sample, and also tries a failure once again."""
    build = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))  # noqa: E731
    data = classes(400, 8, 4)
    procedure = Procedure(rates=(0.03,), updates=600, check_every=10, batch_size=256)
    gallop = capacity(build, data, procedure, seeds=1, checks=False)
    stepwise = capacity(build, data, procedure, seeds=1, search=StepByStep(start=8, repeats=1), checks=False)
    assert gallop.mean == pytest.approx(stepwise.mean, rel=0.05)
    assert gallop.steps * 5 <= stepwise.steps


def test_a_perceptron_on_gaussian_inputs():
    """Cover: half of the labellings of 2 (d + 1) points in general position are separable."""
    d = 20
    procedure = Procedure(optimizer="gd", rates=(3.0,), updates=1000)
    found = capacity(lambda: nn.Linear(d, 2), classes(300, d, 2), procedure, seeds=12,
                     variant_of_data="gaussian", checks=False)  # fmt: skip
    assert 1.6 * (d + 1) <= found.mean <= 2.4 * (d + 1)
    assert 1.6 * (d + 1) <= found.half <= 2.4 * (d + 1)
    assert min(found.sizes) >= d + 1  # always separable
    low, high = found.interval
    assert low < found.mean < high


def test_equal_inputs_with_different_labels_bound_the_answer_and_are_reported():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(1))
    x[20:], y[20:] = x[:20], (y[:20] + 1) % 3
    found = capacity(mlp, Samples(x, y, 3), QUICK, seeds=3, search=Gallop(start=2, tolerance=0))
    assert max(found.sizes) <= 20
    assert any(seed.limit == "labels" for seed in found.seeds)
    assert any("equal inputs have different labels" in note for note in found.notes)
    # What no function fits is never trained.
    assert all(p.steps == 0 for p in found.probes if p.ending == "conflicting labels")
    with pytest.raises(ValueError, match="nothing is left"):
        capacity(mlp, Samples(x, y, 3), QUICK, conflicts="remove")


def test_constant_inputs_with_mixed_labels_fit_the_first_run_of_one_label():
    data = Samples(torch.zeros(30, 4), torch.arange(30) % 3, 3)
    found = capacity(mlp, data, QUICK, seeds=4, search=Gallop(start=1, tolerance=0))
    for seed in found.seeds:
        order = torch.randperm(30, generator=torch.Generator().manual_seed(seed.seed * 1_000_003))
        labels = data.labels[order].tolist()
        assert seed.size == next(i for i, y in enumerate(labels) if y != labels[0])
        assert seed.limit == "labels"


def test_all_data_fitted_is_a_lower_bound_and_a_small_set_is_one_batch():
    found = capacity(mlp, classes(6), Procedure(rates=(0.03,)), seeds=2)
    assert found.sizes == (6, 6)
    assert found.censored
    assert [seed.limit for seed in found.seeds] == ["data", "data"]
    assert "at least 6" in str(found)
    assert any("fewer than a batch of 64" in note for note in found.notes)


@pytest.mark.parametrize("build", [lambda: nn.Linear(4, 2), lambda: nn.Unflatten(1, (2, 2))])
def test_an_output_that_does_not_match(build):
    if isinstance(build(), nn.Unflatten):
        with pytest.raises(ValueError, match="no parameter"):
            capacity(build, classes(10), QUICK)
    else:
        with pytest.raises(ValueError, match=r"\(2, 2\) for a batch of 2; the labels need \(2, 3\)"):
            capacity(build, classes(10), QUICK)


def test_inputs_of_another_width():
    with pytest.raises(ValueError, match="cannot take inputs"):
        capacity(lambda: nn.Linear(5, 3), classes(10), QUICK)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"seeds": 0}, "seeds"), ({"seeds": (1, 1)}, "twice"), ({"conflicts": "keep"}, "bound"),
     ({"variant_of_data": "semantik"}, "semantic")],
)  # fmt: skip
def test_bad_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        capacity(mlp, classes(10), QUICK, **options)


def test_two_runs_agree_exactly_and_the_global_generator_is_left_alone():
    state = torch.random.get_rng_state()
    one = capacity(mlp, classes(60), QUICK, seeds=3)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(3)
    assert capacity(mlp, classes(60), QUICK, seeds=3) == one


def test_names_of_the_labels_do_not_matter_to_a_network_that_treats_them_alike():
    data = classes(60)
    build = lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), _ZeroHead(5, 3))  # noqa: E731
    one = capacity(build, data, QUICK, seeds=2)
    other = capacity(build, Samples(data.inputs, (data.labels + 1) % 3, 3), QUICK, seeds=2)
    assert one.sizes == other.sizes


class _ZeroHead(nn.Linear):
    def reset_parameters(self):
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def test_more_restarts_never_lower_a_probe():
    data = classes(60)
    few = capacity(mlp, data, QUICK, seeds=3, search=StepByStep(start=4, step=4))
    many = replace(QUICK, restarts=3)
    more = capacity(mlp, data, many, seeds=3, search=StepByStep(start=4, step=4))
    assert all(b >= a for a, b in zip(few.sizes, more.sizes, strict=True))
    assert sum(more.sizes) > sum(few.sizes)


def test_a_measurement_that_is_killed_resumes_to_the_same_figures(tmp_path):
    data = classes(60)
    whole = capacity(mlp, data, QUICK, seeds=2)

    class Killed(Exception):
        pass

    def kill(looking):
        if looking.probes >= 6:
            raise Killed

    with pytest.raises(Killed):
        capacity(mlp, data, QUICK, seeds=2, folder=tmp_path, watch=kill)
    kept = json.loads((tmp_path / "probes.json").read_text())
    assert 0 < sum(map(len, kept["rounds"])) < len(whole.probes)
    seen = []
    again = capacity(mlp, data, QUICK, seeds=2, folder=tmp_path, watch=lambda looking: seen.append(looking.probes))
    assert again == whole
    assert min(seen) >= 6
    # Finished: nothing is trained any more.
    done = capacity(mlp, data, QUICK, seeds=2, folder=tmp_path, watch=lambda looking: pytest.fail("trained again"))
    assert done == whole
    with pytest.raises(ValueError, match="another measurement"):
        capacity(mlp, data, QUICK, seeds=3, folder=tmp_path)


def test_fresh_sets_and_variants_run():
    found = capacity(mlp, classes(60), QUICK, seeds=2, nested=False, variant_of_data="permuted")
    assert min(found.sizes) >= 3


def test_the_result_says_what_was_chosen():
    found = capacity(mlp, classes(60), QUICK, seeds=3)
    said = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert said["setting"]["procedure"]["updates"] == 100
    assert said["setting"]["search"]["method"] == "gallop"
    values = said["capacity"]["values"]
    assert said["capacity"]["mean"] == pytest.approx(math.prod(values) ** (1 / 3))
    assert said["capacity"]["bits_per_parameter"] == pytest.approx(found.mean * math.log2(3) / 43)
    assert said["steps"] == sum(p["steps"] for p in said["probes"])
    assert found.curve()[0][1] == 1.0


def test_networks_that_cannot_be_batched_are_trained_one_after_the_other():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x) if float(x.sum()) > -1e9 else self.layer(-x)

    found = capacity(Branching, classes(30), QUICK, seeds=2)
    plain = capacity(lambda: nn.Linear(4, 3), classes(30), QUICK, seeds=2)
    assert found.sizes == plain.sizes
