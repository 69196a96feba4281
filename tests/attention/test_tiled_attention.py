# SPDX-License-Identifier: Apache-2.0
"""Attention without the map: values against numpy, gradients against finite differences, no n x m tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from widefield.attention import attention, attention_matrix, sdpa, tiles

Three = tuple[Tensor, Tensor, Tensor]


def qkv(*batch: int, d: int, e: int, n: int, m: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Three:
    generator = torch.Generator().manual_seed(seed)

    def draw(width: int, length: int) -> Tensor:
        return torch.randn(*batch, width, length, generator=generator, dtype=dtype).requires_grad_()

    return draw(d, n), draw(d, m), draw(e, m)


def oracle(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> np.ndarray:
    logits = np.einsum("...dn,...dm->...nm", q.detach().double().numpy(), k.detach().double().numpy()) * scale
    return np.einsum("...nm,...em->...en", softmax(logits, -1), v.detach().double().numpy())


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 queries, used for every size."""
    monkeypatch.setattr(tiles, "TILE_ROWS", 4)
    monkeypatch.setattr(sdpa, "WRITTEN_OUT_NUMBERS", 0)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_value(batch: tuple[int, ...], tiled: bool, request: pytest.FixtureRequest) -> None:
    if tiled:
        request.getfixturevalue("small_tiles")
    q, k, v = qkv(*batch, d=3, e=5, n=10, m=7)
    found = attention(q, k, v, scale=0.7)
    assert found.shape == (*batch, 5, 10)
    np.testing.assert_allclose(found.detach().numpy(), oracle(q, k, v, 0.7), rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("small_tiles")
def test_derivatives_in_tiles() -> None:
    q, k, v = qkv(2, d=3, e=2, n=10, m=7)
    assert torch.autograd.gradcheck(attention, (q, k, v), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(attention, (q, k, v))


@pytest.mark.usefixtures("small_tiles")
def test_functional_transforms() -> None:
    q, k, v = qkv(1, d=3, e=2, n=9, m=7)
    cotangent = torch.ones(1, 2, 9, dtype=torch.float64)
    _, pull = torch.func.vjp(attention, q, k, v)
    expected = torch.autograd.grad(attention(q, k, v), (q, k, v), cotangent)
    for found, right in zip(pull(cotangent), expected, strict=True):
        torch.testing.assert_close(found, right)
    _, push = torch.func.jvp(attention, (q, k, v), (q, k, v))
    step = 1e-6
    moved = [attention(*(x * (1 + s) for x in (q, k, v))) for s in (step, -step)]
    torch.testing.assert_close(push, (moved[0] - moved[1]) / (2 * step), rtol=1e-6, atol=1e-8)


def test_large_map_takes_tiles_and_agrees_with_float64() -> None:
    q, k, v = qkv(1, d=8, e=4, n=2100, m=2050, dtype=torch.float32)
    found = attention(q, k, v)
    np.testing.assert_allclose(found.detach().numpy(), oracle(q, k, v), atol=1e-5)
    found.square().sum().backward()
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    tiles.written_out(*wide).square().sum().backward()
    for x, w in zip((q, k, v), wide, strict=True):
        assert x.grad is not None
        assert w.grad is not None
        assert (x.grad - w.grad).abs().max() < 1e-5 * w.grad.abs().max()


class Largest(TorchDispatchMode):
    """The largest tensor that any operator returns."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


def test_no_tensor_of_the_maps_size() -> None:
    q, k, v = qkv(1, d=4, e=4, n=4096, m=4096, dtype=torch.float32)
    with Largest() as largest:
        attention(q, k, v).sum().backward()
    assert largest.numbers <= tiles.TILE_ROWS * 4096  # a sixteenth of the map


def test_logits_beyond_the_range_of_exp() -> None:
    q, k, v = qkv(1, d=2, e=2, n=2100, m=2100, dtype=torch.float32)
    hot = attention(q * 300, k * 300, v)
    assert torch.isfinite(hot).all()
    rows = torch.arange(0, 2100, 300)
    expected = attention_matrix(q * 300, k * 300, rows=rows) @ v.mT
    torch.testing.assert_close(hot[..., rows], expected.mT, rtol=1e-3, atol=1e-3)


def test_half_precision_input_computes_in_float32() -> None:
    q, k, v = (x.detach().half() for x in qkv(1, d=64, e=4, n=20, m=20, dtype=torch.float32))
    found = attention(q * 30, k * 30, v)  # logits of about 7000 in float16 steps of 4
    assert found.dtype == torch.float16
    np.testing.assert_allclose(found.numpy(), oracle(q * 30, k * 30, v), atol=2e-3)


def test_matrix_rows_sum_to_one_and_can_be_chosen() -> None:
    q, k, _ = qkv(2, d=3, e=1, n=10, m=7)
    full = attention_matrix(q, k, scale=0.5)
    torch.testing.assert_close(full.sum(-1), torch.ones(2, 10, dtype=torch.float64))
    rows = torch.tensor([7, 0])
    torch.testing.assert_close(attention_matrix(q, k, rows=rows, scale=0.5), full[:, rows])


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_fused_path_of_accelerators_and_graphs(batch: tuple[int, ...]) -> None:
    q, k, v = qkv(*batch, d=3, e=5, n=10, m=7)
    np.testing.assert_allclose(sdpa._fused(q, k, v).detach().numpy(), oracle(q, k, v), atol=1e-13)
    padded = [sdpa._padded(x) for x in (q, k, v)]
    assert all(x.shape[-2] == 8 for x in padded)
    found = sdpa._fused(*padded)
    np.testing.assert_allclose(found[..., :5, :].detach().numpy(), oracle(q, k, v), atol=1e-13)


@pytest.mark.parametrize(("n", "m"), [(6, 5), (2100, 2049)])
def test_products_are_counted_exactly(n: int, m: int) -> None:
    q, k, v = (x.detach() for x in qkv(1, d=6, e=4, n=n, m=m, dtype=torch.float32))
    with FlopCounterMode(display=False) as counter:
        attention(q, k, v)
    assert counter.get_total_flops() == 2 * n * m * (6 + 4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 3, 4), (1, 2, 4), (1, 3, 4)), "as wide as"),
        (((1, 3, 4), (1, 3, 5), (1, 3, 4)), "as many values"),
        (((1, 3, 4), (2, 3, 4), (2, 3, 4)), "same batch"),
        (((3, 4), (3, 4), (3, 4)), r"\(b, d, n\)"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention(*(torch.zeros(shape) for shape in shapes))
