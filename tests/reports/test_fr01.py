# SPDX-License-Identifier: Apache-2.0
"""FR-01, "a dead feature map turns into NaN"."""

from __future__ import annotations

import pytest
import torch

from registry import NAMES, build, facts, gradients, randn


def dead(kind: str, dtype: torch.dtype) -> torch.Tensor:
    x = randn(2, 64, 16, 16, dtype=dtype)
    if kind == "map":
        x.zero_()
    elif kind == "pixel":
        x[:, :, 0, 0] = 0
    else:
        x[:, 5] = 0
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", NAMES)
def test_fr01_dead_features_stay_finite(name: str, dtype: torch.dtype) -> None:
    module = build(name).to(dtype)
    for train in (False, True):
        module.train(train)
        for kind in ("map", "pixel", "channel"):
            x = dead(kind, dtype)
            y = module(x)
            assert y.dtype == dtype
            assert torch.isfinite(y).all(), (train, kind)
            for parameter, gradient in gradients(module, x).items():
                assert torch.isfinite(gradient).all(), (train, kind, parameter)
                if parameter == "x":
                    assert gradient.abs().max() < 1e6, (train, kind)


@pytest.mark.parametrize("name", NAMES)
def test_fr01_an_all_zero_map_gives_every_pixel_the_same(name: str) -> None:
    y = build(name).eval()(torch.zeros(2, 64, 16, 16))
    # An iteration over maps starts from maps, and six steps do not quite make them constant.
    tolerance = 1e-3 if facts(name).iterative else 1e-6
    torch.testing.assert_close(y, y[..., :1, :1].expand_as(y), rtol=0, atol=tolerance)
