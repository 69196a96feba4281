# SPDX-License-Identifier: Apache-2.0
"""GloRe against its formulas in the order of the paper, and what its mean and its switches mean."""

from __future__ import annotations

import pytest
import torch

from registry import gradients, randn
from widefield.core import BatchNorm, NoOperator
from widefield.graph import GloRe
from widefield.measure import count


def build(**options: object) -> GloRe:
    torch.manual_seed(0)
    return GloRe(8, nodes=3, gate=1.0, **options).double().eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("space", [(1, 1), (4, 5), (7,), (2, 3, 2)])
@pytest.mark.parametrize("normalize", [True, False])
def test_formulas(space: tuple[int, ...], normalize: bool) -> None:
    module = build(normalize=normalize)
    torch.nn.init.normal_(module.edges.bias)
    x = randn(2, 8, *space, dtype=torch.float64)
    tokens, parts = x.flatten(2), dict(module.named_parameters())
    state = torch.einsum("sc,bcn->bsn", parts["state.weight"], tokens) + parts["state.bias"][:, None]
    assign = torch.einsum("mc,bcn->bmn", parts["assign.weight"], tokens) + parts["assign.bias"][:, None]
    v = torch.einsum("bsn,bmn->bsm", state, assign) / (tokens.shape[2] if normalize else 1)
    messages = torch.einsum("km,bsm->bsk", parts["edges.weight"], v) + parts["edges.bias"]
    v = torch.einsum("ts,bsm->btm", parts["update.weight"], (v + messages).relu())
    back = torch.einsum("cs,bsn->bcn", parts["out.project.weight"], torch.einsum("bsm,bmn->bsn", v, assign))
    torch.testing.assert_close(module(x).flatten(2), tokens + back / (1 + 1e-4) ** 0.5)


def test_the_mean_does_not_grow_with_the_map() -> None:
    x = randn(1, 8, 4, 5, dtype=torch.float64)
    tiled = x.repeat(1, 1, 3, 2)
    for normalize, growth in ((True, 1.0), (False, 6.0)):
        module = build(normalize=normalize)
        ratio = module.context(tiled)[..., :4, :5] / module.context(x)
        torch.testing.assert_close(ratio, torch.full_like(ratio, growth))


def test_without_reasoning_it_is_its_matrix() -> None:
    module = build(reason=False)
    x = randn(2, 8, 4, 5, dtype=torch.float64)
    matrix = module.operator(x)
    torch.testing.assert_close(matrix, matrix.mT)
    assert int(torch.linalg.matrix_rank(matrix[0], rtol=1e-9)) == 3
    values = module.out.project(module.state(x)).flatten(2)
    torch.testing.assert_close(module.context(x).flatten(2), values @ matrix.mT)
    rows = torch.tensor([3, 17])
    torch.testing.assert_close(module.operator(x, rows), matrix[:, rows])
    with pytest.raises(NoOperator, match="reason=False"):
        build().operator(x)


@pytest.mark.parametrize("reason", [True, False])
def test_every_parameter_is_used_and_every_product_counted(reason: bool) -> None:
    module = build(reason=reason).train()
    x, cotangent = (randn(2, 8, 4, 5, seed=seed, dtype=torch.float64) for seed in range(2))
    assert all(gradient.abs().max() > 0 for gradient in gradients(module, x, cotangent).values())
    assert module.cost((2, 8, 4, 5)).multiply_adds == count(module.float(), (2, 8, 4, 5)).multiply_adds


def test_options() -> None:
    assert GloRe(64).nodes == 16
    assert isinstance(GloRe(8).out.norm, BatchNorm)
    assert GloRe(8).out.norm.eps == 1e-4
    ungated = GloRe(8, norm="none")
    x = randn(1, 8, 3, 3)
    assert torch.equal(ungated(x), x), "without a norm the projection is the gate"
    assert ungated.open_gate_(1.0)
    assert not torch.equal(ungated(x), x)
    with pytest.raises(ValueError, match="nodes must be a positive number, got 0"):
        GloRe(8, nodes=0)
