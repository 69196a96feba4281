# SPDX-License-Identifier: Apache-2.0
"""Batches, masks, losses and scores of snapshot reconstruction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from widefield.data.cube_sets import CubeList
from widefield.imaging import Snapshot
from widefield.models.spectral import create_network
from widefield.tasks.reconstruction import LOSSES, Reconstruction, recipe_of


def scenes(*sizes, bands=3):
    # Every value says where it was: scene, band, row, column.
    return CubeList({
        f"s{n}": torch.stack([
            (n * 1e6 + band * 1e4 + torch.arange(h)[:, None] * 100 + torch.arange(w)) / 1e7
            for band in range(bands)
        ])
        for n, (h, w) in enumerate(sizes)
    })  # fmt: skip


def task(**options):
    data = scenes((12, 14), (16, 12))
    mask = (torch.rand(16, 16, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    return Reconstruction(data, scenes((16, 20)), mask, **{"crop": (8, 8), "batch_size": 4} | options)


def test_a_batch_is_a_function_of_seed_and_step():
    first, again, other = task().batch(3), task().batch(3), task().batch(4)
    assert torch.equal(first.truth, again.truth)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.truth, other.truth)
    assert not torch.equal(first.truth, task(seed=1).batch(3).truth)


def test_the_measurement_is_that_of_the_operator():
    sample = task().batch(0)
    assert sample.truth.shape == (4, 3, 8, 8)
    assert sample.y.shape == (4, 8, 12)
    operator = Snapshot(sample.phi, 2)
    torch.testing.assert_close(sample.y, operator.forward(sample.truth))


def test_half_a_batch_is_mosaics_of_four_scenes():
    found = task().batch(0).truth
    for n, cube in enumerate(found):
        parts = [cube[:, :4, :4], cube[:, :4, 4:], cube[:, 4:, :4], cube[:, 4:, 4:]]
        steps = [float((p[0, 0, 1] - p[0, 0, 0]) * 1e7) for p in parts]
        if n < 2:  # unflipped, so columns rise by one within a part
            assert steps == pytest.approx([1, 1, 1, 1], abs=0.2)
    whole = task(mosaics=0.0, augment=False).batch(0).truth
    differences = (whole[:, 0, :, 1:] - whole[:, 0, :, :-1]) * 1e7
    torch.testing.assert_close(differences, torch.ones_like(differences), atol=0.2, rtol=0)


def test_crops_are_turned_and_flipped_alike_in_all_bands():
    for step in range(5):
        for cube in task(mosaics=0.0).batch(step).truth:
            between = (cube[1] - cube[0]) * 1e7
            torch.testing.assert_close(between, torch.full_like(between, 1e4), atol=2, rtol=0)


def test_fixed_and_random_masks():
    fixed = task().batch(0).phi
    assert torch.equal(fixed[0], fixed[3])
    random = task(random_mask=True).batch(0).phi
    assert not torch.equal(random[0], random[3])


def test_shot_noise_repeats_and_differs_from_none():
    noisy = task(noise="shot").batch(0)
    assert torch.equal(noisy.y, task(noise="shot").batch(0).y)
    assert torch.equal(noisy.truth, task().batch(0).truth)
    # y' = 1.2 (2 / l) y, 11 bits, as the field exposes real data
    assert float((noisy.y - 0.8 * task().batch(0).y).abs().max()) < 0.2


def test_evaluation_takes_whole_scenes_or_what_the_mask_covers():
    (sample,) = task().batches()
    assert sample.truth.shape == (1, 3, 16, 16)  # the middle of 20 columns
    assert sample.names == ("s0",)
    assert float(sample.truth[0, 0, 0, 0]) == pytest.approx(2e-7)


def test_the_losses():
    a, b = torch.rand(2, 3, 4, 4).double(), torch.rand(2, 3, 4, 4).double()
    difference = (a - b).numpy()
    assert float(LOSSES["rmse"](a, b)) == pytest.approx(np.sqrt((difference**2).mean()))
    assert float(LOSSES["l1"](a, b)) == pytest.approx(np.abs(difference).mean())
    a.requires_grad_()
    LOSSES["rmse"](a, a.detach()).backward()
    assert torch.isfinite(a.grad).all()


@pytest.mark.parametrize("name", ["hdnet", "cst-s"])
def test_losses_of_their_own_are_added(name):
    torch.manual_seed(0)
    network = create_network(name, bands=3).eval()
    job = task()
    sample = job.batch(0)
    own = job.loss(network, sample)
    plain = LOSSES["rmse"](network(sample.y, sample.phi), sample.truth)
    assert float(own) > float(plain)
    if name == "cst-s":
        cube, error = network.with_error(sample.y, sample.phi)
        target = (cube - sample.truth).abs().mean(1, keepdim=True)
        torch.testing.assert_close(own - plain, 2 * (error - target).square().mean())


def test_a_network_without_one_has_the_criterion():
    class Zero(nn.Module):
        def forward(self, y, phi):
            return y.new_zeros(len(y), 3, 8, 8)

    sample = task(loss="mse").batch(0)
    assert float(task(loss="mse").loss(Zero(), sample)) == pytest.approx(float(sample.truth.square().mean()))


def test_scores_are_means_over_scenes():
    job = task()
    pairs = [("a", torch.full((3, 12, 12), 0.5), torch.full((3, 12, 12), 0.6)),
             ("b", torch.full((3, 12, 12), 0.5), torch.full((3, 12, 12), 0.7))]  # fmt: skip
    score = job.score(iter(pairs))
    # as published: eight bits, peak 255
    expected = [20 * np.log10(255 / abs(round(0.5 * 255 + 1e-9) - round(t * 255))) for t in (0.6, 0.7)]
    assert [s.psnr for s in score.scenes] == pytest.approx(expected, abs=1e-6)
    assert score.psnr == pytest.approx(sum(expected) / 2)
    assert score.sam == pytest.approx(0, abs=1e-3)


def test_recipes_are_the_toolboxes():
    assert recipe_of("mst-s").schedule == "halving"
    assert recipe_of("mst++").schedule == "cosine"
    assert recipe_of("dauhst-2stg").lr == 4e-4
    assert (recipe_of("gap-net").lr, recipe_of("gap-net").schedule) == (1e-3, "decay")
    assert recipe_of("birnat").schedule == "constant"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crop": (13, 8)}, "does not fit into scenes of"),
        ({"loss": "l3"}, "l1"),
        ({"noise": "shoot"}, "Did you mean 'shot'"),
        ({"protocol": "publish"}, "published"),
        ({"batch_size": 0}, "batch_size"),
        ({"mosaics": 1.5}, "mosaics"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(ValueError, match=said):
        task(**options)


def test_a_crop_larger_than_the_mask():
    with pytest.raises(ValueError, match="does not fit on a mask"):
        Reconstruction(scenes((12, 12)), scenes((12, 12)), torch.ones(6, 6), crop=(8, 8))
