# SPDX-License-Identifier: Apache-2.0
"""Object context, whole and in cells, against loops over cells."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import widefield
from registry import build, randn
from widefield.attention import attend_in_cells, attention
from widefield.attention.cells import blocks, cells_cost, same_cell
from widefield.attention.ocnet import ObjectContext
from widefield.measure import count


def cells_of(space: tuple[int, ...], s: int) -> list[tuple[slice, ...]]:
    """As published: equal steps, the last cell takes the rest; with fewer positions than cells, one each."""
    axes = []
    for size in space:
        parts = min(s, size)
        step = size // parts
        axes.append([slice(i * step, size if i == parts - 1 else (i + 1) * step) for i in range(parts)])
    return list(itertools.product(*axes))


@pytest.mark.parametrize("space", [(1, 1), (2, 3), (5, 9), (12, 6), (13, 8), (11,), (4, 5, 7)])
@pytest.mark.parametrize("s", [1, 2, 3, 6])
def test_attention_in_cells(space: tuple[int, ...], s: int) -> None:
    q, k, v = (randn(2, c, *space, seed=c, dtype=torch.float64) for c in (3, 4, 5))
    k = k[:, :3]
    expected = torch.zeros_like(v)
    for cell in cells_of(space, s):
        where = (slice(None), slice(None), *cell)
        inside = attention(q[where].flatten(2), k[where].flatten(2), v[where].flatten(2), scale=0.7)
        expected[where] = inside.unflatten(2, v[where].shape[2:])
    found = attend_in_cells(*(x.flatten(2) for x in (q, k, v)), space, s, scale=0.7)
    torch.testing.assert_close(found.unflatten(2, space), expected)
    assert cells_cost(space, s) == sum(x**2 for x in (expected[0, 0][cell].numel() for cell in cells_of(space, s)))


def test_the_mask_that_exported_graphs_use_is_the_grid() -> None:
    for space, s in (((5, 9), 3), ((2, 7), 6), ((12, 6), 6)):
        index = torch.zeros(space)
        for i, cell in enumerate(cells_of(space, s)):
            index[cell] = i
        index = index.flatten()
        assert torch.equal(same_cell(space, s, index), index[:, None] == index)


def test_blocks() -> None:
    assert blocks(12, 3) == [(3, 4)]
    assert blocks(9, 6) == [(5, 1), (1, 4)]
    assert blocks(2, 6) == [(2, 1)]


def test_a_position_sees_its_cell_alone() -> None:
    module = build("ocnet-pyramid", 16, sizes=(2,)).eval()
    x = randn(1, 16, 8, 8)
    moved = x.clone()
    moved[..., :4, :4] += 1
    change = (module.context(moved) - module.context(x)).abs().amax((0, 1))
    assert change[:4, :4].min() > 0
    assert change[4:].max() == change[:4, 4:].max() == 0


def test_queries_are_keys_so_logits_are_symmetric() -> None:
    torch.manual_seed(0)
    part = ObjectContext(6, 4, 5, norm="batch").double().eval()
    x = randn(1, 6, 3, 5, dtype=torch.float64)
    weights = part.matrix(x.flatten(2), (3, 5), None)
    ratio = weights.log() - weights.log().mT  # of a symmetric matrix less one number a row
    torch.testing.assert_close(ratio, ratio[..., :1] + ratio[:, :1])


@pytest.mark.parametrize("space", [(9, 7), (8, 6), (1, 5)])
def test_a_reduced_map_is_pooled_first_and_interpolated_after(space: tuple[int, int]) -> None:
    torch.manual_seed(0)
    part = ObjectContext(6, 4, 5, norm="batch", reduce=2).double().eval()
    x = randn(2, 6, *space, dtype=torch.float64)
    small = F.max_pool2d(x, tuple(min(2, s) for s in space))
    key, value = part.key(small).flatten(2), part.value(small).flatten(2)
    y = attention(key, key, value, scale=0.5).unflatten(2, small.shape[2:])
    expected = F.interpolate(y, size=space, mode="bilinear", align_corners=True)
    torch.testing.assert_close(part(x.flatten(2), space).unflatten(2, space), expected)
    operator = part.matrix(x.flatten(2), space, None)
    torch.testing.assert_close((operator @ value.mT).mT.unflatten(2, space), expected)
    torch.testing.assert_close(part.matrix(x.flatten(2), space, torch.tensor([3, 0])), operator[:, [3, 0]])


def test_several_sizes_are_summed_and_shown_side_by_side() -> None:
    module = build("ocnet-base", 16, sizes=(1, 2)).eval()
    x = randn(2, 16, 6, 4)
    operator = module.operator(x)
    assert operator.shape == (2, 24, 24 + 6)
    torch.testing.assert_close(operator.sum(-1), torch.ones(2, 24))
    parts = module.context(x).chunk(2, 1)
    y = sum(project(part) for project, part in zip(module.projects, parts, strict=True))
    assert isinstance(y, Tensor)
    torch.testing.assert_close(module(x), module.fuse(torch.cat([y, x], 1)))


@pytest.mark.parametrize("name", ["ocnet-base", "ocnet-pyramid", "ocnet-asp"])
def test_the_gate_closes_the_context_alone(name: str) -> None:
    module = build(name, 16, gate=None).eval()
    x = randn(1, 16, 6, 4)
    closed = module(x)
    assert closed.abs().max() > 0
    assert module.open_gate_(0.5)
    assert not torch.allclose(module(x), closed)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ocnet-base", {"sizes": (1, 2, 3)}), ("ocnet-pyramid", {"sizes": (2, 5)}), ("ocnet-asp", {"reduce": 3})],
)
@pytest.mark.parametrize("shape", [(1, 16, 9, 13), (2, 16, 2, 3)])
def test_cost_of_other_sizes(name: str, options: dict[str, object], shape: tuple[int, ...]) -> None:
    module = build(name, 16, **options)
    assert module.cost(shape).multiply_adds == count(module, shape).multiply_adds


def test_options_out_of_range() -> None:
    for name in ("ocnet-base", "ocnet-pyramid"):
        for option in ("inner", "value_channels", "out_channels"):
            with pytest.raises(ValueError, match=f"{option} must be a positive integer, got 0"):
                widefield.create(name, 8, **{option: 0})
        with pytest.raises(ValueError, match=r"sizes must be one or more positive integers, got \(\)"):
            widefield.create(name, 8, sizes=())
    for options, message in (
        ({"out_channels": 9}, "OCNetASP: out_channels must be a positive even number, got 9"),
        ({"reduce": 0}, "reduce must be a positive integer, got 0"),
        ({"rates": (6, 0)}, r"rates\[1\] must be a positive integer, got 0"),
        ({"dims": 4}, "dims must be 1, 2 or 3"),
    ):
        with pytest.raises(ValueError, match=message):
            widefield.create("ocnet-asp", 8, **options)
