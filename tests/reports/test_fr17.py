# SPDX-License-Identifier: Apache-2.0
"""FR-17, "negative features into a non-negative factorisation"."""

from __future__ import annotations

import pytest
import torch

from registry import NAMES, build, randn
from widefield.decomposition import nmf, nmf_hals

NONNEGATIVE = [name for name in NAMES if name.endswith("nmf")]


@pytest.mark.parametrize("function", [nmf, nmf_hals])
def test_fr17_the_function_refuses_and_names_the_smallest_value(function) -> None:
    x = randn(1, 16, 64, 64).flatten(2)
    bases = torch.rand(1, 16, 8, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=rf"non-negative.*{x.min().item():.4g}.*torch\.relu"):
        function(x, bases, steps=50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", NONNEGATIVE)
def test_fr17_both_factors_stay_nonnegative(name: str, dtype: torch.dtype) -> None:
    x = randn(1, 16, 64, 64, dtype=dtype)
    for steps in (0, 1, 6, 50):
        module = build(name, 16, steps=steps).to(dtype).eval()
        assert torch.isfinite(module(x)).all()
        bases, codes, _ = module.solve(x)
        for factor in (bases, codes):
            assert torch.isfinite(factor).all()
            assert factor.min() >= 0


def test_fr17_every_method_that_needs_it_is_covered() -> None:
    def methods(name: str) -> list[object]:
        return [part.method for part in build(name, 16).modules() if hasattr(part, "method")]

    demanding = [name for name in NAMES if any(getattr(m, "nonnegative", False) for m in methods(name))]
    assert demanding == NONNEGATIVE
