# SPDX-License-Identifier: Apache-2.0
"""Unit vectors that survive a dead feature, and the float32 island."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from registry import randn
from widefield.core.numerics import float32_island, normal_quantile, tiny, unit, widen


@pytest.mark.parametrize("guard", [0.0, 1e-6, 0.5])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unit_against_numpy(dim: int, guard: float) -> None:
    x = randn(3, 4, 5, dtype=torch.float64)
    norm = np.linalg.norm(x.numpy(), axis=dim, keepdims=True)
    np.testing.assert_allclose(unit(x, dim, guard=guard).numpy(), x.numpy() / (guard + norm), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_zero_vector_stays_zero_and_passes_no_gradient(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]], dtype=dtype, requires_grad=True)
    y = unit(x, 1)
    torch.testing.assert_close(y.detach(), torch.tensor([[0, 0, 0], [0.6, 0.8, 0]], dtype=dtype))
    y.sum().backward()
    assert torch.equal(x.grad[0], torch.zeros(3, dtype=dtype))
    # (I - u u^T) 1 / |x| for u = (0.6, 0.8, 0) and |x| = 5
    expected = torch.tensor([(1 - 0.6 * 1.4) / 5, (1 - 0.8 * 1.4) / 5, 0.2], dtype=dtype)
    torch.testing.assert_close(
        x.grad[1], expected, atol=4e-3 if dtype in (torch.float16, torch.bfloat16) else 1e-6, rtol=0
    )


@pytest.mark.parametrize("guard", [0.0, 1e-2])
def test_the_gradient_of_unit(guard: float) -> None:
    x = randn(2, 3, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: unit(x, 1, guard=guard), (x,))
    assert torch.autograd.gradgradcheck(lambda x: unit(x, 1, guard=guard), (x,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_shortest_direction_has_a_normal_square(dtype: torch.dtype) -> None:
    """In half precision the square of 1e-4 is subnormal at best; modules are widened before they get there."""
    assert tiny(dtype) > 0
    wide = widen(torch.zeros(1, dtype=dtype)).dtype
    assert tiny(wide) ** 2 > torch.finfo(wide).tiny
    assert torch.tensor(tiny(dtype), dtype=dtype) > 0


def test_widen() -> None:
    assert widen(torch.zeros(1, dtype=torch.float16)).dtype == torch.float32
    assert widen(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(1, dtype=dtype)
        assert widen(x) is x


def test_the_island_switches_autocast_off_and_only_there() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with float32_island(x):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
    with float32_island(x):
        assert (x @ x).dtype == torch.float32


def test_the_normal_quantile_of_exported_graphs() -> None:
    from scipy.stats import norm

    u = torch.cat([torch.linspace(1e-6, 1 - 1e-6, 10001, dtype=torch.float64), torch.tensor([1e-4, 0.5, 0.9999])])

    class Quantile(torch.nn.Module):
        def forward(self, u: torch.Tensor) -> torch.Tensor:
            return normal_quantile(u)

    exported = torch.export.export(Quantile(), (u,)).module()
    expected = torch.from_numpy(norm.ppf(u.numpy()))
    torch.testing.assert_close(normal_quantile(u), expected)
    torch.testing.assert_close(exported(u), expected, rtol=2e-6, atol=2e-6)
