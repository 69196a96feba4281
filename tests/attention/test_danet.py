# SPDX-License-Identifier: Apache-2.0
"""Dual attention against its formulas in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import widefield
from widefield import NoOperator
from widefield.attention import ChannelAttention, DualAttention, PositionAttention, channel_matrix
from widefield.core import Context
from widefield.models.heads import DANetHead

NAMES = ["danet-pam", "danet-cam", "danet"]


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def position(module: PositionAttention, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    a = x.numpy().reshape(*x.shape[:2], -1)
    q, k, v = (
        np.einsum("oc,bcn->bon", part.weight.detach().numpy(), a) + part.bias.detach().numpy()[:, None]
        for part in (module.query, module.key, module.value)
    )
    weights = softmax(np.einsum("bdi,bdj->bij", q, k), -1)
    return np.einsum("bij,bcj->bci", weights, v), weights


def channel(x: Tensor, invert: bool) -> np.ndarray:
    a = x.numpy().reshape(*x.shape[:2], -1)
    energy = np.einsum("bcn,bdn->bcd", a, a)
    if invert:
        energy = energy.max(-1, keepdims=True) - energy
    return np.einsum("bcd,bdn->bcn", softmax(energy, -1), a)


@pytest.mark.parametrize("space", [(1, 1), (1, 9), (3, 5), (7,), (2, 4, 3)])
def test_formulas(space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = draw(2, 16, *space)
    flat = x.numpy().reshape(2, 16, -1)
    pam = PositionAttention(16, gate=0.25).double()
    by_position, weights = position(pam, x)
    np.testing.assert_allclose(pam(x).flatten(2).detach().numpy(), flat + 0.25 * by_position)
    np.testing.assert_allclose(pam.operator(x).detach().numpy(), weights)
    np.testing.assert_allclose(pam.operator(x, torch.tensor([0])).detach().numpy(), weights[:, :1])
    for invert in (True, False):
        cam = ChannelAttention(16, invert=invert, gate=-0.75).double()
        np.testing.assert_allclose(cam(x).flatten(2).detach().numpy(), flat - 0.75 * channel(x, invert))
        dual = DualAttention(16, invert=invert, gate=0.5).double()
        dual.position.load_state_dict(pam.state_dict())
        dual.open_gate_(0.5)
        expected = flat + 0.5 * by_position + 0.5 * channel(x, invert)
        np.testing.assert_allclose(dual(x).flatten(2).detach().numpy(), expected)
        np.testing.assert_allclose(dual.operator(x).detach().numpy(), weights)


def test_channel_attention_has_no_position_matrix() -> None:
    with pytest.raises(NoOperator, match="channels"):
        ChannelAttention(4).operator(draw(1, 4, 3, 3))


def test_channel_weights_sum_to_one_and_prefer_the_different() -> None:
    x = torch.eye(4, dtype=torch.float64)[None]
    weights = channel_matrix(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 4, dtype=torch.float64))
    assert (weights.argmin(-1) == torch.arange(4)).all()
    assert (channel_matrix(x, invert=False).argmax(-1) == torch.arange(4)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_channel_energies_do_not_overflow_in_half_precision(dtype: torch.dtype) -> None:
    """FR-02 (b): energies of 3e5 in a type that ends at 65504."""
    x = (torch.rand(1, 8, 128, 128, generator=torch.Generator().manual_seed(0)) * 4).to(dtype).requires_grad_()
    module = ChannelAttention(8, gate=1.0, dtype=dtype)
    y = module(x)
    wide = ChannelAttention(8, gate=1.0).double()(x.detach().double())
    assert y.dtype == dtype
    assert (y.double() - wide).abs().max() < 2e-2 * wide.abs().max()
    y.float().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str) -> None:
    module = widefield.create(name, 8, gate=0.5).double()
    x = draw(2, 8, 3, 2) * 0.3

    def forward(x: Tensor, *_: Tensor) -> Tensor:
        return module(x)

    assert torch.autograd.gradcheck(forward, (x.requires_grad_(), *module.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_gate_batch_layout_and_zeros(name: str) -> None:
    module = widefield.create(name, 8)
    assert isinstance(module, Context)
    x = draw(3, 8, 5, 4).float()
    assert torch.equal(module(x), x)
    assert module.context(x).abs().max() > 0
    assert module.open_gate_(0.4)
    y = module(x)
    torch.testing.assert_close(module(x[1:2]), y[1:2], atol=1e-5, rtol=0)
    last = module(x.to(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, y, atol=1e-5, rtol=0)
    zeros = torch.zeros(2, 8, 5, 4, requires_grad=True)
    module(zeros).sum().backward()
    assert zeros.grad is not None
    assert torch.isfinite(zeros.grad).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", [(3, 4), (46, 47), (5,), (2, 3, 5)])
def test_cost_is_what_is_counted(name: str, space: tuple[int, ...]) -> None:
    module = widefield.create(name, 16).eval()
    assert isinstance(module, Context)
    shape = (2, 16, *space)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(shape))
    assert counter.get_total_flops() == 2 * module.cost(shape).multiply_adds


def test_head_has_three_supervised_outputs() -> None:
    torch.manual_seed(0)
    head = DANetHead(16, 3, dropout=0.0)
    out = head(draw(2, 16, 5, 4).float())
    assert [tuple(o.shape) for o in out] == [(2, 3, 5, 4)] * 3
    sum(o.square().mean() for o in out).backward()
    missing = [name for name, p in head.named_parameters() if p.grad is None]
    assert not missing
    assert head.open_gate_(1.0)
    with pytest.raises(ValueError, match="16"):
        head(torch.zeros(1, 8, 5, 4))
    with pytest.raises(ValueError, match="num_classes"):
        DANetHead(16, 0)


def test_wrong_width() -> None:
    with pytest.raises(ValueError, match="inner"):
        PositionAttention(8, inner=0)
