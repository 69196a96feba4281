# SPDX-License-Identifier: Apache-2.0
"""FR-03, "the same image, a different answer"."""

from __future__ import annotations

import copy

import pytest
import torch

from registry import MOVING, NAMES, RANDOM, build, facts, randn

OPTIONS = {"default": {}, "random": RANDOM, "moving": MOVING}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_fr03_evaluation_repeats_and_leaves_the_global_generator(name: str, options: dict[str, str]) -> None:
    module, x = build(name, **options).eval(), randn(2, 64, 16, 16)
    with torch.random.fork_rng():
        before = torch.get_rng_state()
        first = module(x)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(module(x), first)
        torch.manual_seed(1234)
        assert torch.equal(module(x), first)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_fr03_training_repeats_after_the_same_seed(name: str, options: dict[str, str]) -> None:
    one, x = build(name, **options).train(), randn(2, 64, 16, 16)
    two = copy.deepcopy(one)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = one(x)
        torch.manual_seed(3)
        assert torch.equal(two(x), first)


@pytest.mark.parametrize("name", [name for name in NAMES if facts(name).random_start])
def test_fr03_a_random_start_is_random_when_asked_for(name: str) -> None:
    module, x = build(name, **RANDOM).train(), randn(2, 64, 16, 16)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = module(x)
        torch.manual_seed(4)
        assert not torch.equal(module(x), first)


def test_a_random_start_takes_a_generator() -> None:
    module = build("hamburger-nmf", 16, bases="random").train()
    x = torch.rand(1, 16, 5, 6)
    before = torch.get_rng_state()
    outputs = []
    for seed in (1, 1, 2):
        module.ham.generator = torch.Generator().manual_seed(seed)
        outputs.append(module(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(torch.get_rng_state(), before)
