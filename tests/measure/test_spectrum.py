# SPDX-License-Identifier: Apache-2.0
"""Spectra against numpy's singular value decomposition and closed forms."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from widefield.measure import SpectrumAccumulator, effective_rank, spectrum


def features(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("space", [(50,), (7, 6), (3, 4, 2), (5,)])
def test_against_numpy(space):
    batches = [features(3, 8, *space, seed=1), features(2, 8, *space, seed=2)]
    result = spectrum(lambda x: 2 * x, batches)
    images = np.concatenate([batch.flatten(2).numpy() for batch in batches])
    singular = np.zeros((5, 8))
    singular[:, : min(8, images.shape[2])] = np.linalg.svd(images, compute_uv=False)
    energy = np.cumsum(singular**2, axis=1)
    share = singular / singular.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(share * np.log(share), axis=1)
    pooled = np.linalg.svd(np.concatenate(list(images), axis=1), compute_uv=False)

    assert result.before.images == 5
    np.testing.assert_allclose(result.before.values, singular.mean(0), atol=1e-10)
    np.testing.assert_allclose(result.before.cumulative, (energy / energy[:, -1:]).mean(0), atol=1e-10)
    np.testing.assert_allclose(result.before.effective_rank, np.exp(entropy).mean(), rtol=1e-10)
    np.testing.assert_allclose(result.before.pooled, pooled, rtol=1e-10)
    np.testing.assert_allclose(result.after.pooled, 2 * pooled, rtol=1e-10)
    np.testing.assert_allclose(result.after.cumulative, result.before.cumulative, rtol=1e-10)


def test_effective_rank_closed_forms():
    assert effective_rank(torch.tensor([3.0, 3.0, 3.0, 3.0])).item() == pytest.approx(4)
    assert effective_rank(torch.tensor([5.0, 0.0, 0.0])).item() == pytest.approx(1)
    assert effective_rank(torch.zeros(3)).item() == 0
    # Shares 1/2, 1/4, 1/4: entropy (3/2) ln 2.
    batch = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(effective_rank(batch), torch.tensor([2**1.5, 2.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="non-negative"):
        effective_rank(torch.tensor([1.0, -1.0]))


def test_a_low_rank_module_shows():
    rank = 3
    basis, _ = torch.linalg.qr(features(16, rank))

    def project(x):
        return torch.einsum("cr,dr,bdhw->bchw", basis, basis, x)

    result = spectrum(project, [features(4, 16, 20, 20)])
    assert all(value == 0 for value in result.after.values[rank:])
    assert all(value == 0 for value in result.after.pooled[rank:])
    assert result.after.rank_at(1.0) == rank
    assert result.before.rank_at(1.0) == 16
    assert result.after.effective_rank < rank + 1e-9 < result.before.effective_rank


def test_rank_at_reads_the_curve():
    # One image of orthogonal rows with squares 6, 3, 1.
    x = torch.diag(torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64).sqrt())[None]
    before = spectrum(nn.Identity(), [x]).before
    assert before.cumulative == pytest.approx((0.6, 0.9, 1.0))
    assert [before.rank_at(q) for q in (0.5, 0.6, 0.61, 0.9, 0.91, 1.0)] == [1, 1, 2, 2, 3, 3]
    assert before.rank_at(0.9, pooled=True) == 2
    with pytest.raises(ValueError, match="above 0"):
        before.rank_at(90)


def test_pooling_over_images_is_not_averaging():
    # Two images of rank 1 in orthogonal directions: each has rank 1, together they have rank 2.
    x = torch.zeros(2, 4, 10, dtype=torch.float64)
    x[0, 0], x[1, 1] = 1, 1
    before = spectrum(nn.Identity(), [x]).before
    assert before.effective_rank == pytest.approx(1)
    assert before.pooled_effective_rank == pytest.approx(2)


def test_all_zero_features_have_no_rank():
    before = spectrum(nn.Identity(), [torch.zeros(2, 4, 5)]).before
    assert before.rank_at(0.9) == 0
    assert before.effective_rank == 0
    assert before.cumulative == (0.0,) * 4


def test_modes_and_batches():
    module, backbone = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout()), nn.Conv2d(3, 4, 1)
    module.train()
    module[1].eval()
    images = [(features(2, 3, 5, 5, seed=s).float(), "label") for s in range(4)]
    result = spectrum(module, images, before=backbone, max_batches=2)
    assert result.before.images == 4
    assert module.training
    assert not module[1].training
    assert backbone.training
    expected = np.linalg.svd(backbone(images[0][0]).detach().flatten(2).numpy(), compute_uv=False)
    more = np.linalg.svd(backbone(images[1][0]).detach().flatten(2).numpy(), compute_uv=False)
    np.testing.assert_allclose(
        result.before.values, np.concatenate([expected, more]).mean(0), rtol=1e-4, atol=1e-5
    )
    assert json.loads(json.dumps(result.as_dict()))["after"]["images"] == 4


def test_bad_input_is_answered():
    with pytest.raises(ValueError, match="at least one batch"):
        spectrum(nn.Identity(), [])
    with pytest.raises(ValueError, match=r"\(b, c, \*space\)"):
        spectrum(nn.Identity(), [torch.zeros(2, 3)])
    with pytest.raises(ValueError, match="NaN"):
        spectrum(nn.Identity(), [torch.full((1, 2, 3), float("nan"))])
    with pytest.raises(TypeError, match="tensors"):
        spectrum(nn.Identity(), ["image"])
    accumulator = SpectrumAccumulator()
    accumulator.update(torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match="5 channels after features of 3"):
        accumulator.update(torch.zeros(1, 5, 4))
