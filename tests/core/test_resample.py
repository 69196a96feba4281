# SPDX-License-Identifier: Apache-2.0
"""Pooling and interpolation by matrices against torch's kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from widefield.core.resample import (
    interpolation_matrix,
    pool,
    pool_cost,
    pooling_matrix,
    upsample,
    upsample_cost,
)

POOL = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
MODE = {1: "linear", 2: "bilinear", 3: "trilinear"}
SPACES = [(1,), (9,), (1, 1), (1, 9), (13, 8), (3, 4, 5)]
LEVELS = (1, 2, 3, 6, 11)


@pytest.mark.parametrize("space", SPACES)
def test_pool(space: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, *space, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for s, found in zip(LEVELS, pool(x, LEVELS), strict=True):
        torch.testing.assert_close(found, POOL[len(space)](x, s))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("align", [False, True])
def test_upsample(space: tuple[int, ...], align: bool) -> None:
    for s in LEVELS:
        x = torch.randn(2, 3, *(s,) * len(space), generator=torch.Generator().manual_seed(s), dtype=torch.float64)
        expected = F.interpolate(x, size=space, mode=MODE[len(space)], align_corners=align)
        torch.testing.assert_close(upsample(x, space, align_corners=align), expected)


def test_rows_are_averages() -> None:
    like = torch.zeros((), dtype=torch.float64)
    for bins, size in ((3, 7), (6, 4), (1, 5)):
        assert torch.allclose(pooling_matrix(bins, size, like).sum(1), torch.ones(bins, dtype=torch.float64))
        for align in (False, True):
            rows = interpolation_matrix(size, bins, align, like).sum(1)
            assert torch.allclose(rows, torch.ones(size, dtype=torch.float64))


@pytest.mark.parametrize("space", SPACES)
def test_cost(space: tuple[int, ...]) -> None:
    with FlopCounterMode(display=False) as counter:
        pooled = pool(torch.zeros(1, 1, *space), LEVELS)
    assert counter.get_total_flops() == 2 * pool_cost(space, LEVELS)
    for s, level in zip(LEVELS, pooled, strict=True):
        with FlopCounterMode(display=False) as counter:
            upsample(level, space, align_corners=True)
        assert counter.get_total_flops() == 2 * upsample_cost(space, s)
