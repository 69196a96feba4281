# SPDX-License-Identifier: Apache-2.0
"""oneDNN's kernels called directly: the same numbers as the plain operations, and only where they serve."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from widefield.core.fused import add_to, convolve, convolve_gelu, lay_channels_last, multiply_to, serves
from widefield.core.pointwise import Pointwise
from widefield.models.spectral.blocks import ROWS, Block
from widefield.models.spectral.mst import MST, SpectralAttention, channel_crop, spectral_attention


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def x() -> Tensor:
    return lay_channels_last(rand(2, 6, 9, 7))


def test_channels_last_is_what_torch_calls_so(x: Tensor) -> None:
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, rand(2, 6, 9, 7))
    assert lay_channels_last(x).data_ptr() == x.data_ptr()


def test_it_serves_narrow_maps_without_gradients_only(x: Tensor) -> None:
    assert not serves(x)
    with torch.no_grad():
        assert serves(x)
        assert not serves(x.contiguous())
        assert not serves(x.double())
        assert not serves(x[:, :, ::2])
        assert not serves(x.to("meta"))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not serves(x)
        with torch.backends.mkldnn.flags(enabled=False):
            assert not serves(x)


@pytest.mark.parametrize(("groups", "size"), [(1, 1), (1, 3), (6, 3), (2, 1)])
@pytest.mark.parametrize("gelu", [False, True])
def test_it_is_the_convolution(x: Tensor, groups: int, size: int, gelu: bool) -> None:
    weight, bias = rand(12, 6 // groups, size, size), rand(12)
    expected = F.conv2d(x.double(), weight.double(), bias.double(), padding=size // 2, groups=groups)
    expected = F.gelu(expected) if gelu else expected
    with torch.no_grad():
        y = convolve(x, weight, bias, padding=size // 2, gelu=gelu)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


def test_with_and_without_gradients_a_convolution_with_gelu_is_the_same(x: Tensor) -> None:
    weight = rand(6, 1, 3, 3).requires_grad_()
    expected = convolve_gelu(x, weight, padding=1)
    assert expected.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(convolve_gelu(x, weight, padding=1), expected, rtol=1e-5, atol=1e-6)


def test_several_inputs_are_taken_as_if_concatenated(x: Tensor) -> None:
    projection, other = Pointwise(10, 5), rand(2, 4, 9, 7)
    expected = projection(torch.cat([x, other], 1))
    with torch.no_grad():
        for more in (other, lay_channels_last(other)):
            torch.testing.assert_close(projection(x, more), expected, rtol=1e-5, atol=1e-6)


def test_vmap_and_counters_see_the_plain_operations(x: Tensor) -> None:
    projection = Pointwise(6, 5)
    with torch.no_grad():
        stacked = torch.vmap(lambda t: projection(lay_channels_last(t)))(x[:, None])
        with FlopCounterMode(display=False) as counter:
            y = projection(x)
    torch.testing.assert_close(stacked[:, 0], y, rtol=1e-5, atol=1e-6)
    assert counter.get_total_flops() == 2 * 6 * 5 * x[:, 0].numel()


@pytest.mark.parametrize("height", [1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS + 1])
@pytest.mark.parametrize("batch", [1, 2])
def test_strips_meet_without_a_seam(height: int, batch: int) -> None:
    torch.manual_seed(0)
    block = Block(8, SpectralAttention(8, 2), first_norm=True).eval()
    x = lay_channels_last(rand(batch, 8, height, 5))
    expected = block(x)
    with torch.no_grad():
        torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)


def test_one_sample_is_served_whatever_its_unused_step(x: Tensor) -> None:
    odd = x[:1].as_strided((1, 6, 9, 7), (1, *x.stride()[1:]))
    weight = rand(6, 6, 1, 1)
    with torch.no_grad():
        assert serves(odd)
        y = convolve(odd, weight)
        assert serves(y)
    torch.testing.assert_close(y, F.conv2d(x[:1], weight), rtol=1e-5, atol=1e-5)


def test_sums_and_products_go_into_the_first_only_where_they_may(x: Tensor) -> None:
    other = lay_channels_last(rand(2, 6, 9, 7) + 1)
    for into, expected in ((add_to, x + other), (multiply_to, x * other)):
        own = x.clone(memory_format=torch.preserve_format)
        assert torch.equal(into(own, other), expected)
        assert torch.equal(own, x)
        with torch.no_grad():
            y = into(own, other)
        assert y.data_ptr() == own.data_ptr()
        assert torch.equal(y, expected)
        with torch.no_grad():
            wide = into(x, other.double())
        assert wide.dtype == torch.float64
    assert torch.equal(x, rand(2, 6, 9, 7))


@pytest.mark.parametrize("step", [0, 0.125, 0.25, 0.3, 0.5, 0.75, 1, 1.5, 2, 3])
@pytest.mark.parametrize("width", [4, 20])
def test_channels_are_cropped_alike_by_strides_and_by_indices(step: float, width: int) -> None:
    x = lay_channels_last(rand(2, 8, 3, 20))
    expected = torch.stack([
        x[:, i][..., [min(int(i * step) + j, 19) for j in range(width)]] for i in range(8)
    ], 1)  # fmt: skip
    assert torch.equal(channel_crop(x, width, step), expected)
    with torch.no_grad():
        assert torch.equal(channel_crop(x, width, step), expected)


def test_attention_of_channels_without_direction_or_out_of_range() -> None:
    q, k, v = (rand(1, 2, 3, 50).double() for _ in range(3))
    temperature = rand(2, 1, 1).double()
    directions = [t / t.norm(dim=-1, keepdim=True) for t in (k, q)]
    expected = (directions[0] @ directions[1].mT * temperature).softmax(-1) @ v
    torch.testing.assert_close(spectral_attention(q, k, v, temperature), expected)
    # A dead channel is alike to all.
    q[0, 0, 1] = 0
    flat = (directions[0] @ (q / q.norm(dim=-1, keepdim=True).clamp(min=1e-30)).mT * temperature).softmax(-1) @ v
    torch.testing.assert_close(spectral_attention(q, k, v, temperature), flat)
    large = [(t.float() * 1e25).requires_grad_() for t in (q, k)]
    y = spectral_attention(*large, v.float(), temperature.float())
    y.sum().backward()
    assert y.isfinite().all()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in large)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_network_leaves_measurement_and_mask_as_they_were(channels_last: bool) -> None:
    torch.manual_seed(0)
    network = MST(8, 2, blocks=(1, 1)).eval()
    y, phi = rand(1, 16, 30), rand(1, 8, 16, 30).abs()
    phi = lay_channels_last(phi) if channels_last else phi
    before = y.clone(), phi.clone()
    expected = network(y, phi)
    with torch.no_grad():
        torch.testing.assert_close(network(y, phi), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(y, before[0])
    assert torch.equal(phi, before[1])
