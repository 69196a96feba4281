# SPDX-License-Identifier: Apache-2.0
"""FR-14, "the module does nothing"."""

from __future__ import annotations

import pytest
import torch

import widefield
from registry import NAMES, build, facts, gradients, having, randn

GATED = [name for name in NAMES if facts(name).identity_at_init]


@pytest.mark.parametrize("name", NAMES)
def test_fr14_identity_at_initialisation_is_what_the_registry_says(name: str) -> None:
    x = randn(2, 64, 9, 7)
    for train in (False, True):
        module = build(name, gate=None, size=(9, 7)).train(train)
        y = module(x)
        same = y.shape == x.shape and (torch.equal(y, x) or torch.equal(y, x.relu()))
        gated = module.open_gate_(1.0)
        assert (same and gated) == facts(name).identity_at_init
        if same and gated:
            assert not torch.allclose(module(x), y, atol=1e-3), "the gate is open and nothing changed"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_fr14_the_context_alone_is_not_zero(name: str) -> None:
    context = build(name, gate=None, size=(9, 7)).eval().context(randn(2, 64, 9, 7))
    assert context.shape[0] == 2
    assert context.shape[2:] == (9, 7)
    assert context.abs().max() > 1e-3


@pytest.mark.parametrize("name", GATED)
def test_fr14_the_gate_is_an_option_and_opens_itself(name: str) -> None:
    assert name in having("gate")
    x, cotangent = randn(2, 64, 9, 7), randn(2, 64, 9, 7, seed=1)
    module = build(name, gate=None).train()
    first = gradients(module, x, cotangent)
    alive = {key for key, gradient in first.items() if gradient.abs().max() > 0}
    assert alive - {"x"}, "nothing could ever open the gate"
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter -= 0.01 * first[key]
    second = gradients(module, x, cotangent)
    after = {key for key, gradient in second.items() if gradient.abs().max() > 0}
    assert alive < after or alive == set(second), "the rest never follows"


@pytest.mark.parametrize("name", GATED)
def test_fr14_gate_given_to_the_constructor(name: str) -> None:
    accepted = widefield.describe(name).options
    options = {"gate": 1.0} | ({"rank": 8} if "rank" in accepted else {})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = widefield.create(name, 64, **options).eval()
    x = randn(2, 64, 9, 7)
    y = module(x)
    assert not torch.equal(y, x)
    assert not torch.equal(y, x.relu())
