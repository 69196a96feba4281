# SPDX-License-Identifier: Apache-2.0
"""HDNet, lambda-Net and TSA-Net: published size and cost, and behaviour as parts of somebody's programme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from widefield.imaging import dispersed_mask
from widefield.measure import count
from widefield.models.spectral.hdnet import HDNet
from widefield.models.spectral.lambda_net import LambdaNet
from widefield.models.spectral.network import SnapshotNetwork
from widefield.models.spectral.tsa_net import TSANet

NARROW: dict[type[SnapshotNetwork], dict[str, Any]] = {
    HDNet: {"features": 8, "blocks": (1, 1)},
    LambdaNet: {"widths": (4, 6, 8, 8)},
    TSANet: {"size": (16, 24), "widths": (4, 8, 8, 8), "heads": 2, "features": ((5, 3), (4, 6), (6, 4))},
}
NETWORKS = list(NARROW)


def built(kind: Callable[..., SnapshotNetwork], bands: int = 4, step: int = 2, seed: int = 0) -> SnapshotNetwork:
    """A narrow network whose norms have seen something."""
    torch.manual_seed(seed)
    network = kind(bands, step, **NARROW[kind])  # type: ignore[index]
    for part in network.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return network.eval()


def scene(
    height: int, width: int, bands: int = 4, step: int = 2, batch: int = 2, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """A measurement and a mask for each sample."""
    generator = torch.Generator().manual_seed(1)
    phi = dispersed_mask(torch.rand(batch, height, width, generator=generator), bands, step)
    y = torch.rand(batch, height, phi.shape[-1], generator=generator) * bands / 2
    return y.to(dtype), phi.to(dtype)


@pytest.mark.parametrize(
    ("kind", "parameters", "giga"), [(HDNet, 2.367, 154.74), (LambdaNet, 32.727, 32.17), (TSANet, 44.251, 98.10)]
)
def test_published_size_and_cost(kind: type[SnapshotNetwork], parameters: float, giga: float) -> None:
    network = kind()
    # TSA-Net's originals keep their constants as parameters, and so they were counted.
    constants = (b for name, b in network.named_buffers() if not name.endswith(("_mean", "_var", "_tracked")))
    total = sum(p.numel() for p in (*network.parameters(), *constants))
    assert round(total / 1e6, 3) == parameters
    counted = count(network, ((1, 256, 310), (28, 256, 310)))
    assert not counted.lower_bound
    assert counted.multiply_adds / 1e9 == pytest.approx(giga, rel=0.02)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (16, 24), (19, 33)])
@pytest.mark.parametrize(("bands", "step"), [(1, 2), (3, 0), (5, 1)])
def test_any_size_bands_and_step(
    kind: type[SnapshotNetwork], size: tuple[int, int], bands: int, step: int
) -> None:
    y, phi = scene(*size, bands, step)
    cube = built(kind, bands, step)(y, phi)
    assert cube.shape == (2, bands, *size)
    assert torch.isfinite(cube).all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_each_sample_has_its_own_mask_and_its_own_answer(kind: type[SnapshotNetwork]) -> None:
    network, (y, phi) = built(kind).double(), scene(13, 18, dtype=torch.float64)
    whole = network(y, phi)
    for i in range(2):
        torch.testing.assert_close(whole[i], network(y[i : i + 1], phi[i])[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(network(y, phi[0]), network(y, phi[:1].expand_as(phi)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", NETWORKS)
def test_inputs_are_read_only_and_may_lie_anyhow_in_memory(kind: type[SnapshotNetwork]) -> None:
    network, (y, phi) = built(kind), scene(12, 15)
    expected = network(y, phi)
    kept = y.clone(), phi.clone()
    strided = torch.stack([y, y + 1], -1)[..., 0]
    turned = phi.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    torch.testing.assert_close(network(strided, turned), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(y, kept[0])
    assert torch.equal(phi, kept[1])


@pytest.mark.parametrize("kind", NETWORKS)
def test_evaluation_repeats_and_leaves_state_and_generator_alone(kind: type[SnapshotNetwork]) -> None:
    network, (y, phi) = built(kind), scene(9, 17)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    before = torch.get_rng_state()
    assert torch.equal(network(y, phi), network(y, phi))
    assert torch.equal(torch.get_rng_state(), before)
    after = network.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], value) for name, value in state.items())


@pytest.mark.parametrize("kind", NETWORKS)
def test_half_precision_is_near(kind: type[SnapshotNetwork]) -> None:
    network, (y, phi) = built(kind), scene(16, 24)
    expected = network(y, phi)
    scale = expected.abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        cast = network(y, phi)
    half = network.bfloat16()(y.bfloat16(), phi.bfloat16())
    assert half.dtype == torch.bfloat16
    for cube in (cast, half):
        assert (cube.float() - expected).abs().max() < 0.05 * scale


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_trains_at_batch_one_and_on_constants(kind: type[SnapshotNetwork], value: float) -> None:
    network = built(kind).train()
    y, phi = scene(16, 24, batch=1)
    for given, mask in ((y, phi), (torch.full_like(y, value), torch.full_like(phi, value))):
        network.zero_grad()
        network(given, mask).square().mean().backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
    assert torch.isfinite(network(torch.zeros_like(y), phi)).all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradient_of_the_measurement(kind: type[SnapshotNetwork]) -> None:
    """Against a central difference along one direction."""
    network, (y, phi) = built(kind).double(), scene(8, 11, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(y.shape, generator=generator, dtype=y.dtype)
    seed = torch.randn(2, 4, 8, 11, generator=generator, dtype=y.dtype)
    leaf = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((network(leaf, phi) * seed).sum(), leaf)
    h = 1e-6
    with torch.no_grad():
        slope = ((network(y + h * direction, phi) - network(y - h * direction, phi)) * seed).sum() / (2 * h)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", NETWORKS)
def test_compiles_and_exports_whole(kind: type[SnapshotNetwork]) -> None:
    network, given = built(kind), scene(11, 18)
    expected = network(*given)
    torch.compiler.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager", dynamic=False)
    torch.testing.assert_close(compiled(*given), expected, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(network, given).module()
    torch.testing.assert_close(exported(*given), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_mask_of_other_bands_is_refused(kind: type[SnapshotNetwork]) -> None:
    y, phi = scene(8, 8)
    with pytest.raises(ValueError, match="4 bands takes a dispersed mask"):
        built(kind)(y, phi[:, :3])
