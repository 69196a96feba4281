# SPDX-License-Identifier: Apache-2.0
"""Scores against scikit-image and closed forms."""

import math

import numpy as np
import pytest
import torch

from widefield.imaging import QUALITY, ergas, psnr, rmse, sam, ssim, uiqi

metrics = pytest.importorskip("skimage.metrics")


def cubes(seed=0):
    generator = np.random.default_rng(seed)
    truth = generator.random((3, 20, 24))
    return torch.from_numpy(truth + 0.1 * generator.standard_normal(truth.shape)), torch.from_numpy(truth)


def test_float_protocol_is_scikit_image():
    estimate, truth = cubes()
    pairs = list(zip(estimate.numpy(), truth.numpy(), strict=True))
    expected = np.mean([metrics.peak_signal_noise_ratio(t, e, data_range=1.0) for e, t in pairs])
    assert float(psnr(estimate, truth, protocol="float")) == pytest.approx(expected, abs=1e-10)
    expected = np.mean([
        metrics.structural_similarity(
            t, e, data_range=1.0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, win_size=11
        )
        for e, t in pairs
    ])  # fmt: skip
    assert float(ssim(estimate, truth, protocol="float")) == pytest.approx(expected, abs=1e-10)


def test_protocols_differ_where_they_say():
    estimate, truth = cubes()
    clipped = [(x.clamp(0, 1) * 255).round() / 255 for x in (estimate, truth)]
    assert float(psnr(estimate, truth)) == pytest.approx(float(psnr(*clipped, protocol="float")), abs=1e-9)
    assert float(psnr(estimate, truth, protocol="training_log")) < float(psnr(estimate, truth))
    small = estimate[:, :5], truth[:, :5]
    assert math.isfinite(float(ssim(*small, protocol="training_log")))
    with pytest.raises(ValueError, match="11 x 11"):
        ssim(*small)


def test_equal_cubes():
    _, truth = cubes()
    assert float(psnr(truth, truth)) == math.inf
    assert float(ssim(truth, truth)) == 1
    assert float(sam(truth, truth)) == pytest.approx(0, abs=1e-5)
    assert float(rmse(truth, truth)) == float(ergas(truth, truth)) == 0
    assert float(uiqi(torch.rand(2, 40, 40), torch.zeros(2, 40, 40))) == 0


def test_closed_forms():
    truth = torch.full((2, 33, 33), 0.5, dtype=torch.float64)
    estimate = truth + torch.tensor([0.1, -0.1]).view(2, 1, 1)
    assert float(rmse(estimate, truth, protocol="float")) == pytest.approx(0.1, abs=1e-8)
    assert float(ergas(estimate, truth, protocol="float")) == pytest.approx(20, abs=1e-5)
    assert float(psnr(estimate, truth, protocol="float")) == pytest.approx(20, abs=1e-5)
    angle = math.degrees(math.acos((0.6 + 0.4) / math.sqrt(2) / math.hypot(0.6, 0.4)))
    assert float(sam(estimate, truth, protocol="float")) == pytest.approx(angle, abs=1e-6)
    # Flat blocks are judged by their means.
    expected = (2 * 0.6 * 0.5 / (0.36 + 0.25) + 2 * 0.4 * 0.5 / (0.16 + 0.25)) / 2
    assert float(uiqi(estimate, truth, protocol="float")) == pytest.approx(expected, abs=1e-6)


def test_uiqi_of_one_block():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(1, 32, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    covariance = ((x - x.mean()) * (y - y.mean())).mean()
    expected = 4 * covariance * x.mean() * y.mean()
    expected /= (x.var(correction=0) + y.var(correction=0)) * (x.mean() ** 2 + y.mean() ** 2)
    assert float(uiqi(x, y, protocol="float")) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("name", sorted(QUALITY))
def test_batches_dark_cubes_and_errors(name):
    score = QUALITY[name]
    x, y = torch.rand(2, 3, 33, 35), torch.rand(2, 3, 33, 35)
    torch.testing.assert_close(score(x, y)[1], score(x[1], y[1]))
    if name != "ergas":  # relative to the mean of the truth
        assert torch.isfinite(score(x[0], x[0] * 0))
    with pytest.raises(ValueError, match="of one shape"):
        score(x, y[:1])
    with pytest.raises(ValueError, match="published"):
        score(x, y, protocol="matlab")
