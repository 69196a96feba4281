# SPDX-License-Identifier: Apache-2.0
"""TSA's three attentions written out, its fixed smoothness, and scenes of sizes it was not built for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from widefield.models.spectral.tsa_block import TSABlock, fit, smoothness
from widefield.models.spectral.tsa_net import Res2Net, TSANet
from widefield.weights import reference_names


def block(**options: object) -> TSABlock:
    torch.manual_seed(0)
    given = {"heads": 2, "size": (16, 20), "features": (5, 3), **options}
    return TSABlock(6, 4, **given).double().eval()  # type: ignore[arg-type]


def test_rows_columns_and_bands_one_after_the_other() -> None:
    module = block()
    x = torch.randn(2, 4, 16, 20, dtype=torch.float64)
    rows, columns, bands = module.maps(x)
    assert (rows.shape, columns.shape, bands.shape) == ((2, 2, 16, 16), (2, 2, 20, 20), (2, 2, 4, 4))
    heads = module.value(x).unflatten(1, (2, 4))
    mixed = torch.einsum("bgij,bgkl,bgcd,bgdjl->bgcik", rows, columns, bands, heads).flatten(1, 2)
    aggregated = torch.einsum("oc,bcij->boij", module.aggregate.weight, mixed)
    assert module.aggregate.bias is not None
    torch.testing.assert_close(module.mix(x), x + aggregated + module.aggregate.bias[:, None, None])


@pytest.mark.parametrize("halve", [(0, 0), (1, 0), (1, 1)])
def test_attention_maps_are_stochastic(halve: tuple[int, int]) -> None:
    module = block(halve=halve)
    x = torch.randn(2, 4, 17, 23, dtype=torch.float64)
    scale = 2 ** sum(halve)
    rows, columns, bands = module.maps(x)
    assert (rows.shape[-1], columns.shape[-1]) == (math.ceil(17 / scale), math.ceil(23 / scale))
    for weights in (rows, columns, bands):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert module.mix(x).shape == x.shape


def test_smoothness() -> None:
    """Itself fully, the farthest not at all, in between a cosine; added to the softmax, over sqrt(1.1)."""
    table = smoothness(5)
    expected = [[(1 + math.cos(math.pi * (i - j) / 4)) / 2 for j in range(5)] for i in range(5)]
    torch.testing.assert_close(table, torch.tensor(expected))
    assert smoothness(1).item() == 1
    x = torch.randn(1, 4, 16, 20, dtype=torch.float64)
    plain, smooth = block().maps(x)[2], block(smooth=True).maps(x)[2]
    torch.testing.assert_close(smooth, (plain + smoothness(4).double()) / math.sqrt(1.1), rtol=1e-6, atol=1e-6)


def test_the_size_it_is_built_for_is_not_resampled() -> None:
    x = torch.randn(1, 2, 3, 8)
    assert fit(x, 8, -1) is x


@given(st.integers(1, 12), st.integers(1, 12))
def test_resampling_keeps_constants_and_the_mean_order(given_size: int, size: int) -> None:
    line = torch.linspace(0, 1, given_size, dtype=torch.float64)[None]
    fitted = fit(line, size, -1)[0]
    assert fitted.shape == (size,)
    assert (fitted.diff() >= -1e-12).all()
    torch.testing.assert_close(fit(torch.full_like(line, 3.0), size, -1), torch.full((1, size), 3.0).double())


def test_a_scene_twice_as_large_is_seen_alike() -> None:
    """Every pixel doubled: a band is averaged back to the size of its layers, so the bands attend alike."""
    module = block()
    x = torch.randn(1, 4, 16, 20, dtype=torch.float64)
    doubled = x.repeat_interleave(2, -1).repeat_interleave(2, -2)
    torch.testing.assert_close(module.maps(doubled)[2], module.maps(x)[2])


def test_res2net_part_by_part() -> None:
    torch.manual_seed(0)
    module = Res2Net(6, 2, 3).double().eval()
    x = torch.randn(1, 6, 4, 5, dtype=torch.float64)
    a, b, c = module.enter(x).relu().split(2, 1)
    first = module.norms[0](module.convolutions[0](a)).relu()
    second = module.norms[1](module.convolutions[1](first + b)).relu()
    torch.testing.assert_close(module(x), module.leave(torch.cat([first, second, c], 1)))


def test_options_out_of_range() -> None:
    with pytest.raises(ValueError, match="four or more"):
        TSANet(widths=(64, 128, 256))
    with pytest.raises(ValueError, match="3 pairs"):
        TSANet(features=((48, 30),))
    with pytest.raises(ValueError, match="height must be a positive integer"):
        TSANet(size=(0, 16))


def test_names_of_the_whole_network() -> None:
    """The parts have cases of their own; how the whole names them is told by one name of each kind."""
    names = reference_names(TSANet(size=(16, 16), widths=(4, 4, 4, 4), heads=1, features=((2, 2),) * 3), "mst")
    expected = {
        "tconv_down1.layer2.0.weight": "encoders.0.1.0.weight",
        "tconv_down3.layer2.convs.1.weight": "encoders.2.1.convolutions.1.weight",
        "bottom2.0.bias": "bottom.1.0.bias",
        "tconv_up3.layer1.0.weight": "decoders.2.enlarge.weight",
        "tconv_up1.layer2.bn_end.running_var": "decoders.0.mix.leave.norm.running_var",
        "tconv_up1.layer3.0.weight": "decoders.0.leave.0.weight",
        "transform1.mask": "attentions.0.smoothness",
        "transform2.down_sample.0.1.weight": "attentions.1.down.0.norm.weight",
        "transform3.query_lambda.fully.0.weight": "attentions.2.band_query.project.weight",
        "conv_last.weight": "leave.weight",
    }
    assert {theirs: names.get(theirs) for theirs in expected} == expected
