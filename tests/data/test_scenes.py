# SPDX-License-Identifier: Apache-2.0
"""The embedded same-as-cue scenes, against a slow reading of their description."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from widefield.data import IGNORE, Scenes, load_segmentation, scenes


def slow_scene(data: Scenes, index: int) -> tuple[np.ndarray, np.ndarray]:
    """One scene drawn cell by cell from scikit-learn's own arrays."""
    digits = load_digits()
    chosen, _, cue = (item[0] for item in data.cells([index]))
    rows, columns = data.grid
    image = np.zeros((3, rows * 8, columns * 8), dtype=np.uint8)
    label = np.full((rows * 8, columns * 8), 255, dtype=np.int64)
    cue_class = digits.target[chosen[cue]]
    for cell, digit in enumerate(chosen):
        top, left = 8 * (cell // columns), 8 * (cell % columns)
        for y in range(8):
            for x in range(8):
                ink = round(digits.images[digit, y, x] * 255 / 16)
                image[:, top + y, left + x] = ink
                if cell == cue:
                    image[0, top + y, left + x] = 255
                elif ink >= 128:
                    label[top + y, left + x] = int(digits.target[digit] == cue_class)
    return image, label


@pytest.mark.parametrize(("split", "grid"), [("train", (6, 6)), ("val", (2, 5))])
def test_scenes_equal_a_slow_drawing(split, grid):
    data = Scenes(split, 50, grid=grid, seed=3)
    images, labels = data.batch(range(20))
    for i in range(20):
        image, label = slow_scene(data, i)
        np.testing.assert_array_equal(images[i].numpy(), image)
        np.testing.assert_array_equal(labels[i].numpy(), label)


def test_a_scene_does_not_depend_on_its_batch_or_the_length():
    small, large = Scenes("train", 100, seed=1), Scenes("train", 10_000, seed=1)
    images, labels = large.batch([99, 5, 5, 0])
    for place, index in enumerate([99, 5, 5, 0]):
        image, label = small[index]
        assert torch.equal(image, images[place])
        assert torch.equal(label, labels[place])
    other, _ = Scenes("train", 100, seed=2).batch([5])
    assert not torch.equal(other[0], images[1])


def test_scenes_leave_the_global_generators_alone():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    Scenes("train", 10).batch(range(10))
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


def test_training_and_validation_use_different_digits():
    used = {split: set(Scenes(split, 4000).cells(range(4000))[0].ravel()) for split in ("train", "val")}
    assert not used["train"] & used["val"]
    assert used["train"] | used["val"] == set(range(1797))


def test_the_class_returned_is_the_class_of_the_digit():
    chosen, kind, _ = Scenes("val", 200).cells(range(200))
    np.testing.assert_array_equal(load_digits().target[chosen], kind)


@pytest.mark.parametrize(("same", "distractors"), [(0.3, 9), (1 / 3, 2), (0.5, 1)])
def test_prior_distractors_and_cue_are_as_said(same, distractors):
    count = 6000
    _, kind, cue = Scenes("train", count, same=same, distractors=distractors).cells(range(count))
    cue_class = kind[np.arange(count), cue]
    others = np.ones_like(kind, dtype=bool)
    others[np.arange(count), cue] = False
    hits = (kind == cue_class[:, None])[others]
    # four standard deviations of a binomial share
    assert abs(hits.mean() - same) < 4 * np.sqrt(same * (1 - same) / hits.size)
    assert max(len(set(row)) for row in kind) == distractors + 1
    for values, bins in ((cue, 36), (cue_class, 10)):
        observed = np.bincount(values, minlength=bins)
        statistic = ((observed - count / bins) ** 2 / (count / bins)).sum()
        # mean bins - 1, variance 2 (bins - 1) for uniform draws
        assert statistic < bins - 1 + 5 * np.sqrt(2 * (bins - 1))


def test_pixel_prior_and_ignored_pixels():
    images, labels = Scenes("train", 2000).batch(range(2000))
    counted = labels != IGNORE
    assert abs((labels[counted] == 1).double().mean().item() - 0.3) < 0.01
    # every counted pixel is ink: grey, at least half of full
    grey = images[:, 1]
    assert int(grey[counted].min()) >= 128
    assert torch.equal(images[:, 0][counted], grey[counted])


def test_the_set_by_name():
    data = load_segmentation("scenes")
    assert (data.name, data.classes, data.natural) == ("scenes", ("other", "same"), False)
    assert "48x48" in data.summary()
    image, label = data.val[len(data.val) - 1]
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 48, 48))
    assert (label.dtype, tuple(label.shape)) == (torch.int64, (48, 48))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grid": (1, 1)}, "two cells"),
        ({"same": 1.0}, "between 0 and 1"),
        ({"distractors": 10}, r"1\.\.9"),
        ({"train": 0}, "at least one"),
    ],
)
def test_arguments_out_of_range(options, said):
    with pytest.raises(ValueError, match=said):
        scenes(**options)


def test_indices_out_of_range():
    data = Scenes("val", 4)
    assert torch.equal(data[-1][0], data[3][0])
    for index in (4, -5):
        with pytest.raises(IndexError):
            data[index]
    with pytest.raises(IndexError, match=r"0\.\.3"):
        data.batch([0, 4])
