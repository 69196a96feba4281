# SPDX-License-Identifier: Apache-2.0
"""Non-local blocks against the formulas of the paper, written out in numpy with the n x m map."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import widefield
from widefield.attention import NonLocalBase, NonLocalConcat, dot_product, relu_sum
from widefield.attention.non_local import sampled_positions, sub_sample
from widefield.core import Context

NAMES = ["nonlocal", "nonlocal-gaussian", "nonlocal-dot", "nonlocal-concat"]
SPACES = [(1, 1), (1, 9), (3, 5), (7,), (2, 4, 3)]


def build(name: str, channels: int = 6, seed: int = 0, **options: Any) -> Context:
    torch.manual_seed(seed)
    module = widefield.create(name, channels, **options).double().eval()
    assert isinstance(module, Context)
    module.open_gate_(0.8)
    return module


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pooled(x: np.ndarray) -> np.ndarray:
    """2 x max-pooling of the last two axes (the only axis in 1-D), by strided views."""
    axes = range(2, x.ndim) if x.ndim < 5 else range(3, 5)
    for axis in axes:
        size = x.shape[axis]
        if size > 1:
            even = np.take(x, np.arange(0, size - 1, 2), axis)
            x = np.maximum(even, np.take(x, np.arange(1, size, 2)[: even.shape[axis]], axis))
    return x


def written_out(module: NonLocalBase, name: str, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The context `(b, e, n)` and the weights `(b, n, m)`."""
    parameters = {key: value.detach().numpy() for key, value in module.state_dict().items()}
    a = x.numpy()

    def conv(part: str, z: np.ndarray) -> np.ndarray:
        y = np.einsum("oc,bc...->bo...", parameters[f"{part}.weight"], z)
        bias = parameters.get(f"{part}.bias")
        return y if bias is None else y + bias.reshape(1, -1, *[1] * (z.ndim - 2))

    def keys(z: np.ndarray) -> np.ndarray:
        z = pooled(z) if module.sub_sample else z
        return z.reshape(*z.shape[:2], -1)

    def flat(z: np.ndarray) -> np.ndarray:
        return z.reshape(*z.shape[:2], -1)

    values = keys(conv("value", a))
    if name == "nonlocal-gaussian":
        queries, matched = flat(a), keys(a)
    else:
        queries = flat(conv("query", a))
        matched = keys(conv("key" if "key.weight" in parameters else "query", a))
    if name == "nonlocal-concat":
        n, m = queries.shape[-1], matched.shape[-1]
        both = np.concatenate(
            [np.repeat(queries[..., None], m, -1), np.repeat(matched[:, :, None], n, -2)], 1
        )  # (b, 2d, n, m)
        weights = np.maximum(np.einsum("c,bcnm->bnm", parameters["pair.weight"][0], both), 0) / m
    else:
        logits = np.einsum("bdn,bdm->bnm", queries, matched) * getattr(module, "scale", 1.0)
        weights = logits / logits.shape[-1] if name == "nonlocal-dot" else softmax(logits, -1)
    return np.einsum("bnm,bem->ben", weights, values), weights


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("sub", [False, True])
def test_context_and_operator(name: str, space: tuple[int, ...], sub: bool) -> None:
    module = build(name, sub_sample=sub)
    assert isinstance(module, NonLocalBase)
    x = draw(2, 6, *space)
    context, weights = written_out(module, name, x)
    np.testing.assert_allclose(module.context(x).flatten(2).detach().numpy(), context, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(module.operator(x).detach().numpy(), weights, rtol=1e-10, atol=1e-12)
    n = int(np.prod(space))
    rows = torch.tensor([n - 1, 0])
    np.testing.assert_allclose(module.operator(x, rows).detach().numpy(), weights[:, rows], rtol=1e-10, atol=1e-12)
    if name in ("nonlocal", "nonlocal-gaussian"):
        np.testing.assert_allclose(module.operator(x).sum(-1).detach().numpy(), 1.0)


def test_output_is_residual_norm_and_projection() -> None:
    module = build("nonlocal")
    assert isinstance(module, NonLocalBase)
    x = draw(2, 6, 3, 5)
    project = module.out.project
    y = torch.einsum("oc,bchw->bohw", project.weight, module.context(x)) + project.bias[:, None, None]  # type: ignore[index]
    y = 0.8 * y / (1 + 1e-5) ** 0.5  # running mean 0 and variance 1, gate 0.8
    torch.testing.assert_close(module(x), x + y)


@pytest.mark.parametrize("option", ["shared_query_key", "no_bias", "inner", "no_norm", "scale"])
def test_options(option: str) -> None:
    options: dict[str, Any] = {
        "shared_query_key": {"shared_query_key": True},
        "no_bias": {"bias": False, "project_bias": False},
        "inner": {"inner": 2},
        "no_norm": {"norm": "none"},
        "scale": {"scale": False},
    }[option]
    module = build("nonlocal", **options)
    assert isinstance(module, NonLocalBase)
    x = draw(1, 6, 4, 3)
    context, _ = written_out(module, "nonlocal", x)
    np.testing.assert_allclose(module.context(x).flatten(2).detach().numpy(), context, rtol=1e-10)
    assert not torch.allclose(module(x), x)


def test_bare_is_softmax_of_the_gram_matrix() -> None:
    module = build("nonlocal-bare")
    x = draw(2, 6, 3, 5)
    a = x.numpy().reshape(2, 6, -1)
    weights = softmax(np.einsum("bci,bcj->bij", a, a), -1)
    expected = a + np.einsum("bij,bcj->bci", weights, a)
    np.testing.assert_allclose(module(x).numpy().reshape(2, 6, -1), expected)
    np.testing.assert_allclose(module.operator(x).numpy(), weights)
    assert not list(module.parameters())


@pytest.mark.parametrize("name", [*NAMES, "nonlocal-bare"])
def test_gradcheck(name: str) -> None:
    module = build(name, channels=4).train()
    x = draw(2, 4, 3, 3).requires_grad_()
    parameters = list(module.parameters())

    def forward(x: Tensor, *_: Tensor) -> Tensor:
        return module(x)

    assert torch.autograd.gradcheck(forward, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", ["nonlocal-dot", "nonlocal-concat"])
def test_second_derivatives(name: str) -> None:
    module = build(name, channels=4)
    assert torch.autograd.gradgradcheck(module, draw(1, 4, 2, 3).requires_grad_())


@pytest.mark.parametrize("name", [*NAMES, "nonlocal-bare"])
def test_batch_layout_and_zeros(name: str) -> None:
    module = build(name).float()
    x = draw(3, 6, 5, 4).float()
    y = module(x)
    torch.testing.assert_close(module(x[1:2]), y[1:2], atol=1e-5, rtol=0)
    last = module(x.to(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, y, atol=1e-5, rtol=0)
    zeros = torch.zeros(2, 6, 5, 4, requires_grad=True)
    module.train()(zeros).sum().backward()
    assert zeros.grad is not None
    assert torch.isfinite(zeros.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_closed_gate_is_identity_until_opened(name: str) -> None:
    x = draw(2, 6, 3, 3).float()
    for norm in ("batch", "none"):
        module = widefield.create(name, 6, norm=norm)
        assert isinstance(module, Context)
        assert torch.equal(module(x), x)
        assert module.context(x).abs().max() > 0
        assert module.open_gate_()
        assert not torch.equal(module(x), x)
        opened = widefield.create(name, 6, norm=norm, gate=1.0)
        assert not torch.equal(opened(x), x)


def test_opening_keeps_a_trained_projection() -> None:
    module = widefield.create("nonlocal", 6, norm="none", gate=1.0)
    assert isinstance(module, NonLocalBase)
    before = module.out.project.weight.clone()
    module.open_gate_(1.0)
    assert torch.equal(module.out.project.weight, before)


@pytest.mark.parametrize("name", [*NAMES, "nonlocal-bare"])
@pytest.mark.parametrize("space", [(3, 4), (46, 47), (5,), (2, 3, 5)])
def test_cost_is_what_is_counted(name: str, space: tuple[int, ...]) -> None:
    for sub in (False, True) if name != "nonlocal-bare" else (False,):
        module = widefield.create(name, 8, **({"sub_sample": True} if sub else {})).eval()
        assert isinstance(module, Context)
        shape = (2, 8, *space)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.zeros(shape))
        cost = module.cost(shape)
        assert counter.get_total_flops() == 2 * cost.multiply_adds
        assert cost.parameters == sum(p.numel() for p in module.parameters())


def test_sub_sampling_keeps_time_and_axes_of_one() -> None:
    for space, expected in {(1, 9): 4, (5, 5): 4, (3, 4, 6): 18, (7,): 3, (1, 1): 1}.items():
        assert sampled_positions(space) == expected
        assert sub_sample(torch.zeros(1, 2, int(np.prod(space))), space).shape[-1] == expected


@pytest.mark.parametrize(("n", "m", "d"), [(3, 2, 8), (40, 30, 4)])
def test_dot_product_in_both_orders(n: int, m: int, d: int) -> None:
    q, k, v = draw(2, d, n), draw(2, d, m, seed=2), draw(2, d, m, seed=3)
    expected = np.einsum("bdn,bdm,bem->ben", q.numpy(), k.numpy(), v.numpy()) / m
    np.testing.assert_allclose(dot_product(q, k, v).numpy(), expected)


def test_relu_sum_equals_the_map() -> None:
    a, b, v = draw(2, 9), draw(2, 11, seed=2) + 0.3, draw(2, 3, 11, seed=3)
    a[0, 0], b[0, 0] = -0.5, 0.5  # exactly at the kink
    b[1] = b[1, 0]  # ties
    weights = np.maximum(a.numpy()[:, :, None] + b.numpy()[:, None], 0) / 11
    np.testing.assert_allclose(
        relu_sum(a, b, v).numpy(), np.einsum("bnm,bem->ben", weights, v.numpy()), atol=1e-14
    )
    for far, value in ((-9.0, 0.0), (9.0, None)):  # no key passes; every key passes
        y = relu_sum(torch.full_like(a, far), b, v)
        expected = torch.zeros(()) if value == 0.0 else ((far + b)[:, None] * v).mean(-1, keepdim=True)
        torch.testing.assert_close(y, expected.to(y.dtype).expand_as(y))


def test_relu_sum_in_float32_with_large_opposite_scores() -> None:
    a, b, v = draw(1, 300), draw(1, 400, seed=2), draw(1, 3, 400, seed=3)
    a, b = (a + 1000).float(), (b - 1000).float()
    exact = torch.relu(a.double()[:, :, None] + b.double()[:, None]) @ v.mT / 400
    assert (relu_sum(a, b, v.float()).double() - exact.mT).abs().max() < 1e-5 * exact.abs().max()


def test_linear_blocks_hold_no_map() -> None:
    """64 x 64 positions: the map has 2^24 numbers, nothing may come near."""
    x = torch.zeros(1, 4, 64, 64, device="meta")
    for name in ("nonlocal-dot", "nonlocal-concat"):
        module = widefield.create(name, 4).to("meta")
        with FlopCounterMode(display=False):
            assert module(x).shape == x.shape
    module = build("nonlocal-concat", channels=4).float()
    assert isinstance(module, NonLocalConcat)
    big = draw(1, 4, 64, 64).float()
    rows = torch.tensor([0, 100, 4095])
    context = module.context(big).flatten(2)[..., rows]
    direct = module.operator(big, rows) @ module.value(big.flatten(2)).mT
    torch.testing.assert_close(context, direct.mT, atol=1e-5, rtol=1e-4)


def test_compiled_and_exported_graphs_serve_other_sizes() -> None:
    dynamic = torch.export.Dim.DYNAMIC
    for name, sub in itertools.product(NAMES, (False, True)):
        module = build(name, sub_sample=sub).float()
        program = torch.export.export(
            module, (draw(2, 6, 12, 8).float(),), dynamic_shapes=({0: dynamic, 2: dynamic, 3: dynamic},)
        )
        other = draw(3, 6, 7, 10).float()
        torch.testing.assert_close(program.module()(other), module(other), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"inner": 0}, ValueError, "inner"),
        ({"norm": "bach"}, KeyError, "batch"),
        ({"iner": 3}, TypeError, "inner"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        widefield.create("nonlocal", 6, **options)
