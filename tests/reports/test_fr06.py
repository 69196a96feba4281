# SPDX-License-Identifier: Apache-2.0
"""FR-06, "odd, rectangular and tiny maps". No module of today pads inside, so there is no padding to fill."""

from __future__ import annotations

import pytest
import torch

from registry import NAMES, build, facts, gradients, randn

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
