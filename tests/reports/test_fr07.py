# SPDX-License-Identifier: Apache-2.0
"""FR-07, "channels_last, slices and transposed inputs"."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from registry import MOVING, NAMES, build, randn


def every_second(x: Tensor) -> Tensor:
    wide = torch.full((x.shape[0], 2 * x.shape[1], *x.shape[2:]), 7.0)
    wide[:, ::2] = x
    return wide[:, ::2]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every_second_channel": every_second,
}


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NAMES)
def test_fr07_layouts(name: str, train: bool) -> None:
    x = randn(2, 64, 7, 9)
    expected = build(name, dropout=0.0, size=(7, 9)).train(train)(x)
    allowed = 1e-5 * max(1.0, float(expected.detach().abs().max()))
    for layout, arrange in LAYOUTS.items():
        for gradient in (False, True):
            given = arrange(x)
            assert layout == "contiguous" or not given.is_contiguous()
            given.requires_grad_(gradient)
            module = build(name, dropout=0.0, size=(7, 9), **MOVING).train(train)
            with torch.set_grad_enabled(gradient):
                y = module(given)
            torch.testing.assert_close(y, expected, rtol=0, atol=allowed)
            assert is_channels_last(y) == (layout == "channels_last"), layout
            assert torch.equal(given, x), "the input was modified"
            assert y.untyped_storage().data_ptr() != given.untyped_storage().data_ptr(), "shares memory"
            if gradient:
                y.sum().backward()
                assert torch.equal(given, x), "backward modified the input"
