# SPDX-License-Identifier: Apache-2.0
"""Denoisers, solvers, noise, strips."""

import itertools

import numpy as np
import pytest
import torch

from widefield.core.status import Outcome
from widefield.imaging import (
    Snapshot,
    denoise_soft,
    denoise_tv,
    expose,
    gaussian_noise,
    in_strips,
    photons,
    shot_noise,
    solve,
)
from widefield.imaging.priors import total_variation
from widefield.imaging.strips import strips

restoration = pytest.importorskip("skimage.restoration")


@pytest.mark.parametrize(("weight", "iterations"), [(0.1, 5), (0.05, 200), (1.0, 30)])
def test_tv_denoising_is_that_of_scikit_image(weight, iterations):
    generator = np.random.default_rng(0)
    for shape in ((1, 12, 17), (3, 1, 9), (2, 7, 1)):
        x = generator.random(shape)
        ours = denoise_tv(torch.from_numpy(x), weight, iterations=iterations)
        for band, found in zip(x, ours, strict=True):
            expected = restoration.denoise_tv_chambolle(band, weight=weight, max_num_iter=iterations)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_bands_and_samples_are_denoised_each_for_itself():
    x = torch.rand(2, 3, 9, 8, dtype=torch.float64)
    whole = denoise_tv(x, 0.2, iterations=100)
    one = denoise_tv(x[1:, 2:], 0.2, iterations=100)
    torch.testing.assert_close(whole[1:, 2:], one, rtol=0, atol=0)


def test_tv_denoising_minimises_its_cost():
    x = torch.rand(1, 10, 10, dtype=torch.float64)
    u = denoise_tv(x, 0.1, iterations=3000, tolerance=0.0)

    def cost(u):
        return float((u - x).square().sum() / 2 + 0.1 * total_variation(u).sum())

    generator = torch.Generator().manual_seed(0)
    for size in (1e-1, 1e-2, 1e-3):
        moved = u + size * torch.randn(u.shape, generator=generator, dtype=u.dtype)
        assert cost(u) < cost(moved)
    assert cost(u) < cost(x)


def test_soft_thresholding_in_the_cosine_basis():
    from scipy.fft import dctn, idctn

    x = np.random.default_rng(1).standard_normal((4, 6, 9))
    coefficients = dctn(x, axes=(1, 2), norm="ortho")
    kept = np.sign(coefficients) * np.maximum(np.abs(coefficients) - 0.3, 0)
    expected = idctn(kept, axes=(1, 2), norm="ortho")
    np.testing.assert_allclose(denoise_soft(torch.from_numpy(x), 0.3), expected, atol=1e-12)


def scene(bands=4, h=24, w=20):
    y, x = torch.meshgrid(torch.linspace(0, 1, h), torch.linspace(0, 1, w), indexing="ij")
    block = ((x > 0.3) & (x < 0.7) & (y > 0.2) & (y < 0.8)).double()
    return torch.stack([block * (0.3 + 0.15 * c) + 0.1 for c in range(bands)])[None]


@pytest.mark.parametrize("name", ["gap-tv", "admm-tv", "twist"])
@pytest.mark.parametrize("step", [0, 2])
def test_solvers_come_closer_than_where_they_start(name, step):
    torch.manual_seed(0)
    cube = scene()
    masks = (torch.rand(4, 24, 20) > 0.5).double()
    operator = Snapshot.video(masks) if step == 0 else Snapshot.cassi(masks[0], 4, step)
    y = operator.forward(cube)
    found = solve(name, y, operator, iterations=80)
    start = operator.adjoint(y / operator.energy)
    assert (found.estimate - cube).norm() < 0.6 * (start - cube).norm()
    assert (operator.forward(found.estimate) - y).norm() < 0.1 * y.norm()
    assert int(Outcome.NON_FINITE) not in found.status.outcome.tolist()


def test_a_solver_without_denoising_only_projects():
    torch.manual_seed(0)
    operator = Snapshot.cassi(torch.rand(6, 7).double(), 3, 1)
    y = operator.forward(torch.rand(2, 3, 6, 7).double())
    found = solve("pnp", y, operator, denoiser=lambda x: x, iterations=40, accelerated=False)
    torch.testing.assert_close(operator.forward(found.estimate), y, rtol=0, atol=1e-6)


def test_samples_of_a_batch_are_solved_each_for_itself():
    torch.manual_seed(0)
    operator = Snapshot.cassi(torch.rand(8, 8).double(), 3, 1)
    y = operator.forward(torch.rand(3, 3, 8, 8).double())
    for name in ("gap-tv", "admm-tv", "twist"):
        whole = solve(name, y, operator, iterations=20, tolerance=1e-2).estimate
        one = solve(name, y[1:2], operator, iterations=20, tolerance=1e-2).estimate
        torch.testing.assert_close(whole[1:2], one, rtol=0, atol=1e-12)


def test_progress_and_stopping():
    operator = Snapshot.cassi(torch.rand(8, 8), 3, 1)
    y = operator.forward(torch.rand(1, 3, 8, 8))
    told = []
    found = solve("gap-tv", y, operator, iterations=50, tolerance=0.5, callback=told.append)
    assert found.status.outcome.tolist() == [int(Outcome.CONVERGED)]
    assert len(told) < 50
    assert told[-1].iterations == 50


def test_a_dark_mask_gives_no_nan():
    operator = Snapshot.cassi(torch.zeros(8, 8), 3, 1)
    for name in ("gap-tv", "admm-tv", "twist"):
        assert torch.isfinite(solve(name, torch.zeros(1, 8, 10), operator, iterations=3).estimate).all()


def test_solver_errors():
    operator = Snapshot.cassi(torch.rand(4, 4), 2, 1)
    y = torch.rand(1, 4, 5)
    with pytest.raises(ValueError, match="gap-tv"):
        solve("gap-tf", y, operator)
    with pytest.raises(TypeError, match="iterations"):
        solve("gap-tv", y, operator, iteration=3)
    with pytest.raises(ValueError, match="start must be"):
        solve("gap-tv", y, operator, start=torch.rand(1, 2, 4, 5))
    with pytest.raises(ValueError, match="keep the shape"):
        solve("pnp", y, operator, denoiser=lambda x: x[..., :2])


def test_shot_noise_has_the_mean_and_the_variance_of_a_binomial():
    y = torch.full((400, 500), 0.3, dtype=torch.float64)
    noisy = shot_noise(y, generator=torch.Generator().manual_seed(0))
    trials = float(photons(y)[0, 0])
    assert trials == int(0.3 * 2048 / 0.4)
    assert float(noisy.mean()) == pytest.approx(trials * 0.4 / 2048, abs=4 * 0.01 / 400)
    assert float(noisy.var()) == pytest.approx(trials * 0.4 * 0.6 / 2048**2, rel=0.02)
    again = shot_noise(y, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noisy, again)
    assert torch.equal((noisy * 2048).round(), noisy * 2048)


def test_noise_leaves_the_global_generator_alone_and_refuses_nonsense():
    y = torch.rand(5, 5)
    before = torch.get_rng_state()
    gaussian_noise(y, 0.1, torch.Generator().manual_seed(0))
    shot_noise(y, generator=torch.Generator().manual_seed(0))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(expose(y, 28), y / 28 * 2 * 1.2)
    with pytest.raises(ValueError, match="0 or more"):
        shot_noise(y - 2)
    with pytest.raises(ValueError, match="0 or more"):
        gaussian_noise(y, -1.0)
    with pytest.raises(ValueError, match="quantum_efficiency"):
        photons(y, 1.5)


@pytest.mark.parametrize(
    ("height", "rows", "overlap"), [(10, 4, 1), (9, 4, 3), (7, 7, 2), (5, 9, 0), (100, 16, 5)]
)
def test_strips_cover_every_row_and_overlap_enough(height, rows, overlap):
    bounds = strips(height, rows, overlap)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == height
    for (_, bottom), (top, _) in itertools.pairwise(bounds):
        assert bottom - top >= overlap
    assert all(bottom - top <= rows for top, bottom in bounds)


def test_a_reconstruction_in_strips_is_that_of_the_whole():
    torch.manual_seed(0)
    operator = Snapshot.cassi(torch.rand(21, 9).double(), 4, 2)
    y = operator.forward(torch.rand(2, 4, 21, 9).double())

    def rowwise(y, phi):
        part = Snapshot.measured(phi, 2)
        return part.adjoint(y / part.energy)

    told = []
    found = in_strips(rowwise, y, operator.phi, rows=6, overlap=2, told=lambda *done: told.append(done))
    torch.testing.assert_close(found, rowwise(y, operator.phi), rtol=0, atol=1e-12)
    assert told[-1][0] == told[-1][1] == len(told)
    with pytest.raises(ValueError, match="overlap"):
        in_strips(rowwise, y, operator.phi, rows=4, overlap=4)
