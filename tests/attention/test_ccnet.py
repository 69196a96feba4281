# SPDX-License-Identifier: Apache-2.0
"""Criss-cross attention against loops over positions, and what two passes reach."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

from widefield.attention import CrissCrossAttention, NonLocalBare, criss_cross
from widefield.models.heads import CCNetHead
from widefield.weights import load_reference, reference_names


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """`(h, w, d)` each; the cross of a position listed, itself once."""
    h, w = q.shape[:2]
    y = np.zeros_like(v)
    for i in range(h):
        for j in range(w):
            cross = [(i, b) for b in range(w)] + [(a, j) for a in range(h) if a != i]
            weights = softmax([q[i, j] @ k[u] for u in cross])
            y[i, j] = sum(weight * v[u] for weight, u in zip(weights, cross, strict=True))
    return y


@pytest.mark.parametrize("space", [(1, 1), (1, 6), (6, 1), (4, 7)])
def test_a_pass_by_loops(space: tuple[int, int]) -> None:
    q, k, v = draw(2, *space, 3), draw(2, *space, 3, seed=2), draw(2, *space, 5, seed=3)
    expected = np.stack([by_loops(*(x[b].numpy() for x in (q, k, v))) for b in range(2)])
    np.testing.assert_allclose(criss_cross(q, k, v).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_single_row_is_full_attention() -> None:
    x = draw(2, 4, 1, 9)
    tokens = x.movedim(1, -1)
    expected = NonLocalBare(4).context(x)
    torch.testing.assert_close(criss_cross(tokens, tokens, tokens).movedim(-1, 1), expected)


def test_the_matrix_averages_the_values() -> None:
    module, x = CrissCrossAttention(8, recurrence=1).double(), draw(2, 8, 4, 5)
    matrix, values = module.operator(x), module.value(x).flatten(2)
    torch.testing.assert_close((matrix @ values.mT).mT, module.context(x).flatten(2))
    i, j = torch.arange(20) // 5, torch.arange(20) % 5
    off = (i[:, None] != i) & (j[:, None] != j)
    assert (matrix[:, off] == 0).all()
    assert (matrix[:, ~off] > 0).all()


@pytest.mark.parametrize(("recurrence", "reached"), [(1, 4 + 5 - 1), (2, 20)])
def test_what_is_reached(recurrence: int, reached: int) -> None:
    """The positions whose features a position depends on: its cross, then everything."""
    module = CrissCrossAttention(8, recurrence=recurrence, gate=1.0).double()
    x = draw(1, 8, 4, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(module(x)[0, :, 1, 2].sum(), x)
    assert int((gradient.abs().sum(1) > 1e-12).sum()) == reached


def test_passes_are_residual_blocks_in_a_row() -> None:
    torch.manual_seed(0)
    once, thrice = (CrissCrossAttention(8, recurrence=r, gate=0.3).double() for r in (1, 3))
    thrice.load_state_dict(once.state_dict())
    x = draw(2, 8, 5, 3)
    torch.testing.assert_close(thrice(x), once(once(once(x))))


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((1, 3, 4, 2), 1e4, requires_grad=True)
    y = criss_cross(q, q, q)
    torch.testing.assert_close(y, q)
    y.sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize(("options", "named"), [({"inner": 0}, "inner"), ({"recurrence": 0}, "recurrence")])
def test_options_out_of_range(options: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=f"CrissCrossAttention: {named} must be .* got 0"):
        CrissCrossAttention(8, **options)


def test_head_of_any_width() -> None:
    head = CCNetHead(12, 3, width=10, dropout=0.0).double()
    x = draw(2, 12, 5, 4)
    y = head(x)
    assert y.shape == (2, 3, 5, 4)
    y.square().mean().backward()
    assert all(p.grad is not None for p in head.parameters())
    assert head.open_gate_(1.0)
    assert not torch.equal(head(x), y)
    with pytest.raises(ValueError, match="12"):
        head(draw(1, 8, 5, 4))
    with pytest.raises(ValueError, match="num_classes"):
        CCNetHead(8, 0)


def test_head_takes_the_published_names() -> None:
    head, other = CCNetHead(8, 3, width=6), CCNetHead(8, 3, width=6)
    own = head.state_dict()
    state = {theirs: own[ours] for theirs, ours in reference_names(head, "ccnet").items()}
    assert {"conva.0.weight", "cca.gamma", "convb.1.running_var", "bottleneck.3.bias"} <= set(state)
    load_reference(other, state, source="ccnet")
    x = draw(1, 8, 4, 4).float()
    assert torch.equal(other.eval()(x), head.eval()(x))
