# SPDX-License-Identifier: Apache-2.0
"""Dynamic graph messages: the plain grid as a limit, what modulates, what the released code gets wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import widefield
from widefield.attention import DynamicGraphMessages, DynamicGraphMessagesFast
from widefield.attention.dgmn import message
from widefield.measure import count


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rate", [1, 3, 12])
def test_without_displacement_it_is_the_plain_grid(rate: int) -> None:
    x, weights = draw(2, 6, 5, 7), draw(2, 3, 9, 5, 7)
    offsets = torch.zeros(2, 18, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(message(x, weights, offsets, rate), message(x, weights, None, rate))


def test_a_whole_displacement_moves_the_neighbours() -> None:
    x, weights = draw(1, 4, 6, 6), draw(1, 2, 9, 6, 6)
    offsets = torch.zeros(1, 18, 6, 6, dtype=torch.float64)
    offsets[:, 0::2] = 1  # one row down
    moved = message(x, weights, offsets, 1)
    below = torch.cat([x[:, :, 1:], torch.zeros(1, 4, 1, 6, dtype=torch.float64)], 2)
    # The last row's upper neighbours still see the last row of x; all others see the map that moved up.
    torch.testing.assert_close(moved[:, :, 1:-1], message(below, weights, None, 1)[:, :, 1:-1])


def deformed(module: DynamicGraphMessages, x: Tensor) -> Tensor:
    """By torchvision: the filters, and with one-hot kernels each of the nine samples."""
    ops = pytest.importorskip("torchvision.ops")
    y, (b, c, h, w) = x, x.shape
    for i, rate in enumerate(module.rates):
        offsets = torch.nn.functional.conv2d(x, module.offsets[i], padding=rate, dilation=rate)
        found = ops.deform_conv2d(x, offsets, module.filters[i], padding=rate, dilation=rate)
        filters = found[:, : 9 * module.groups].view(b, module.groups, 9, h, w)
        weights = filters * found[:, -9:].softmax(1)[:, None] if module.modulated else filters.softmax(2)
        for tap in range(9):
            pick = torch.zeros(c, 1, 3, 3, dtype=x.dtype)
            pick.flatten(1)[:, tap] = 1
            sample = torch.cat(
                [
                    ops.deform_conv2d(x[:, j : j + 1], offsets, pick[:1], padding=rate, dilation=rate)
                    for j in range(c)
                ],
                1,
            )
            each = weights[:, :, tap].repeat_interleave(c // module.groups, 1)
            y = y + module.gates[i] * each * sample
    return y


@pytest.mark.parametrize("sampling", ["deformatt", "deform"])
def test_against_torchvision(sampling: str) -> None:
    torch.manual_seed(0)
    module = DynamicGraphMessages(8, rates=(1, 3), groups=2, sampling=sampling, gate=0.7).double()
    x = draw(2, 8, 6, 5)
    torch.testing.assert_close(module(x), deformed(module, x))


def test_the_released_slip_is_an_option_and_leaves_parameters_unused() -> None:
    torch.manual_seed(0)
    right = DynamicGraphMessages(8, rates=(1, 2), groups=2).double()
    slip = DynamicGraphMessages(8, rates=(1, 2), groups=2, shared_modulation=True).double()
    slip.load_state_dict(right.state_dict())
    x = draw(2, 8, 6, 5)
    slip(x).square().sum().backward()
    assert (slip.filters[1].grad[-9:] == 0).all()
    assert (slip.filters[0].grad[-9:] != 0).any()
    right(x).square().sum().backward()
    assert (right.filters[1].grad[-9:] != 0).any()
    torch.testing.assert_close(slip.message(0, x), right.message(0, x))
    assert not torch.allclose(slip(x), right(x))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_every_group_of_the_fast_form_has_filters_without_modulation(groups: int) -> None:
    """The published slice is of the first nine filters whatever the groups."""
    module = DynamicGraphMessagesFast(16, groups=groups, sampling="deform", rates=(1, 2)).double()
    module(draw(2, 16, 5, 6)).square().sum().backward()
    gradient = module.predict[0].grad
    assert gradient.shape[0] == 9 * groups + 18
    assert (gradient.flatten(1).abs().sum(1) > 0).all()


def test_the_fast_form_only_adds() -> None:
    x = draw(2, 16, 5, 6)
    assert (DynamicGraphMessagesFast(16).double()(x) - x).min() >= 0


@pytest.mark.parametrize("kind", [DynamicGraphMessages, DynamicGraphMessagesFast])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rates": ()}, "rates"),
        ({"rates": (0,)}, "rates"),
        ({"groups": 3}, "groups"),
        ({"sampling": "warp"}, "deform"),
    ],
)
def test_options_out_of_range(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(16, **options)


@pytest.mark.parametrize(
    ("options", "space"),
    [
        ({"sampling": "none"}, (5, 6)),
        ({"sampling": "deform", "groups": 2, "rates": (1, 3)}, (5, 6)),
    ],
)
def test_cost_with_options_is_what_is_counted(options: dict[str, Any], space: tuple[int, ...]) -> None:
    module, shape = widefield.create("dgmn", 8, **options), (2, 8, *space)
    assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds
