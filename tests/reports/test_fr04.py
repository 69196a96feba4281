# SPDX-License-Identifier: Apache-2.0
"""FR-04, "a sample's output depends on its neighbours in the batch"."""

from __future__ import annotations

import pytest
import torch

import widefield
from registry import NAMES, build, facts, randn


@pytest.mark.parametrize("name", NAMES)
def test_fr04_a_sample_is_alone(name: str) -> None:
    module, x = build(name, size=(7, 9)).eval(), randn(2, 64, 7, 9)
    with torch.no_grad():
        y = module(x)
        torch.testing.assert_close(module(x[:1]), y[:1], rtol=0, atol=1e-5)
        torch.testing.assert_close(module(x.flip(0)), y.flip(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_fr04_rows_of_the_matrix_sum_to_what_is_stated(name: str) -> None:
    module, x, stated = build(name, size=(7, 9)).eval(), randn(2, 64, 7, 9), facts(name).row_sum
    try:
        matrix = module.operator(x)
    except widefield.NoOperator:
        assert stated is None
        return
    sums = matrix.sum(-1)
    assert sums.shape == (2, 63)
    if stated is None:
        assert sums.std() > 1e-3, "the rows have a constant sum, which the registry does not state"
    else:
        torch.testing.assert_close(sums, torch.full_like(sums, stated), rtol=0, atol=1e-5)
        rows = torch.tensor([0, 5, 62])
        torch.testing.assert_close(module.operator(x, rows), matrix[:, rows], rtol=0, atol=1e-6)
