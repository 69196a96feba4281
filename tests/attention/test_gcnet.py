# SPDX-License-Identifier: Apache-2.0
"""The global context block against its formula in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from torch import Tensor

import widefield
from registry import randn
from widefield.attention import GlobalContext
from widefield.attention.gcnet import Bottleneck, summarise


def transformed(part: Bottleneck, c: np.ndarray) -> np.ndarray:
    squeeze, expand = (
        (p.weight.detach().numpy(), p.bias.detach().numpy()) for p in (part.squeeze, part.expand.project)
    )
    h = c @ squeeze[0].T + squeeze[1]
    h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
    return np.maximum(h, 0) @ expand[0].T + expand[1]


def oracle(module: GlobalContext, x: Tensor) -> np.ndarray:
    tokens = x.numpy().reshape(*x.shape[:2], -1)
    weights = np.full((len(x), tokens.shape[-1]), 1 / tokens.shape[-1])
    if module.score is not None:
        weights = softmax(np.einsum("c,bcn->bn", module.score.weight[0].detach().numpy(), tokens), -1)
    c = np.einsum("bcn,bn->bc", tokens, weights)
    if module.multiply is not None:
        tokens = tokens * expit(transformed(module.multiply, c))[:, :, None]
    if module.add is not None:
        tokens = tokens + transformed(module.add, c)[:, :, None]
    return tokens


@pytest.mark.parametrize("space", [(1, 1), (3, 5), (7,), (2, 3, 4)])
@pytest.mark.parametrize("attend", [True, False])
@pytest.mark.parametrize(("add", "multiply"), [(True, False), (False, True), (True, True)])
def test_formula(space: tuple[int, ...], attend: bool, add: bool, multiply: bool) -> None:
    torch.manual_seed(0)
    x = randn(2, 12, *space, dtype=torch.float64)
    module = GlobalContext(12, hidden=4, attend=attend, add=add, multiply=multiply, gate=1.0).double()
    np.testing.assert_allclose(module(x).flatten(2).detach().numpy(), oracle(module, x))
    context = module.context(x).flatten(2)
    torch.testing.assert_close(context, (module.operator(x) @ x.flatten(2).mT).mT)
    assert module.operator(x, torch.tensor([0])).shape == (2, 1, context.shape[-1])
    assert module.cost(x.shape).multiply_adds == 2 * (
        attend * 2 * 12 * context.shape[-1] + (add + multiply) * 2 * 12 * 4
    )


def test_derivatives_of_the_summary() -> None:
    given = [x.double().requires_grad_() for x in (randn(2, 4, 6), randn(1, 4, seed=1), randn(1, seed=2))]
    torch.testing.assert_close(summarise(*given), given[0] @ (given[1] @ given[0]).softmax(-1).mT)
    assert torch.autograd.gradcheck(summarise, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(summarise, given)


def test_a_new_block_that_multiplies_halves_its_input() -> None:
    x = randn(2, 12, 3, 5)
    torch.testing.assert_close(GlobalContext(12, add=False, multiply=True)(x), x / 2)
    torch.testing.assert_close(GlobalContext(12)(x), x)


def test_few_channels_keep_a_transform() -> None:
    """A sixteenth of 8 channels would be none, and the layer norm of one number a constant."""
    module = GlobalContext(8, gate=1.0)
    assert module.add.squeeze.out_channels == 2
    x = randn(1, 8, 3, 5)
    assert not torch.allclose(module(x) - x, module(2 * x) - 2 * x)


def test_options_out_of_range() -> None:
    with pytest.raises(ValueError, match="GlobalContext: hidden must be a positive integer, got 0"):
        widefield.create("gcnet", 8, hidden=0)
    with pytest.raises(ValueError, match="nothing uses the context"):
        widefield.create("gcnet", 8, add=False)
