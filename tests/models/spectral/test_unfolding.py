# SPDX-License-Identifier: Apache-2.0
"""What the unrolled networks promise alike: any size, bands, step and precision; nothing kept, nothing drawn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from widefield.imaging import disperse, dispersed_mask, measure
from widefield.models.spectral.admm_net import ADMMNet
from widefield.models.spectral.dauhst import DAUHST
from widefield.models.spectral.gap_net import GAPNet
from widefield.models.spectral.network import SnapshotNetwork

NETWORKS: dict[str, Callable[..., SnapshotNetwork]] = {
    "gap-net": lambda bands=4, step=2, **o: GAPNet(bands, step, stages=2, widths=(4, 6, 8), **o),
    "admm-net": lambda bands=4, step=2, **o: ADMMNet(bands, step, stages=2, widths=(4, 6, 8), **o),
    "dauhst": lambda bands=4, step=2, **o: DAUHST(
        bands, step, stages=2, width=4, estimator_width=6, size=(32, 26), **o
    ),
}
everywhere = pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)


def scene(
    batch: int = 2, bands: int = 4, height: int = 9, width: int = 13, step: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """A measurement and the masks that made it, one a sample."""
    generator = torch.Generator().manual_seed(seed)
    cube = torch.rand(batch, bands, height, width, generator=generator)
    phi = dispersed_mask(torch.rand(batch, height, width, generator=generator), bands, step)
    return measure(disperse(cube, step), phi), phi


@everywhere
@pytest.mark.parametrize(
    ("bands", "step", "height", "width"),
    [(4, 2, 9, 13), (4, 2, 1, 1), (3, 1, 33, 20), (5, 0, 16, 16), (2, 3, 5, 40), (1, 2, 7, 8)],
)
def test_any_size(build: Callable[..., SnapshotNetwork], bands: int, step: int, height: int, width: int) -> None:
    network = build(bands, step)
    y, phi = scene(1, bands, height, width, step)
    cube = network(y, phi)
    assert cube.shape == (1, bands, height, width)
    assert cube.isfinite().all()
    cube.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters() if p.requires_grad)


@everywhere
def test_masks_of_their_own(build: Callable[..., SnapshotNetwork]) -> None:
    network = build().double().eval()
    y, phi = (x.double() for x in scene(3))
    together = network(y, phi)
    alone = torch.cat([network(y[i : i + 1], phi[i]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    shared = network(y, phi[:1])
    torch.testing.assert_close(shared, network(y, phi[0]), rtol=0, atol=0)
    assert not torch.allclose(shared[1], together[1])


@everywhere
def test_reads_and_keeps_nothing(build: Callable[..., SnapshotNetwork]) -> None:
    network = build().eval()
    y, phi = scene()
    kept, state = (y.clone(), phi.clone()), {k: v.clone() for k, v in network.state_dict().items()}
    drawn = torch.get_rng_state()
    first, second = network(y, phi), network(y, phi)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(y, kept[0])
    assert torch.equal(phi, kept[1])
    assert all(torch.equal(state[k], v) for k, v in network.state_dict().items())


@everywhere
def test_strides_do_not_matter(build: Callable[..., SnapshotNetwork]) -> None:
    network = build().double().eval()
    y, phi = (x.double() for x in scene())
    wide = torch.stack([y, y], -1)[..., 0]
    last = phi.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network(wide, last), network(y, phi), rtol=0, atol=1e-12)


@everywhere
def test_darkness(build: Callable[..., SnapshotNetwork]) -> None:
    network = build()
    y, phi = scene()
    for dark, mask in ((torch.zeros_like(y), phi), (torch.zeros_like(y), torch.zeros_like(phi)), (y, phi * 0)):
        network.zero_grad()
        cube = network(dark, mask)
        cube.sum().backward()
        assert cube.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


@everywhere
def test_half_precision(build: Callable[..., SnapshotNetwork]) -> None:
    network = build().eval()
    y, phi = scene()
    expected = network(y, phi)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(network(y, phi), expected, rtol=0, atol=0.05 * expected.abs().max().item())
    for dtype in (torch.bfloat16, torch.float16):
        cube = build().to(dtype).eval()(y.to(dtype), phi.to(dtype))
        assert cube.dtype == dtype
        assert cube.isfinite().all()


@everywhere
def test_dim_light_is_projected_in_float32(build: Callable[..., SnapshotNetwork]) -> None:
    """A mask of 1e-3 has an energy of 4e-6 over four bands: the misfit over it is 2.5e5, above float16's 65504."""
    network = build().half().eval()
    if isinstance(network, DAUHST):  # penalties of next to nothing
        assert network.estimator.last.bias is not None
        nn.init.constant_(network.estimator.last.bias, -30.0)
    y, phi = scene()
    cube = network(y.half(), (phi * 0 + 1e-3).half())
    assert cube.isfinite().all()


@everywhere
def test_whole_graph(build: Callable[..., SnapshotNetwork]) -> None:
    network = build().eval()
    y, phi = scene()
    expected = network(y, phi)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(y, phi), expected)
    exported = torch.export.export(network, (y, phi)).module()
    torch.testing.assert_close(exported(y, phi), expected)


@everywhere
def test_says_what_it_takes(build: Callable[..., SnapshotNetwork]) -> None:
    network = build()
    y, phi = scene()
    with pytest.raises(ValueError, match=r"measurement \(b, h, w'\)"):
        network(y[:, None], phi)
    with pytest.raises(ValueError, match="4 bands takes a dispersed mask"):
        network(y, phi[:, :3])
    with pytest.raises(ValueError, match="the measurement has 6"):
        network(y[..., :6], phi[..., :6])


@pytest.mark.parametrize("build", [GAPNet, ADMMNet, DAUHST])
def test_needs_a_stage(build: Callable[..., SnapshotNetwork]) -> None:
    with pytest.raises(ValueError, match="stages must be a positive integer, got 0"):
        build(4, 2, stages=0)
    with pytest.raises(ValueError, match="step"):
        build(4, -1)
