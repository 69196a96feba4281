# SPDX-License-Identifier: Apache-2.0
"""Disentangled non-local against its two softmaxes in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

import widefield
from registry import randn
from widefield.attention import DisentangledNonLocal, NonLocal


def projected(part: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    weight, bias = (p.detach().numpy() for p in part.parameters())
    return np.einsum("oc,bcn->bon", weight, x) + bias[:, None]


def oracle(module: DisentangledNonLocal, x: Tensor, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    tokens = x.numpy().reshape(*x.shape[:2], -1)
    q, k, v = (projected(part, tokens) for part in (module.query, module.key, module.value))
    q, k = q - q.mean(-1, keepdims=True), k - k.mean(-1, keepdims=True)
    weights = softmax(np.einsum("bdi,bdj->bij", q, k) / temperature, -1)
    weights = weights + softmax(projected(module.unary, tokens), -1)
    return np.einsum("bij,bcj->bci", weights, v), weights


@pytest.mark.parametrize("space", [(1, 1), (3, 5), (7,), (2, 3, 4)])
@pytest.mark.parametrize(("temperature", "scale"), [(0.05, False), (0.7, True)])
def test_formula(space: tuple[int, ...], temperature: float, scale: bool) -> None:
    torch.manual_seed(0)
    x = randn(2, 8, *space, dtype=torch.float64)
    module = DisentangledNonLocal(8, inner=3, temperature=temperature, scale=scale).double()
    context, weights = oracle(module, x, temperature * 3**0.5 if scale else temperature)
    np.testing.assert_allclose(module.context(x).flatten(2).detach().numpy(), context)
    np.testing.assert_allclose(module.operator(x).detach().numpy(), weights)
    rows = torch.tensor([weights.shape[1] - 1, 0])
    np.testing.assert_allclose(module.operator(x, rows).detach().numpy(), weights[:, rows])
    y = x + module.out(module.context(x))
    torch.testing.assert_close(module(x), y)


def test_a_shift_of_all_features_moves_neither_weights_nor_their_gradient() -> None:
    """Whitening: what all positions have in common is no reason to look anywhere."""
    torch.manual_seed(0)
    module = DisentangledNonLocal(8, gate=1.0).double()
    x = randn(2, 8, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(module.operator(x + 3), module.operator(x))
    (module(x) * randn(*x.shape, seed=1)).sum().backward()
    assert module.query.bias.grad.abs().max() < 1e-12
    assert module.unary.weight.grad.abs().max() > 1e-6


def test_batch_norm_takes_the_salience_out_of_a_batch_of_one() -> None:
    """As documented: it is the same at all positions, and in training the norm subtracts their mean."""
    torch.manual_seed(0)
    module = DisentangledNonLocal(8, gate=1.0).double()
    x = randn(2, 8, 4, 5, dtype=torch.float64)
    before = module(x[:1]), module(x)
    torch.nn.init.normal_(module.unary.weight)
    torch.testing.assert_close(module(x[:1]), before[0])
    assert not torch.allclose(module(x), before[1])


def test_hot_and_without_salience_it_is_an_average() -> None:
    """At a high temperature both softmaxes are flat: twice the mean of the values."""
    torch.manual_seed(0)
    module = DisentangledNonLocal(8, temperature=1e9).double()
    torch.nn.init.zeros_(module.unary.weight)
    x = randn(2, 8, 4, 5, dtype=torch.float64)
    mean = module.value(x).flatten(2).mean(-1)
    torch.testing.assert_close(
        module.context(x), (2 * mean)[:, :, None, None].expand(2, 4, 4, 5), rtol=1e-6, atol=1e-6
    )


def test_minus_the_mean_it_is_a_non_local_block() -> None:
    """The unary term is one vector for all; without it, and with queries that have no mean, it is `nonlocal`."""
    torch.manual_seed(0)
    module = DisentangledNonLocal(8, temperature=1.0).double()
    plain = NonLocal(8, scale=False).double()
    x = randn(1, 8, 4, 5, dtype=torch.float64)
    x = x - x.mean((2, 3), keepdim=True)
    for name in ("query", "key", "value"):
        getattr(plain, name).load_state_dict(getattr(module, name).state_dict())
    torch.nn.init.zeros_(plain.query.bias)
    difference = (module.context(x) - plain.context(x)).flatten(2)
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference))


def test_options_out_of_range() -> None:
    with pytest.raises(ValueError, match="DisentangledNonLocal: temperature must be positive, got 0"):
        widefield.create("dnl", 8, temperature=0)
    with pytest.raises(ValueError, match="inner"):
        widefield.create("dnl", 8, inner=0)
