# SPDX-License-Identifier: Apache-2.0
"""Interlaced attention: groups by their definition, padding that takes no part, limits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import widefield
from widefield import NoOperator
from widefield.attention import InterlacedAttention
from widefield.attention.blocks import from_groups, grouping, padding_of, to_groups
from widefield.attention.isa import block_of
from widefield.measure import count


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attend_by_loops(part: Any, x: Tensor, block: tuple[int, ...]) -> Tensor:
    """Positions compared one by one: who is in whose group, from where they stand on the padded map."""
    space = tuple(x.shape[2:])
    befores = [(-size % step) // 2 for size, step in zip(space, block, strict=True)]
    places = list(itertools.product(*(range(size) for size in space)))

    def group(p: tuple[int, ...]) -> tuple[int, ...]:
        moved = [i + before for i, before in zip(p, befores, strict=True)]
        rule = (lambda i, s: i % s) if part.distant else (lambda i, s: i // s)
        return tuple(rule(i, step) for i, step in zip(moved, block, strict=True))

    tokens = x.flatten(2)
    q, k, v = (layer(tokens) for layer in (part.query, part.key, part.value))
    y = torch.empty_like(v)
    for n, p in enumerate(places):
        members = [m for m, other in enumerate(places) if group(other) == group(p)]
        logits = torch.einsum("bd,bdm->bm", q[:, :, n], k[:, :, members]) * part.inner**-0.5
        y[:, :, n] = torch.einsum("bm,bem->be", logits.softmax(-1), v[:, :, members])
    return part.out(y).unflatten(2, space)


@pytest.mark.parametrize(
    ("space", "block"),
    [((6, 4), (3, 2)), ((7, 5), (3, 4)), ((2, 3), (8, 8)), ((1, 1), (2, 2)), ((7,), (3,)), ((3, 4, 5), (2, 3, 2))],
)
def test_by_loops_with_and_without_padding(space: tuple[int, ...], block: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, x = InterlacedAttention(6, blocks=[block]).double().eval(), draw(2, 6, *space)
    z = attend_by_loops(module.within[0], attend_by_loops(module.distant[0], x, block), block)
    torch.testing.assert_close(module.context(x), z)
    torch.testing.assert_close(module.eval()(x), module.fuse(torch.cat([x, z], 1)))


@pytest.mark.parametrize("distant", [True, False])
@pytest.mark.parametrize(("space", "block"), [((7, 5), (3, 4)), ((5,), (2,)), ((3, 4, 5), (2, 4, 3))])
def test_two_ways_of_cutting_agree(space: tuple[int, ...], block: tuple[int, ...], distant: bool) -> None:
    """The views of the eager path and the indices of the traced one."""
    amounts = padding_of(space, block)
    full = tuple(size + sum(pair) for size, pair in zip(space, amounts, strict=True))
    x = draw(2, *full, 3)
    groups = to_groups(x, block, distant=distant)
    assert torch.equal(from_groups(groups, full, block, distant=distant), x)
    position, place = grouping(space, block, distant=distant, device=x.device)
    inner = x
    for axis, (size, (before, _)) in enumerate(zip(space, amounts, strict=True), start=1):
        inner = inner.narrow(axis, before, size)
    inner = inner.flatten(1, -2)
    assert torch.equal(groups.flatten(1, 2)[:, place], inner)
    real = position >= 0
    assert torch.equal(groups[:, real], inner[:, position[real]])
    assert int(real.sum()) == inner.shape[1]


def test_padding_statistics_stay_out_of_the_norm() -> None:
    """In training, zeros around the map would pull the running means; as published they do."""
    x = 3 + draw(2, 6, 7, 5)
    means = []
    for mask in (True, False):
        torch.manual_seed(0)
        module = InterlacedAttention(6, blocks=[(4, 4)], mask_padding=mask).double().train()
        module(x)
        first = module.distant[0].key[0]
        means.append(first.norm.running_mean / 0.1)
        expected = first.project(x).mean((0, 2, 3))
    torch.testing.assert_close(means[0], expected)
    assert (means[1] - expected).abs().max() > 0.1


def test_the_matrix_is_the_product_and_reaches_everything() -> None:
    module, x = InterlacedAttention(8, blocks=[(2, 3)]).double().eval(), draw(1, 8, 6, 6)
    matrix = module.operator(x)
    assert (matrix > 0).all()
    inside = module.within[0].matrix(module.distant[0](x.flatten(2), (6, 6), (2, 3)), (6, 6), (2, 3))
    assert int((inside[0, 0] > 0).sum()) == 6
    with pytest.raises(NoOperator, match="one branch"):
        InterlacedAttention(8, blocks=(2, 3)).operator(x.float())


def test_blocks_that_grow_with_the_map() -> None:
    assert block_of((64, 100), None) == (8, 10)
    assert block_of((1, 2), None) == (1, 1)
    module, x = InterlacedAttention(6, blocks=[None]).double().eval(), draw(1, 6, 9, 16)
    same = InterlacedAttention(6, blocks=[(3, 4)]).double().eval()
    same.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x), same(x))
    cost = [module.mixing_cost((side, side)) for side in (1024, 4096)]
    assert cost[1] == cost[0] * 16**1.5


def test_several_branches_and_widths() -> None:
    module = InterlacedAttention(6, out_channels=5, blocks=[2, (3, 1), None], inner=3, value_channels=4).double()
    assert module(draw(2, 6, 5, 7)).shape == (2, 5, 5, 7)
    assert module.context(draw(2, 6, 5, 7)).shape == (2, 15, 5, 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"blocks": []}, "blocks must be"),
        ({"blocks": [0]}, "blocks must be"),
        ({"blocks": [(2, 0)]}, "blocks must be"),
        ({"inner": 0}, "inner"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"InterlacedAttention: .*{said}"):
        InterlacedAttention(6, **options)


def test_a_block_for_another_number_of_axes() -> None:
    with pytest.raises(ValueError, match=r"the block \(2, 2\) has 2 sizes and the map \(5,\) has 1 axes"):
        InterlacedAttention(6, blocks=[(2, 2)])(draw(1, 6, 5).float())


@pytest.mark.parametrize(
    ("options", "space"),
    [
        ({"mask_padding": False}, (9, 40)),
        ({"blocks": [None]}, (9, 40)),
        ({"blocks": [(2, 3), 5]}, (7, 6)),
        ({"out_channels": 5, "inner": 3, "value_channels": 4}, (8, 8)),
        ({"mask_padding": False, "blocks": [3, 4]}, (7,)),
    ],
)
def test_cost_with_options_is_what_is_counted(options: dict[str, Any], space: tuple[int, ...]) -> None:
    module, shape = widefield.create("isa", 8, **options), (2, 8, *space)
    assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds
