# SPDX-License-Identifier: Apache-2.0
"""Lambda-Net's attention written out, and what it does with the two frames."""

from __future__ import annotations

import pytest
import torch

from widefield.imaging import dispersed_mask
from widefield.models.spectral.lambda_net import LambdaNet, LambdaNetAttention


def test_attention_position_by_position() -> None:
    torch.manual_seed(0)
    module = LambdaNetAttention(16).double()
    x = torch.randn(1, 16, 2, 3, dtype=torch.float64)
    at = [x[0, :, i, j] for i in range(2) for j in range(3)]
    rows = []
    for v in at:
        q = module.query.weight @ v
        weights = torch.stack([q @ (module.key.weight @ u) / 2**0.5 for u in at]).softmax(0)
        rows.append(v + sum(w * (module.value.weight @ u) for w, u in zip(weights, at, strict=True)))
    torch.testing.assert_close(module(x).flatten(2)[0], torch.stack(rows, -1))


@pytest.mark.parametrize("channels", [1, 7, 8, 20])
def test_a_narrow_map_has_a_query(channels: int) -> None:
    assert LambdaNetAttention(channels)(torch.ones(1, channels, 2, 2)).shape == (1, channels, 2, 2)


def test_bands_come_from_where_they_lie_on_the_sensor() -> None:
    """With the U-Net silenced the answer is the fused input, each band cut at its own columns."""
    torch.manual_seed(0)
    network = LambdaNet(3, 2, widths=(4, 4, 4)).eval()
    with torch.no_grad():
        network.leave.weight.zero_()
        assert network.leave.bias is not None
        network.leave.bias.zero_()
    phi = dispersed_mask(torch.rand(6, 7), 3, 2)
    y = torch.rand(1, 6, 11)
    fused = network.fuse(torch.cat([y[:, None] * 2 / 3, phi[None]], 1))
    expected = torch.stack([fused[:, c, :, 2 * c : 2 * c + 7] for c in range(3)], 1)
    torch.testing.assert_close(network(y, phi), expected)


def test_levels_are_counted() -> None:
    with pytest.raises(ValueError, match="three or more"):
        LambdaNet(widths=(32, 64))
