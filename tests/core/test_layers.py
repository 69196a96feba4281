# SPDX-License-Identifier: Apache-2.0
"""The 1x1 projection and the norms, against torch's."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from registry import randn
from widefield.core import BatchNorm, Pointwise, UnknownName
from widefield.core.layout import like, to_map, to_positions
from widefield.core.norm import make_norm, set_scale_
from widefield.core.pointwise import chained, chained_cost, product_is_cheaper, together

SPACES = {1: (11,), 2: (5, 7), 3: (3, 4, 5)}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
LAYOUTS = {
    "contiguous": lambda x: x.clone(),
    "channels_last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "transposed": lambda x: x.transpose(2, -1).contiguous().transpose(2, -1),
    "every_second_channel": lambda x: x.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dims", SPACES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_pointwise_is_a_1x1_convolution(dims: int, layout: str, bias: bool, batch: int) -> None:
    ours = Pointwise(6, 4, bias=bias)
    theirs = CONVOLUTIONS[dims](6, 4, 1, bias=bias)
    theirs.load_state_dict(
        {k: v if k == "bias" else v.reshape(4, 6, *[1] * dims) for k, v in ours.state_dict().items()}
    )
    x = LAYOUTS[layout](randn(batch, 6, *SPACES[dims]))
    a, b = (x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    y, expected = ours(a), theirs(b)
    torch.testing.assert_close(y, expected)
    cotangent = randn(*y.shape, seed=1)
    (y * cotangent).sum().backward()
    (expected * cotangent).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad.flatten(1))


def test_pointwise_keeps_channels_last_and_the_dtype_of_its_input() -> None:
    module, x = Pointwise(6, 4), randn(2, 6, 5, 7)
    y = module(x.contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert module(x.double()).dtype == torch.float64
    assert module.half()(x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.float()(x).dtype == torch.bfloat16


def test_pointwise_starts_as_a_convolution() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours = Pointwise(6, 4)
        torch.manual_seed(0)
        theirs = nn.Conv2d(6, 4, 1)
    assert torch.equal(ours.weight, theirs.weight[..., 0, 0])
    assert torch.equal(ours.bias, theirs.bias)
    assert ours.multiply_adds(35) == 6 * 4 * 35


@pytest.mark.parametrize("positions", [2, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_two_projections_in_the_cheaper_order(positions: int, bias: bool) -> None:
    x = randn(3, 6, positions)
    for widths in ((6, 8, 2), (6, 2, 8)):
        inner, outer = (Pointwise(i, o, bias=bias) for i, o in itertools.pairwise(widths))
        torch.testing.assert_close(chained(x, inner, outer), outer(inner(x)))
        with FlopCounterMode(display=False) as counter:
            chained(x, inner, outer)
        found, each = counter.get_total_flops() // 2, 3 * positions * (widths[0] + widths[2]) * widths[1]
        product = widths[2] * widths[1] * (widths[0] + bias) + 3 * positions * widths[0] * widths[2]
        assert chained_cost(3, positions, inner, outer) in (
            found,
            found + widths[2] * widths[1],
        )  # torch skips `mv`
        assert chained_cost(3, positions, inner, outer) in (each, product)
    assert product_is_cheaper(40, Pointwise(6, 8), Pointwise(8, 2))
    assert not product_is_cheaper(40, Pointwise(6, 2), Pointwise(2, 8))


def test_several_inputs_are_taken_as_concatenated() -> None:
    module, parts = Pointwise(9, 4), [randn(2, c, 5, 7, seed=c) for c in (2, 3, 4)]
    torch.testing.assert_close(module(*parts), module(torch.cat(parts, 1)))
    last = [part.contiguous(memory_format=torch.channels_last) for part in parts]
    torch.testing.assert_close(module(*last), module(torch.cat(parts, 1)))
    leaves = [part.requires_grad_() for part in parts]
    found = torch.autograd.grad(module(*leaves).square().sum(), [*leaves, *module.parameters()])
    expected = torch.autograd.grad(module(torch.cat(leaves, 1)).square().sum(), [*leaves, *module.parameters()])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dims", SPACES)
def test_batch_norm_equals_torch(dims: int, batch: int, train: bool) -> None:
    ours, theirs = BatchNorm(6).train(train), NORMS[dims](6).train(train)
    with torch.no_grad():
        ours.weight.copy_(randn(6, seed=2))
        ours.running_mean.copy_(randn(6, seed=3))
    theirs.load_state_dict(ours.state_dict())
    x = randn(batch, 6, *SPACES[dims])
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    cotangent = randn(*x.shape, seed=1)
    (ours(a) * cotangent).sum().backward()
    (theirs(b) * cotangent).sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("dims", [0, 1, 2, 3])
def test_a_single_value_is_normalised_by_the_running_statistics(dims: int) -> None:
    norm = BatchNorm(4).train()
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(9.0)
    state = {key: value.clone() for key, value in norm.state_dict().items()}
    x = randn(1, 4, *[1] * dims)
    torch.testing.assert_close(norm(x), (x - 2) / (9 + norm.eps) ** 0.5)
    torch.testing.assert_close(norm.state_dict(), state)
    norm(x.expand(2, *x.shape[1:]))
    assert int(norm.num_batches_tracked) == 1, "two values are a batch"


def test_batch_norm_counts_a_checkpointed_forward_once() -> None:
    for shape in ((3, 6, 5, 7), (1, 6, 5, 7)):
        ours, plain = BatchNorm(6).train(), BatchNorm(6).train()
        x = randn(*shape)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        cotangent = randn(*shape, seed=1)
        (checkpoint(ours, a, use_reentrant=False) * cotangent).sum().backward()
        (plain(b) * cotangent).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
        torch.testing.assert_close(ours.state_dict(), plain.state_dict())


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (32, 16), (24, 8), (6, 2), (5, 1), (1, 1)])
def test_group_norm_leaves_two_channels_a_group(channels: int, groups: int) -> None:
    norm = make_norm("group", channels)
    x = randn(2, channels, 5, 7)
    assert norm.num_groups == groups
    torch.testing.assert_close(norm(x), nn.functional.group_norm(x, groups))


def test_norms_by_name() -> None:
    x = randn(2, 6, 5, 7)
    torch.testing.assert_close(make_norm("layer", 6)(x), nn.functional.layer_norm(x, x.shape[1:]))
    assert make_norm("none", 6)(x) is x
    assert isinstance(make_norm(nn.BatchNorm2d, 6), nn.BatchNorm2d)
    with pytest.raises(
        UnknownName, match=r"unknown norm 'bacth'.*Did you mean 'batch'.*Accepted: batch, group, layer, none"
    ):
        make_norm("bacth", 6)
    with pytest.raises(ValueError, match=r"one value a group.*\(1, 1, 1, 1\).*norm='batch' or norm='none'"):
        make_norm("layer", 1)(torch.ones(1, 1, 1, 1))


def test_scale() -> None:
    norm = make_norm("batch", 3)
    set_scale_(norm, 0.25)
    assert torch.equal(norm.weight, torch.full((3,), 0.25))
    set_scale_(make_norm("none", 3), 0.25)


def test_positions_and_back() -> None:
    for shape in ((2, 3, 11), (2, 3, 5, 7), (1, 3, 5, 7), (2, 3, 2, 3, 4)):
        x = randn(*shape)
        tokens, space = to_positions(x)
        assert tokens.shape == (*shape[:2], x[0, 0].numel())
        assert torch.equal(to_map(tokens, space), x)
        assert tokens.data_ptr() == x.data_ptr(), "a view"


def test_the_gradient_of_a_batch_of_one_is_contiguous() -> None:
    x = randn(1, 3, 5, 7).requires_grad_()
    with torch.no_grad():
        assert torch.equal(to_positions(x)[0], x.flatten(2))
    tokens, _ = to_positions(x)
    outermost = randn(1, 35, 3).mT
    seen = []
    x.register_hook(lambda gradient: seen.append(gradient.stride()))
    (gradient,) = torch.autograd.grad(tokens, x, outermost)
    assert torch.equal(gradient.flatten(2), outermost)
    assert seen[0][1:] == (35, 7, 1)
    _, pull = torch.func.vjp(lambda x: to_positions(x)[0], x)
    assert torch.equal(pull(outermost)[0], gradient)


def test_like_gives_the_memory_layout() -> None:
    x = randn(2, 3, 5, 7)
    last = x.contiguous(memory_format=torch.channels_last)
    assert like(x, last).is_contiguous(memory_format=torch.channels_last)
    assert like(last, x).is_contiguous()
    assert like(last, x.transpose(2, 3)).is_contiguous()
    volume = randn(2, 3, 2, 3, 4).contiguous(memory_format=torch.channels_last_3d)
    assert like(volume.contiguous(), volume).is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bias", [True, False])
def test_projections_together_are_the_projections(layout: str, bias: bool) -> None:
    parts = nn.ModuleList(Pointwise(6, width, bias=bias) for width in (4, 1, 3))
    x = LAYOUTS[layout](randn(2, 6, 5, 7)).requires_grad_()
    for found, part in zip(together(x, *parts), parts, strict=True):
        torch.testing.assert_close(found, part(x))
        ours, theirs = (
            torch.autograd.grad(y.square().sum(), (x, *part.parameters()), retain_graph=True)
            for y in (found, part(x))
        )
        torch.testing.assert_close(ours, theirs)
