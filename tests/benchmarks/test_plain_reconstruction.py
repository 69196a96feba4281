# SPDX-License-Identifier: Apache-2.0
"""The networks written out compute what the networks compute."""

from __future__ import annotations

import pytest
import torch
from benchmarks.plain.reconstruction import NETWORKS

from widefield.imaging import dispersed_mask
from widefield.models.spectral import create_network

SMALL = {
    "dauhst-2stg": {"width": 6, "size": (32, 32)},
    "mst-s": {"blocks": (1, 2, 1)},
    "mst++": {"stages": 2},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_plain_version_computes_the_same(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    network = create_network(name, bands=6, **SMALL[name]).double().eval()
    with torch.no_grad():  # norms start at one and biases at zero, which hides them
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    mask = torch.rand(32, 32, generator=generator, dtype=torch.float64).round()
    phi = dispersed_mask(mask, 6, 2)
    y = torch.rand(2, *phi.shape[1:], generator=generator, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(NETWORKS[name](network, y, phi), network(y, phi), rtol=1e-9, atol=1e-9)
