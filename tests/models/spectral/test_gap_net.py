# SPDX-License-Identifier: Apache-2.0
"""GAP-Net and ADMM-Net against closed forms and plain loops, with denoisers whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from widefield.imaging import disperse, dispersed_mask, measure
from widefield.measure import count
from widefield.models.spectral.admm_net import ADMMNet
from widefield.models.spectral.gap_net import GAPNet
from widefield.models.spectral.unfolding_unet import UnfoldingUNet
from widefield.weights import load_reference

BANDS, STEP, HEIGHT, WIDTH = 4, 2, 5, 7


def known_denoisers(network: GAPNet | ADMMNet, shift: float) -> None:
    """Every U-Net becomes `x + shift`."""
    for denoiser in network.denoisers:
        assert isinstance(denoiser, UnfoldingUNet)
        nn.init.zeros_(denoiser.leave.weight)
        assert denoiser.leave.bias is not None
        nn.init.constant_(denoiser.leave.bias, math.atanh(shift))


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    cube = torch.rand(1, BANDS, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    mask = 0.1 + torch.rand(HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    phi = dispersed_mask(mask, BANDS, STEP)
    return measure(disperse(cube, STEP), phi), phi


def loops(y: Tensor, phi: Tensor, gammas: list[float], shift: float, admm: bool) -> Tensor:
    """Both networks for a denoiser `x + shift`, sensor pixel by sensor pixel: `(l, h, w')`, dispersed."""
    out = torch.zeros_like(phi)
    for i in range(phi.shape[1]):
        for j in range(phi.shape[2]):
            code = [float(p) for p in phi[:, i, j]]
            energy = sum(p * p for p in code) or 1.0
            theta = [p * float(y[0, i, j]) for p in code]
            b = [0.0] * len(code)
            for gamma in gammas:
                z = [t + u for t, u in zip(theta, b, strict=True)]
                misfit = float(y[0, i, j]) - sum(p * v for p, v in zip(code, z, strict=True))
                x = [v + p * misfit / (energy + gamma) for v, p in zip(z, code, strict=True)]
                theta = [v - u + shift for v, u in zip(x, b, strict=True)]
                b = [u - (v - t) if admm else 0.0 for u, v, t in zip(b, x, theta, strict=True)]
            out[:, i, j] = torch.tensor(theta, dtype=torch.float64)
    return out


@pytest.mark.parametrize("shift", [0.0, 0.1])
@pytest.mark.parametrize("dispersed", [False, True])
def test_gap_is_its_loops(shift: float, dispersed: bool) -> None:
    network = GAPNet(BANDS, STEP, stages=3, widths=(2, 2), dispersed_output=dispersed).double()
    known_denoisers(network, shift)
    y, phi = problem()
    expected = loops(y, phi, [0.0] * 3, shift, admm=False)
    for band in range(BANDS):
        start = 0 if dispersed else STEP * band
        found = network(y, phi)[0, band]
        torch.testing.assert_close(found, expected[band, :, start : start + WIDTH], rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.1])
@pytest.mark.parametrize("dispersed", [False, True])
def test_admm_is_its_loops(shift: float, dispersed: bool) -> None:
    gammas = [0.0, 0.3, 1.2]
    network = ADMMNet(BANDS, STEP, stages=3, widths=(2, 2), dispersed_output=dispersed).double()
    known_denoisers(network, shift)
    for penalty, gamma in zip(network.penalties, gammas, strict=True):
        nn.init.constant_(penalty, gamma)
    y, phi = problem(1)
    expected = loops(y, phi, gammas, shift, admm=True)
    for band in range(BANDS):
        start = 0 if dispersed else STEP * band
        found = network(y, phi)[0, band]
        torch.testing.assert_close(found, expected[band, :, start : start + WIDTH], rtol=0, atol=1e-12)


def test_undisturbed_gap_reproduces_the_measurement() -> None:
    network = GAPNet(BANDS, STEP, stages=1, widths=(2,)).double()
    known_denoisers(network, 0.0)
    y, phi = problem()
    torch.testing.assert_close(measure(disperse(network(y, phi), STEP), phi), y, rtol=0, atol=1e-12)


def test_a_new_admm_net_takes_gap_steps() -> None:
    gap, admm = (build(BANDS, STEP, stages=1, widths=(2, 3)).double() for build in (GAPNet, ADMMNet))
    admm.denoisers.load_state_dict(gap.denoisers.state_dict())
    y, phi = problem()
    torch.testing.assert_close(admm(y, phi), gap(y, phi), rtol=0, atol=0)


@given(height=st.integers(1, 19), width=st.integers(1, 19), seed=st.integers(0, 99))
def test_the_unet_moves_no_value_by_more_than_one(height: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    unet = UnfoldingUNet(3, widths=(4, 5, 6))
    for p in unet.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, 3, height, width) * 9
    assert ((unet(x) - x).abs() <= 1 + 1e-5).all()


def test_padding_is_cut_off_again() -> None:
    """A map that needs no padding and its lower right crop that is padded back to the same are one map."""
    unet = UnfoldingUNet(2, widths=(3, 4, 5)).double()
    whole = torch.rand(1, 2, 8, 16, dtype=torch.float64)
    whole[..., 5:, :] = whole[..., 1:4, :].flip(-2)  # rows 3, 2, 1 below row 4, as reflection makes them
    torch.testing.assert_close(unet(whole[..., :5, :]), unet(whole)[..., :5, :], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("build", "parameters"), [(GAPNet, 4_271_580), (ADMMNet, 4_271_589)])
def test_published_figures(build: type[GAPNet] | type[ADMMNet], parameters: int) -> None:
    with torch.device("meta"):
        network = build()
    assert sum(p.numel() for p in network.parameters()) == parameters
    counted = count(network, ((1, 256, 310), (28, 256, 310)))
    assert counted.multiply_adds == pytest.approx(75.63e9, rel=1e-3)


def test_old_weights_must_fit() -> None:
    network = GAPNet(2, 1, stages=1, widths=(2,))
    with pytest.raises(ValueError, match=r"missing: unet1\.dconv_down1\.d_conv\.0\.weight"):
        load_reference(network, {}, source="mst")


@pytest.mark.parametrize("widths", [(), (4, 0)])
def test_widths_out_of_range(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="widths"):
        UnfoldingUNet(2, widths=widths)
