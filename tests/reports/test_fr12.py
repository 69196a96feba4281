# SPDX-License-Identifier: Apache-2.0
"""FR-12, "trained at one size, used at another"."""

from __future__ import annotations

import pytest
import torch

from registry import MOVING, NAMES, build, facts, randn


@pytest.mark.parametrize("name", NAMES)
def test_fr12_another_size(name: str) -> None:
    module = build(name, **MOVING).train()
    y = module(randn(2, 64, 16, 16))
    if y.requires_grad:
        y.square().mean().backward()
        torch.optim.SGD(module.parameters(), lr=0.01).step()
    module.eval()
    for h, w in ((24, 20), (8, 8)):
        x = randn(2, 64, h, w, seed=1)
        if facts(name).fixed_size:
            with pytest.raises(ValueError, match=rf"16.*16.*{h}.*{w}"):
                module(x)
        else:
            y = module(x)
            assert y.shape[-2:] == (h, w)
            assert torch.isfinite(y).all()
