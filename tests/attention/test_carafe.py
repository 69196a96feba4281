# SPDX-License-Identifier: Apache-2.0
"""Content-aware reassembly: the sum by loops, the limits, the border."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import widefield
from widefield import NoOperator
from widefield.attention import Carafe, reassemble
from widefield.measure import count


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("factor", "size", "groups"), [(1, 3, 1), (2, 5, 2), (3, 3, 4), (2, 1, 1)])
def test_reassembly_by_loops(factor: int, size: int, groups: int) -> None:
    x, kernels = draw(2, 4, 3, 5), draw(2, groups * size**2, 3 * factor, 5 * factor, seed=2)
    expected, r = np.zeros((2, 4, 3 * factor, 5 * factor)), size // 2
    for b, c, i, j in np.ndindex(*expected.shape):
        g = c * groups // 4
        for n in range(-r, r + 1):
            for m in range(-r, r + 1):
                at = (i // factor + n, j // factor + m)
                if 0 <= at[0] < 3 and 0 <= at[1] < 5:
                    tap = g * size**2 + (n + r) * size + m + r
                    expected[b, c, i, j] += float(kernels[b, tap, i, j] * x[(b, c, *at)])
    found = reassemble(x, kernels, factor=factor, groups=groups)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_kernels_that_pick_the_centre_are_nearest_neighbour_upsampling() -> None:
    x, kernels = draw(1, 3, 4, 2), torch.zeros(1, 25, 8, 4, dtype=torch.float64)
    kernels[:, 12] = 1
    assert torch.equal(reassemble(x, kernels, factor=2), F.interpolate(x, scale_factor=2))


def test_it_starts_as_the_mean_of_the_window() -> None:
    """The encoder starts small; at the border the mean of what there is, or as published with nothing as zero."""
    x = draw(1, 8, 6, 7).float()
    for mask in (True, False):
        torch.manual_seed(0)
        y = Carafe(8, mask_padding=mask)(x)
        expected = F.avg_pool2d(x, 5, stride=1, padding=2, count_include_pad=not mask)
        torch.testing.assert_close(y, expected, atol=0.02, rtol=0)


def test_a_constant_stays_constant_to_the_border() -> None:
    x = torch.full((1, 4, 5, 6), 2.0)
    torch.manual_seed(0)
    torch.testing.assert_close(Carafe(4, factor=2)(x), torch.full((1, 4, 10, 12), 2.0))
    assert Carafe(4, factor=2, mask_padding=False)(x)[..., 0, 0].max() < 1


def test_groups_factor_and_the_matrix() -> None:
    module, x = Carafe(8, kernel=3).double(), draw(2, 8, 4, 5)
    torch.testing.assert_close((module.operator(x) @ x.flatten(2).mT).mT, module(x).flatten(2))
    upsampler = Carafe(8, factor=3, groups=2)
    assert upsampler(x.float()).shape == (2, 8, 12, 15)
    assert upsampler.context(x.float()).shape == (2, 8, 12, 15)
    with pytest.raises(NoOperator, match="groups=1 and factor=1"):
        upsampler.operator(x.float())


def test_norms_bring_the_third_party_form() -> None:
    plain, normed = Carafe(8), Carafe(8, norm="batch")
    assert plain.compress.bias is not None
    assert normed.compress.bias is None
    assert normed.encode_bias is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kernel": 4}, "kernel must be an odd"),
        ({"encoder_kernel": 0}, "encoder_kernel must be an odd"),
        ({"factor": 0}, "factor and inner"),
        ({"groups": 3}, "groups must divide the 8 channels, got 3"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"Carafe: {said}"):
        Carafe(8, **options)


def test_kernels_that_do_not_fit() -> None:
    for kernels in (draw(1, 16, 3, 3), draw(1, 9, 6, 3), draw(2, 9, 3, 3)):
        with pytest.raises(ValueError, match="reassemble takes kernels"):
            reassemble(draw(1, 4, 3, 3), kernels)


@pytest.mark.parametrize(
    ("options", "space"),
    [
        ({"factor": 2}, (5, 6)),
        ({"groups": 4, "kernel": 3, "encoder_kernel": 5}, (5, 6)),
        ({"norm": "batch"}, (3, 2)),
    ],
)
def test_cost_with_options_is_what_is_counted(options: dict[str, Any], space: tuple[int, ...]) -> None:
    module, shape = widefield.create("carafe", 8, **options), (2, 8, *space)
    assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds
