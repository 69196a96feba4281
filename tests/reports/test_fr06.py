# SPDX-License-Identifier: Apache-2.0
"""FR-06, "odd, rectangular and tiny maps"."""

from __future__ import annotations

import pytest
import torch

from registry import NAMES, build, facts, gradients, having, randn

SIZES = [(1, 1), (1, 9), (3, 5), (7, 9), (13, 8), (33, 47)]


@pytest.mark.parametrize("name", NAMES)
def test_fr06_every_size(name: str) -> None:
    any_size = build(name)
    for h, w in SIZES:
        module = build(name, size=(h, w)) if facts(name).fixed_size else any_size
        x = randn(2, 64, h, w)
        for train in (False, True):
            module.train(train)
            with torch.no_grad():
                y = module(x)
            assert y.shape == (2, module.out_channels, h, w)
            assert torch.isfinite(y).all(), (h, w)
        if h * w <= 100:
            for parameter, gradient in gradients(module, x).items():
                assert torch.isfinite(gradient).all(), (h, w, parameter)


@pytest.mark.parametrize("name", NAMES)
def test_fr06_no_position_at_all_is_one_clear_error(name: str) -> None:
    module = build(name)
    with pytest.raises(ValueError, match=r"at least one sample and one position.*\(2, 64, 0, 4\)"):
        module(torch.zeros(2, 64, 0, 4))


@pytest.mark.parametrize("name", having("mask_padding"))
def test_fr06_padding_takes_no_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a module fills with zeros is filled with 1e3 instead, and nothing changes; masks stay as they are."""
    modules = [build(name, dropout=0.0).train(train) for train in (False, True)]
    inputs = [randn(2, 64, h, w) for h, w in SIZES]
    expected = [module(x) for module in modules for x in inputs]
    pad = torch.nn.functional.pad

    def filled(x: torch.Tensor, amounts: tuple[int, ...], value: float = 0.0) -> torch.Tensor:
        return pad(x, amounts, value=1e3 if value == 0 else value)

    monkeypatch.setattr(torch.nn.functional, "pad", filled)
    modules = [build(name, dropout=0.0).train(train) for train in (False, True)]
    found = [module(x) for module in modules for x in inputs]
    for y, z in zip(found, expected, strict=True):
        torch.testing.assert_close(y, z)
