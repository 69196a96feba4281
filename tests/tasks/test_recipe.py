# SPDX-License-Identifier: Apache-2.0
"""Schedule and optimiser."""

import pytest
import torch

from widefield import UnknownName
from widefield.models import Segmenter
from widefield.tasks import Recipe, poly_schedule


def test_poly_schedule():
    assert poly_schedule(0, 100) == 1.0
    assert poly_schedule(50, 100) == pytest.approx(0.5**0.9)
    assert poly_schedule(100, 100) == 0.0
    assert [poly_schedule(s, 100, warmup=4) for s in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert poly_schedule(52, 100, warmup=4, power=2.0) == pytest.approx(0.25)
    assert poly_schedule(99, 100, floor=0.1) == 0.1
    for step, steps, warmup in ((-1, 10, 0), (11, 10, 0), (0, 0, 0), (0, 10, 10)):
        with pytest.raises(ValueError):
            poly_schedule(step, steps, warmup=warmup)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_groups_of_the_optimiser(optimizer):
    model = Segmenter("plain", "none", 3)
    recipe = Recipe(optimizer=optimizer, lr=0.1, backbone_lr=0.5, weight_decay=0.3, warmup=0.0)
    built = recipe.build(model)
    rates = {id(p): (g["lr"], g["weight_decay"]) for g in built.param_groups for p in g["params"]}
    assert len(rates) == len(list(model.parameters()))
    assert rates[id(model.backbone.features.stages[0][0].weight)] == (0.05, 0.3)
    assert rates[id(model.backbone.features.stages[0][1].weight)] == (0.05, 0.0)
    assert rates[id(model.classifier.weight)] == (0.1, 0.3)
    assert rates[id(model.classifier.bias)] == (0.1, 0.0)
    factor = recipe.set_rates(built, 5, 10)
    assert factor == pytest.approx(0.5**0.9)
    assert {round(g["lr"] / factor, 6) for g in built.param_groups} == {0.05, 0.1}


def test_frozen_parameters_are_left_out():
    model = Segmenter("plain", "none", 3)
    model.freeze_backbone()
    groups = Recipe().build(model).param_groups
    assert sum(len(g["params"]) for g in groups) == 5
    with pytest.raises(ValueError, match="nothing can be trained"):
        Recipe().build(model.requires_grad_(False))


def test_recipes_out_of_range():
    with pytest.raises(UnknownName, match="adamw"):
        Recipe(optimizer="lbfgs")  # type: ignore[arg-type]
    for options in ({"lr": 0.0}, {"warmup": 1.0}, {"clip": 0.0}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError):
            Recipe(**options)


def test_a_recipe_is_a_value():
    assert Recipe(lr=1.0) == Recipe(lr=1.0)
    assert Recipe(**Recipe(lr=0.5).as_dict()) == Recipe(lr=0.5)
    assert isinstance(Recipe().build(torch.nn.Linear(2, 2)), torch.optim.AdamW)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("cosine", [1.0, 0.5 + 2**0.5 / 4, 0.5, 0.0]),
        ("halving", [1.0, 0.5, 0.125, 1 / 64]),
        ("decay", [1.0, 0.81, 0.59049, 0.9**10]),
        ("constant", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules(schedule, expected):
    recipe = Recipe(lr=2.0, optimizer="adam", schedule=schedule)
    optimizer = recipe.build(torch.nn.Linear(2, 2))
    for step, factor in zip((0, 250, 500, 1000), expected, strict=True):
        assert recipe.set_rates(optimizer, step, 1000) == pytest.approx(factor, abs=1e-12)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(2 * factor, abs=1e-12)
