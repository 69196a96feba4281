# SPDX-License-Identifier: Apache-2.0
"""FR-05, "the last batch of the epoch has one image"."""

from __future__ import annotations

import pytest
import torch

from registry import NAMES, build, gradients, having, randn


@pytest.mark.parametrize("size", [16, 1])
@pytest.mark.parametrize("name", NAMES)
def test_fr05_one_image_in_training(name: str, size: int) -> None:
    module, x = build(name, size=(size, size)).train(), randn(1, 64, size, size)
    assert torch.isfinite(module(x)).all()
    for parameter, gradient in gradients(module, x).items():
        assert torch.isfinite(gradient).all(), parameter


@pytest.mark.parametrize("norm", ["group", "layer", "none"])
@pytest.mark.parametrize("name", having("norm"))
def test_fr05_the_norm_is_a_parameter(name: str, norm: str) -> None:
    for channels in (64, 32):
        for size in (16, 1):
            module = build(name, channels, norm=norm, size=(size, size)).train()
            x = randn(1, channels, size, size)
            assert torch.isfinite(module(x)).all()


@pytest.mark.parametrize("name", having("norm"))
def test_fr05_every_batch_norm_is_the_one_that_survives(name: str) -> None:
    """Torch's own, given as a callable, keeps torch's refusal; it is never the default."""
    module = build(name).train()
    assert not any(isinstance(part, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d) for part in module.modules())
