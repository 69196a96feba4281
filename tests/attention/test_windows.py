# SPDX-License-Identifier: Apache-2.0
"""Sums over windows against unfolded copies, to the second derivative; sampled sums against torchvision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from widefield.attention.sampling import sampled_sum, sampled_taps
from widefield.attention.windows import (
    WindowScatter,
    inside,
    window,
    window_dot,
    window_matrix,
    window_sum,
)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unfolded(x: Tensor, size: int, rate: int) -> Tensor:
    """`(b, c, k^2, h, w)`."""
    taps = F.unfold(x, size, padding=size // 2 * rate, dilation=rate)
    return taps.view(*x.shape[:2], size**2, *x.shape[2:])


@pytest.mark.parametrize(("size", "rate"), [(1, 1), (3, 1), (5, 1), (3, 4)])
@pytest.mark.parametrize("space", [(1, 1), (2, 7), (6, 5)])
def test_against_unfolded_copies(space: tuple[int, int], size: int, rate: int) -> None:
    weights, x, q = draw(2, 3, size**2, *space), draw(2, 6, *space, seed=2), draw(2, 6, *space, seed=3)
    offsets = window(size, 2, rate)
    taps = unfolded(x, size, rate).unflatten(1, (3, 2))
    expected = (taps * weights[:, :, None]).sum(3).flatten(1, 2)
    torch.testing.assert_close(window_sum(weights, x, offsets), expected)
    expected = (taps * q.unflatten(1, (3, 2)).unsqueeze(3)).sum(2)
    torch.testing.assert_close(window_dot(q, x, offsets, groups=3), expected)
    spread = (q.unflatten(1, (3, 2)).unsqueeze(3) * weights[:, :, None]).flatten(1, 2).flatten(1, 2).flatten(2)
    expected = F.fold(spread, space, size, padding=size // 2 * rate, dilation=rate)
    torch.testing.assert_close(WindowScatter.apply(weights, q, offsets), expected)
    there = unfolded(torch.ones(1, 1, *space, dtype=torch.float64), size, rate)[0, 0]
    assert torch.equal(inside(offsets, space, x.device), there == 1)


@pytest.mark.parametrize("space", [(4,), (2, 3), (2, 2, 2)])
def test_derivatives_of_both_orders(space: tuple[int, ...]) -> None:
    offsets = window(3, len(space))
    weights, x = draw(1, 2, len(offsets), *space).requires_grad_(), draw(1, 4, *space).requires_grad_()
    q = draw(1, 4, *space, seed=2).requires_grad_()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda w, x: window_sum(w, x, offsets), (weights, x), fast_mode=True)
        assert check(lambda q, k: window_dot(q, k, offsets, groups=2), (q, x), fast_mode=True)


def test_the_matrix_applies_the_weights() -> None:
    offsets, x = window(3, 2), draw(2, 4, 3, 5)
    weights = draw(2, 9, 3, 5)
    expected = window_sum(weights[:, None], x, offsets).flatten(2)
    torch.testing.assert_close((window_matrix(weights, offsets) @ x.flatten(2).mT).mT, expected)


def test_sampled_sums_are_torchvisions_deformable_convolution() -> None:
    ops = pytest.importorskip("torchvision.ops")
    b, c, h, w, k = 2, 6, 5, 7, 4
    x, offsets = draw(b, c, h, w), 3 * draw(b, 18, h, w, seed=2)
    kernel, modulation = draw(k, c, 3, 3, seed=3), draw(b, 9, h, w, seed=4)
    grid = torch.tensor(window(3, 2), dtype=x.dtype).T
    rows = offsets[:, 0::2].movedim(1, -1) + torch.arange(h)[:, None, None] + grid[0]
    columns = offsets[:, 1::2].movedim(1, -1) + torch.arange(w)[:, None] + grid[1]
    taps = torch.einsum("bchw,kct->bhwtk", x, kernel.flatten(2))
    expected = ops.deform_conv2d(x, offsets, kernel, padding=1)
    torch.testing.assert_close(sampled_taps(taps, rows, columns).movedim(-1, 1), expected)
    # One channel at a time: a kernel that adds its nine samples.
    ones = torch.ones(1, 1, 3, 3, dtype=x.dtype)
    expected = [ops.deform_conv2d(x[:, i : i + 1], offsets, ones, padding=1, mask=modulation) for i in range(c)]
    found = sampled_sum(modulation.movedim(1, -1).unsqueeze(3), x.movedim(1, -1), rows, columns)
    torch.testing.assert_close(found.movedim(-1, 1), torch.cat(expected, 1))


def test_sampled_sums_have_derivatives_of_both_orders() -> None:
    x, weights = draw(1, 3, 4, 4).requires_grad_(), draw(1, 3, 4, 2, 5).requires_grad_()
    # Between the positions, where sampling is smooth; some outside the map.
    place = torch.arange(60, dtype=torch.float64).view(1, 3, 4, 5) * 0.371 % 5 - 0.8312
    rows, columns = place.clone().requires_grad_(), place.flip(-1).requires_grad_()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(sampled_sum, (weights, x, rows, columns), fast_mode=True)
    far = torch.full_like(place, 1e30)
    y = sampled_sum(weights, x, far.requires_grad_(), columns)
    assert (y == 0).all()
    y.sum().backward()
    assert torch.isfinite(far.grad).all()
