# SPDX-License-Identifier: Apache-2.0
"""FR-02, "mixed precision breaks the mathematics, not the speed"."""

from __future__ import annotations

import pytest
import torch

from registry import NAMES, build, relative

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def rand(*shape: int, times: float) -> torch.Tensor:
    return times * torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def check(name: str, x: torch.Tensor, dtype: torch.dtype, *, train: bool) -> None:
    """A float32 input gives a float32 output near that of the float32 run, and finite gradients."""
    size = tuple(x.shape[2:])
    module, reference = (build(name, x.shape[1], size=size, dropout=0.0).train(train) for _ in range(2))
    expected = reference(x)
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = module(x)
    assert y.dtype == torch.float32
    error = relative(y, expected)
    assert error <= TOLERANCE[dtype]
    y.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    overflow = [
        key for key, p in module.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()
    ]
    assert not overflow


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["f16", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_fr02_a_autocast(name: str, dtype: torch.dtype) -> None:
    for s in (1e-4, 1.0, 30.0, 300.0):
        check(name, rand(1, 16, 64, 64, times=s), dtype, train=False)


@pytest.mark.parametrize("name", NAMES)
def test_fr02_a_autocast_in_training(name: str) -> None:
    for s in (1e-4, 300.0):
        check(name, rand(1, 16, 64, 64, times=s), torch.float16, train=True)


@pytest.mark.parametrize("name", NAMES)
def test_fr02_the_context_stays_in_the_float32_region(name: str) -> None:
    module, x = build(name, 16, size=(32, 32)).eval(), rand(1, 16, 32, 32, times=30)
    with torch.no_grad():
        expected = module.context(x)
        with torch.autocast("cpu", dtype=torch.float16):
            context = module.context(x)
            half = module(x.half())
    assert torch.equal(context, expected)
    assert half.dtype == torch.float16


@pytest.mark.parametrize("name", ["danet-cam", "danet"])
def test_fr02_b_channel_affinity(name: str) -> None:
    module = build(name, 8).eval()
    x = rand(1, 8, 128, 128, times=4).half()
    expected = module(x.float())
    with torch.autocast("cpu", dtype=torch.float16):
        y = module(x)
    assert torch.isfinite(y).all()
    assert relative(y, expected) <= 1e-2
