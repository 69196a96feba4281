# SPDX-License-Identifier: Apache-2.0
"""oneDNN's kernels called directly: the same numbers as the plain operations, and only where they serve."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from widefield.core.fused import convolve, convolve_gelu, lay_channels_last, serves
from widefield.core.pointwise import Pointwise
from widefield.models.spectral.blocks import ROWS, Block
from widefield.models.spectral.mst import SpectralAttention


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
