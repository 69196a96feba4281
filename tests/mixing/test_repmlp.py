# SPDX-License-Identifier: Apache-2.0
"""RepMLP of both years: merged equals unmerged, and the parts are what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from widefield.core import BatchNorm
from widefield.mixing import RepMLP, RepMLPBlock
from widefield.mixing.reparameterise import convolution_matrix
from widefield.mixing.repmlp_block import from_partitions, to_partitions
from widefield.models.tokens import RepMLPNet
from widefield.testing.graphs import onnx_session

Build = Callable[[], nn.Module]
# Every kernel, group, shareset and partition setting; the second number is the input.
SHARED = [
    (lambda: RepMLPBlock(8, (4, 4), sharesets=2), (3, 8, 4, 4)),
    (lambda: RepMLPBlock(8, (4, 4), sharesets=2), (3, 8, 8, 12)),
    (lambda: RepMLPBlock(8, (4, 4), sharesets=2, interchanged=True), (3, 8, 8, 12)),
    (lambda: RepMLPBlock(6, (5, 3), sharesets=1, kernels=(1, 3, 5)), (2, 6, 5, 9)),
    (lambda: RepMLPBlock(6, (2, 3), kernels=(7,)), (2, 6, 2, 3)),
    (lambda: RepMLPBlock(6, (2, 3), sharesets=3, kernels=()), (1, 6, 4, 3)),
    (lambda: RepMLPBlock(3, (1, 1), sharesets=1), (2, 3, 1, 4)),
]
GROUPED = [
    (lambda: RepMLP(4, (6, 6), (3, 3), groups=2, kernels=(1, 3)), (2, 4, 6, 6)),
    (lambda: RepMLP(4, (6, 8), (3, 2), groups=1, reduction=4), (2, 4, 6, 8)),
    (lambda: RepMLP(6, (4, 4), (4, 4), out_channels=3, groups=3), (2, 6, 4, 4)),
    (lambda: RepMLP(4, (4, 2), (2, 2), out_channels=8, groups=4, kernels=()), (1, 4, 4, 2)),
    (lambda: RepMLP(2, (5, 5), (5, 5), groups=2, kernels=(7, 1)), (2, 2, 5, 5)),
]
CASES = SHARED + GROUPED


def shaken(build: Build, *, seed: int = 0) -> nn.Module:
    """A module with random norms and weights that are not small, in evaluation mode."""
    torch.manual_seed(seed)
    module = build().eval()
    for part in module.modules():
        if isinstance(part, BatchNorm):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return module


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def deviation(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(("build", "shape"), CASES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_merged_equals_unmerged(build, shape, dtype, bound):
    block = shaken(build).to(dtype)
    x = randn(*shape, dtype=dtype)
    before = {name: value.clone() for name, value in block.state_dict().items()}
    merged = block.merge()
    assert deviation(merged(x), block(x)) < bound
    assert merged.merge_error is not None
    assert merged.merge_error < bound
    assert all(torch.equal(value, block.state_dict()[name]) for name, value in before.items())
    assert not any(isinstance(part, BatchNorm | nn.Conv2d) for part in merged.modules())


@pytest.mark.parametrize(("build", "shape"), CASES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_and_after_some_steps_of_training(build, shape, dtype, bound):
    block = shaken(build).to(dtype).train()
    optimizer = torch.optim.SGD(block.parameters(), lr=0.05)
    # Enough rows that statistics exist at every place.
    for step in range(4):
        optimizer.zero_grad()
        block(randn(8, *shape[1:], seed=step, dtype=dtype)).square().mean().backward()
        optimizer.step()
    x = randn(*shape, seed=9, dtype=dtype)
    assert deviation(block.eval().merge()(x), block(x)) < bound


@pytest.mark.parametrize(("build", "shape"), [SHARED[0], GROUPED[0]])
def test_merging_is_refused_where_it_makes_no_sense(build, shape):
    block = build()
    with pytest.raises(ValueError, match=r"eval\(\)"):
        block.train().merge()
    with pytest.raises(ValueError, match="merged already"):
        block.eval().merge().merge()


def test_the_matrix_of_a_convolution_is_the_convolution():
    for groups, cin, cout, k, h, w in [(1, 2, 3, 3, 4, 5), (2, 4, 6, 5, 3, 3), (4, 4, 4, 7, 2, 6)]:
        kernel = randn(cout, cin // groups, k, k, dtype=torch.float64)
        x = randn(2, cin, h, w, dtype=torch.float64)
        matrix = convolution_matrix(kernel, (h, w), groups).unflatten(0, (groups, -1))
        y = torch.einsum("goi,bgi->bgo", matrix, x.flatten(1).unflatten(1, (groups, -1))).reshape(2, cout, h, w)
        torch.testing.assert_close(y, F.conv2d(x, kernel, padding=k // 2, groups=groups))


def test_partitions_are_cut_row_by_row():
    x = torch.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)
    parts = to_partitions(x, (2, 3))
    assert torch.equal(parts[1, 1, 0], x[1, :, 2:4, 0:3])
    assert torch.equal(from_partitions(parts), x)


def test_channel_c_uses_map_c_mod_s_on_its_own_partition():
    """Each partition and channel by itself, through its map."""
    block = shaken(lambda: RepMLPBlock(6, (2, 3), sharesets=2, kernels=())).double()
    x = randn(2, 6, 4, 9, dtype=torch.float64)
    maps = block.weight.reshape(2, 6, 6)
    norm = block.norm
    expected = torch.empty_like(x)
    for c in range(6):
        for i in range(2):
            for j in range(3):
                part = x[:, c, 2 * i : 2 * i + 2, 3 * j : 3 * j + 3].reshape(2, 6)
                y = part @ maps[c % 2].T
                s = c % 2
                y = (y - norm.running_mean[s]) / (norm.running_var[s] + norm.eps).sqrt() * norm.weight[s]
                expected[:, c, 2 * i : 2 * i + 2, 3 * j : 3 * j + 3] = (y + norm.bias[s]).reshape(2, 2, 3)
    gate = torch.sigmoid(block.excite(torch.relu(block.squeeze(x.mean((2, 3))))))
    torch.testing.assert_close(block(x), expected * gate[:, :, None, None])


def test_the_slip_of_the_original_is_an_option_and_differs():
    """With one partition, or one map a channel, there is no difference."""
    x = randn(2, 8, 8, 8)
    for sharesets, shape, same in [(2, (8, 8), False), (2, (4, 4), True), (8, (8, 8), True)]:
        right, slip = (
            shaken(lambda s=sharesets, i=i: RepMLPBlock(8, (4, 4), sharesets=s, interchanged=i))
            for i in (False, True)
        )
        y, z = (m(x[:, :, : shape[0], : shape[1]]) for m in (right, slip))
        assert torch.allclose(y, z) == same
    # A partition of its own is not touched by what stands in another, but for the gate; with the slip it is.
    right, slip = (shaken(lambda i=i: RepMLPBlock(8, (4, 4), sharesets=2, interchanged=i)) for i in (False, True))
    moved = x.clone()
    moved[:, :, 4:, 4:] = x[:, :, 4:, 4:].roll(1, -1)  # same mean, so same gate
    assert torch.allclose(right(moved)[:, :, :4, :4], right(x)[:, :, :4, :4], atol=1e-6)
    assert not torch.allclose(slip(moved)[:, :, :4, :4], slip(x)[:, :, :4, :4], atol=1e-3)


def test_resizing_interpolates_the_map_and_keeps_the_rest():
    block = shaken(lambda: RepMLPBlock(4, (4, 4), sharesets=2, kernels=()))
    same = block.resize((4, 4))
    x = randn(1, 4, 4, 4)
    torch.testing.assert_close(same(x), block(x))
    larger = block.resize((6, 8))
    assert larger(randn(1, 4, 6, 8)).shape == (1, 4, 6, 8)
    # A constant map is constant on every grid, so the output is the interpolated one.
    flat = torch.ones(1, 4, 1, 1) * torch.tensor([1.0, -2.0, 0.5, 3.0])[:, None, None]
    expected = F.interpolate(block(flat.expand(1, 4, 4, 4)), (6, 8), mode="bilinear")
    torch.testing.assert_close(larger(flat.expand(1, 4, 6, 8)), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="resize first"):
        block.merge().resize((2, 2))


def tiny_net(**options: object) -> RepMLPNet:
    return RepMLPNet(
        5, channels=(4, 8), blocks=(1, 2), partitions=(4, 2), sharesets=(1, 2), **options,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_merged_network_is_the_network(dtype):
    net = shaken(tiny_net).to(dtype)
    x = randn(3, 3, 16, 32, dtype=dtype)
    merged = net.merge()
    assert deviation(merged(x), net(x)) < (1e-5 if dtype == torch.float32 else 1e-10)
    with pytest.raises(ValueError, match="merged already"):
        merged.merge()
    fresh = tiny_net(merged=True).to(dtype).eval()
    fresh.load_state_dict(merged.state_dict())
    assert torch.equal(fresh(x), merged(x))
    with pytest.raises(ValueError, match="multiples of 16"):
        net(x[:, :, :, :24])


@pytest.mark.parametrize(
    ("build", "shape"), [SHARED[1], GROUPED[0], (lambda: tiny_net(), (2, 3, 16, 16))], ids=["2022", "2021", "net"]
)
def test_the_merged_form_is_exported(build, shape):
    merged = shaken(build).merge()
    x = randn(*shape)
    program = torch.export.export(merged, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    session = onnx_session(program)
    for batch in (1, 5):
        x = randn(batch, *shape[1:], seed=batch)
        torch.testing.assert_close(program.module()(x), merged(x))
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), merged(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: RepMLPBlock(8, (4, 4), sharesets=3), "3 sharesets do not divide 8"),
        (lambda: RepMLPBlock(8, (4, 4), kernels=(2,)), "odd"),
        (lambda: RepMLPBlock(8, (4, 4), kernels=(3, 3)), "different"),
        (lambda: RepMLPBlock(8, (4, 0)), "positive"),
        (lambda: RepMLPBlock(8, (4, 4))(torch.zeros(1, 8, 6, 4)), "multiple of 4"),
        (lambda: RepMLP(8, (6, 6), (4, 4)), "do not tile"),
        (lambda: RepMLP(8, (4, 4), (4, 4), groups=3), "3 groups"),
        (lambda: RepMLP(8, (4, 4), (4, 4))(torch.zeros(1, 8, 8, 4)), "size is fixed"),
        (lambda: RepMLPNet(channels=(8, 16)), "one number a stage"),
    ],
)
def test_bad_input_is_one_clear_error(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


def test_one_sample_and_dead_input_train_without_nan():
    for build, shape in (SHARED[0], GROUPED[0], (tiny_net, (1, 3, 16, 16))):
        module = build().train()
        for x in (torch.zeros(1, *shape[1:]), torch.full((1, *shape[1:]), 1e3), randn(1, *shape[1:])):
            x = x.requires_grad_()
            module(x).sum().backward()
            assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    ("build", "shape"), [SHARED[1], SHARED[2], GROUPED[0], (tiny_net, (3, 3, 16, 16))],
    ids=["2022", "interchanged", "2021", "net"],
)  # fmt: skip
def test_layouts_batches_repeats_autocast_and_compile(build, shape, merged):
    module = shaken(build, seed=3)  # no dead ReLU in the gates, some of which have one or two units
    if merged:
        module = module.merge()
    x = randn(3, *shape[1:])
    state = torch.get_rng_state()
    with torch.no_grad():
        y = module(x)
        assert torch.equal(module(x), y)
        for other in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
            torch.testing.assert_close(module(other), y, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(module(x[1:2]), y[1:2], atol=1e-4, rtol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            half = module(x).float()
        assert (half - y).norm() < 0.05 * y.norm()
        for extreme in (0 * x, torch.ones_like(x), 1e4 * x):
            assert torch.isfinite(module(extreme)).all()
        torch.compiler.reset()
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), y)
    assert torch.equal(torch.get_rng_state(), state)
    module(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


def test_repmlpnet_verbs():
    net, x = shaken(tiny_net), randn(2, 3, 16, 16)
    features = net.forward_features(x)
    assert features.shape == (2, 8, 2, 2)
    torch.testing.assert_close(net.forward_head(features), net(x))
    torch.testing.assert_close(net.forward_head(features, pre_logits=True), features.mean((2, 3)))
    assert net.get_classifier() is net.head
    net.reset_classifier(0)
    torch.testing.assert_close(net(x), features.mean((2, 3)))
    net.reset_classifier(3)
    assert net(x).shape == (2, 3)
    assert all(p.ndim > 1 for name, p in net.named_parameters() if name not in net.no_weight_decay())


def test_checkpointing_moves_the_statistics_once():
    one, two = tiny_net().train(), tiny_net().train()
    two.load_state_dict(one.state_dict())
    two.set_grad_checkpointing()
    x = randn(4, 3, 16, 16)
    for net in (one, two):
        net(x).square().sum().backward()
    for (name, a), (_, b) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
