# SPDX-License-Identifier: Apache-2.0
"""Predicted attention against loops over pairs of positions, and the modules made of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor
from torch.nn import functional as F

import widefield
from registry import build, randn
from widefield.attention import attention, predicted, predicted_attention, predicted_logits
from widefield.attention.predicted import skew, unskew
from widefield.measure import LiveBytes, count


def oracle(hidden: np.ndarray, weight: np.ndarray, space: tuple[int, int], distribute: bool) -> np.ndarray:
    """`(n, n)` logits of one sample, receivers by senders, one pair at a time; 0 beyond the mask."""
    h, w = space
    logits = np.zeros((h * w, h * w))
    for i in range(h * w):
        for j in range(h * w):
            own, other = (j, i) if distribute else (i, j)
            dy = other // w - own // w + weight.shape[0] // 2
            dx = other % w - own % w + weight.shape[1] // 2
            if 0 <= dy < weight.shape[0] and 0 <= dx < weight.shape[1]:
                logits[i, j] = weight[dy, dx] @ hidden[:, own]
    return logits


def draw(space: tuple[int, int], mask: tuple[int, int], batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    n = space[0] * space[1]
    hidden, values = randn(batch, 3, n, dtype=torch.float64), randn(batch, 4, n, seed=1, dtype=torch.float64)
    return hidden, randn(*mask, 3, seed=2, dtype=torch.float64), values


@pytest.mark.parametrize("distribute", [False, True])
@pytest.mark.parametrize(
    ("space", "mask"),
    [((4, 5), (7, 9)), ((4, 5), (3, 5)), ((4, 5), (13, 1)), ((1, 1), (3, 3)), ((1, 6), (5, 5)), ((6, 1), (1, 1))],
)
def test_against_a_loop_over_pairs(
    space: tuple[int, int], mask: tuple[int, int], distribute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicted, "TILE_ROWS", 2 * space[1])  # several tiles, the last one shorter
    hidden, weight, values = draw(space, mask)
    logits = np.stack([oracle(h, weight.numpy(), space, distribute) for h in hidden.numpy()])
    np.testing.assert_allclose(predicted_logits(hidden, weight, space, distribute=distribute).numpy(), logits)
    for normalise in (True, False):
        found = predicted_attention(hidden, weight, values, space, distribute=distribute, normalise=normalise)
        weights = softmax(logits, -1) if normalise else logits
        np.testing.assert_allclose(found.numpy(), np.einsum("bij,bcj->bci", weights, values.numpy()), atol=1e-12)


@pytest.mark.parametrize("distribute", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("mask", [(7, 9), (3, 3)])
def test_derivatives(
    mask: tuple[int, int], normalise: bool, distribute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicted, "TILE_ROWS", 4)

    def run(hidden: Tensor, weight: Tensor, values: Tensor) -> Tensor:
        return predicted_attention(hidden, weight, values, (3, 4), distribute=distribute, normalise=normalise)

    given = [x.requires_grad_() for x in draw((3, 4), mask)]
    assert torch.autograd.gradcheck(run, given, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, given, fast_mode=True)


def test_half_precision_computes_in_float32_and_shapes_must_fit() -> None:
    hidden, weight, values = draw((4, 5), (7, 9))
    wide = predicted_attention(hidden, 30 * weight, values, (4, 5), distribute=True)
    found = predicted_attention(hidden.half(), 30 * weight.half(), values.half(), (4, 5), distribute=True)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), wide, rtol=0.2, atol=0.2)  # of inputs that were rounded
    for given, message in (
        ((hidden, weight[:6], values, (4, 5)), r"odd sides; got .*weight \(6, 9, 3\)"),
        ((hidden[:, :2], weight, values, (4, 5)), "takes hidden"),
        ((hidden, weight, values, (4, 4)), r"a map of \(4, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            predicted_attention(*given, distribute=False)


def test_skewing_and_its_adjoint() -> None:
    for m, reach in ((4, 2), (4, 3), (1, 0), (5, 0)):
        x, y = randn(2, m, 3, 2 * reach + 1, dtype=torch.float64), randn(2, m, 3, m, seed=1, dtype=torch.float64)
        moved = skew(x)
        for i in range(m):
            for j in range(m):
                inside = 0 <= j - i + reach <= 2 * reach
                expected = x[:, i, :, j - i + reach] if inside else torch.zeros(2, 3, dtype=torch.float64)
                assert torch.equal(moved[:, i, :, j], expected)
        torch.testing.assert_close((moved * y).sum(), (x * unskew(y, reach)).sum())


@pytest.mark.parametrize("distribute", [False, True])
def test_products_are_counted_and_neither_map_is_held(distribute: bool) -> None:
    space, mask, d, e = (24, 20), (47, 39), 6, 5
    n = space[0] * space[1]

    def run(hidden: Tensor, values: Tensor) -> Tensor:
        weight = torch.zeros(*mask, d, requires_grad=True)
        return predicted_attention(hidden, weight, values, space, distribute=distribute)

    assert count(run, ((1, d, n), (1, e, n))).multiply_adds == predicted.predicted_cost(space, mask, d, e)
    given = [torch.zeros(1, c, n, requires_grad=True) for c in (d, e)]
    with LiveBytes() as live:
        run(*given).sum().backward()
    assert live.peak < 4 * 6 * predicted.TILE_ROWS * n  # six tiles of float32
    assert live.peak < 4 * n * mask[0] * mask[1]


def test_offsets_that_leave_the_map_cost_nothing() -> None:
    inside = predicted.predicted_cost((5, 4), (9, 7), 3, 2)
    assert predicted.predicted_cost((5, 4), (59, 59), 3, 2) == inside
    pairs_in_reach = (5 * 5) * 4 * 7  # rows meet rows; each column meets its seven offsets
    assert inside == pairs_in_reach * 3 + 20 * 20 * 2


@pytest.mark.parametrize("direction", ["collect", "distribute"])
def test_a_compact_map_is_an_over_complete_one_for_the_position_in_the_middle(direction: str) -> None:
    """From there, on a map of odd sides, offsets and positions are the same numbers."""
    full = build("psanet", 8, mask=(3, 5), shrink=1, direction=direction, norm="none").double().eval()
    compact = build("psanet-compact", 8, size=(3, 5), shrink=1, direction=direction, norm="none").double().eval()
    compact.load_state_dict(full.state_dict())
    x = randn(1, 8, 3, 5, dtype=torch.float64)
    picked = []
    for module in (full, compact):
        part = module.parts[direction]
        logits = module.logits(part.hidden(part.reduce(x.flatten(2))), part.weight, (3, 5), direction)
        picked.append((logits.mT if direction == "distribute" else logits)[:, 7])
    torch.testing.assert_close(picked[0], picked[1])


@pytest.mark.parametrize("softmax_", [True, False])
@pytest.mark.parametrize("divisor", [1.0, None, 3.0])
@pytest.mark.parametrize("direction", ["collect", "distribute", "both"])
@pytest.mark.parametrize("name", ["psanet", "psanet-compact"])
def test_the_context_is_what_the_operator_does(
    name: str, direction: str, divisor: float | None, softmax_: bool
) -> None:
    module = build(
        name, 16, size=(7, 5), mask=(5, 7), shrink=1, direction=direction, softmax=softmax_, divisor=divisor
    ).double().eval()  # fmt: skip
    x = randn(2, 16, 7, 5, dtype=torch.float64)
    operators = [build_one(module, x, part) for part in module.directions]
    torch.testing.assert_close(module.operator(x), torch.stack(operators).mean(0))
    features = [module.parts[part].reduce(x).flatten(2) for part in module.directions]
    expected = torch.cat([(o @ f.mT).mT for o, f in zip(operators, features, strict=True)], 1)
    torch.testing.assert_close(module.context(x).flatten(2), expected)
    y = module(x)
    assert torch.equal(y[:, :16], x)
    torch.testing.assert_close(y[:, 16:], module.project(module.context(x)))
    assert module.cost(x.shape).multiply_adds == count(module, tuple(x.shape)).multiply_adds


def build_one(module: widefield.Context, x: Tensor, direction: str) -> Tensor:
    part = module.parts[direction]
    logits = module.logits(part.hidden(part.reduce(x).flatten(2)), part.weight, (7, 5), direction)
    return (logits.softmax(-1) if module.softmax else logits) / module.divisor


@pytest.mark.parametrize(("space", "shrink"), [((13, 9), 2), ((12, 9), 2), ((7, 10), 3), ((1, 2), 2)])
def test_any_size_comes_back(space: tuple[int, int], shrink: int) -> None:
    """As torch resizes it, which picks every s-th position where the factor divides."""
    module = build("psanet", 16, mask=9, shrink=shrink).double().eval()
    x = randn(2, 16, *space, dtype=torch.float64)
    small = tuple((size - 1) // shrink + 1 for size in space)
    found = []
    for direction, part in module.parts.items():
        f = F.interpolate(part.reduce(x), size=small, mode="bilinear", align_corners=True)
        if all((size - 1) % shrink == 0 for size in space):
            torch.testing.assert_close(f, part.reduce(x)[..., ::shrink, ::shrink])
        logits = module.logits(part.hidden(f).flatten(2), part.weight, small, direction)
        found.append((logits.softmax(-1) @ f.flatten(2).mT).mT.unflatten(2, small))
    y = F.interpolate(module.project(torch.cat(found, 1)), size=space, mode="bilinear", align_corners=True)
    torch.testing.assert_close(module(x)[:, 16:], y)
    sums = module.operator(x, torch.tensor([1])).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_compact_distribution_learns_a_query_for_every_position() -> None:
    module = build("psanet-compact", 8, size=(3, 5), shrink=1, direction="distribute").double().eval()
    part, x = module.parts["distribute"], randn(1, 8, 3, 5, dtype=torch.float64)
    f = part.reduce(x).flatten(2)
    expected = attention(part.weight.mT[None], part.hidden(f), f)
    torch.testing.assert_close(module.context(x).flatten(2), expected)


def test_options_out_of_range() -> None:
    for options, message in (
        ({"mask": 8}, "PSANet: mask must have odd sides, so that it has a middle, got 8"),
        ({"mask": (3, 5, 7)}, r"mask must be one number or \(height, width\), got \(3, 5, 7\)"),
        ({"mask": (3, 0)}, "mask width must be a positive integer, got 0"),
        ({"shrink": 0}, "shrink must be a positive integer, got 0"),
        ({"inner": 0}, "inner must be a positive integer, got 0"),
        ({"direction": "colect"}, "unknown direction 'colect'. Did you mean 'collect'"),
    ):
        with pytest.raises(ValueError, match=message):
            widefield.create("psanet", 8, **options)
    with pytest.raises(ValueError, match=r"built for maps of 5 x 4, got 4 x 5; .*size=\(4, 5\), or take psanet"):
        widefield.create("psanet-compact", 8, size=(5, 4))(randn(1, 8, 4, 5))
    with pytest.raises(ValueError, match="size height must be a positive integer, got 0"):
        widefield.create("psanet-compact", 8, size=(0, 4))
