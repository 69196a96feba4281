# SPDX-License-Identifier: Apache-2.0
"""Order, augmentation, evaluation batches, loss and score of the segmentation task."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, jaccard_score

from widefield.data import SegmentationData, scenes
from widefield.data.base import voc_palette
from widefield.tasks import Segmentation, SegmentationMetrics, cross_entropy
from widefield.tasks.augment import centre_view, random_view


class Ramp:
    """Pictures in memory whose colour is a function of their label: (100 + label, i, 0)."""

    def __init__(self, sizes):
        self.sizes = list(sizes)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        height, width = self.sizes[index]
        label = (torch.arange(height * width).view(height, width) // 3) % 4
        image = torch.stack([100 + label, torch.full_like(label, index), torch.zeros_like(label)])
        return image.to(torch.uint8), label


def ramp(train, val=((8, 8),), natural=True):
    classes = tuple("abcd")
    return SegmentationData("ramp", classes, Ramp(train), Ramp(val), voc_palette(4), natural=natural)


def test_batches_are_a_function_of_seed_and_step():
    data = ramp([(12, 16)] * 7)
    one, two = Segmentation(data, batch_size=3, seed=1), Segmentation(data, batch_size=3, seed=1)
    torch.manual_seed(0)
    first = [one.batch(step) for step in range(6)]
    torch.manual_seed(9)
    before = torch.get_rng_state()
    for step in (5, 0, 3):
        for ours, theirs in zip(first[step], two.batch(step), strict=True):
            assert torch.equal(ours, theirs)
    assert torch.equal(before, torch.get_rng_state())
    other = Segmentation(data, batch_size=3, seed=2).batch(0)
    assert not torch.equal(other[0], first[0][0])


def test_every_picture_once_an_epoch_in_a_new_order():
    task = Segmentation(ramp([(8, 8)] * 10), batch_size=4)
    drawn = [index for step in range(5) for index in task.indices(step)]
    assert Counter(drawn[:10]) == Counter(range(10))
    assert Counter(drawn[10:]) == Counter(range(10))
    assert drawn[:10] != drawn[10:]
    small = Segmentation(ramp([(8, 8)] * 2), batch_size=5)
    assert len(small.indices(0)) == 5


def test_scenes_are_drawn_as_they_are():
    data = scenes(train=100, val=5)
    task = Segmentation(data, batch_size=8, seed=3)
    images, labels = task.batch(2)
    expected = data.train.batch(task.indices(2))
    assert torch.equal(images, expected[0])
    assert torch.equal(labels, expected[1])


@pytest.mark.parametrize("augment", [True, False])
def test_mixed_sizes_are_cropped_to_one(augment):
    task = Segmentation(ramp([(10, 20), (12, 16), (30, 8)]), batch_size=6, augment=augment)
    assert task.crop == (12, 16)
    images, labels = task.batch(0)
    assert images.shape == (6, 3, 12, 16)
    assert labels.shape == (6, 12, 16)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert task.crop != Segmentation(ramp([(10, 20)]), crop=(4, 4)).crop


def test_evaluation_keeps_whole_pictures_in_order():
    sizes = [(8, 8), (8, 8), (8, 8), (6, 9), (8, 8)]
    task = Segmentation(ramp([(8, 8)], val=sizes), batch_size=2)
    batches = list(task.batches("val"))
    assert [tuple(images.shape) for images, _ in batches] == [
        (2, 3, 8, 8),
        (1, 3, 8, 8),
        (1, 3, 6, 9),
        (1, 3, 8, 8),
    ]
    assert [int(image[1, 0, 0]) for images, _ in batches for image in images] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="'train' or 'val'"):
        list(task.batches("test"))


def test_views_move_picture_and_label_together():
    image, label = Ramp([(20, 30)])[0]
    for seed in range(20):
        view, cut = random_view(image, label, (16, 16), np.random.default_rng(seed), scale=(1.0, 1.0))
        assert cut.max() < 4
        torch.testing.assert_close(view[0].long(), 100 + cut)
    view, cut = random_view(image, label, (16, 16), np.random.default_rng(0), scale=(0.5, 0.5))
    inside = cut != 255
    assert inside.any(1).sum() == 10
    assert inside.any(0).sum() == 15 or inside.any(0).sum() == 16
    assert view[:, ~inside].unique(dim=1).flatten().tolist() == [124, 116, 104]


def test_centre_view():
    image, label = Ramp([(6, 10)])[0]
    view, cut = centre_view(image, label, (4, 4))
    assert torch.equal(cut, label[1:5, 3:7])
    assert torch.equal(view, image[:, 1:5, 3:7])
    _, padded = centre_view(image, label, (8, 10))
    assert torch.equal(padded[1:7], label)
    assert (padded[[0, 7]] == 255).all()


def test_loss_and_metrics_belong_to_the_data():
    task = Segmentation(ramp([(8, 8)]))
    logits = torch.zeros(1, 4, 8, 8)
    loss, valid = task.loss(logits, task.data.val[0][1][None])
    assert loss.item() == pytest.approx(np.log(4), abs=1e-6)
    assert valid.item() == 64
    metrics = task.metrics()
    metrics.update(logits, task.data.val[0][1][None])
    assert list(metrics.compute().iou) == ["a", "b", "c", "d"]


def test_score_against_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, 9, 7, generator=generator)
    labels = torch.randint(0, 5, (6, 9, 7), generator=generator)
    labels[torch.rand(6, 9, 7, generator=generator) < 0.2] = 255
    metrics = SegmentationMetrics(["v", "w", "x", "y", "z"])
    for i in range(0, 6, 2):
        metrics.update(logits[i : i + 2], labels[i : i + 2])
    result = metrics.compute()
    kept = labels != 255
    truth, guess = labels[kept].numpy(), logits.argmax(1)[kept].numpy()
    np.testing.assert_array_equal(result.confusion, confusion_matrix(truth, guess, labels=range(5)))
    expected = jaccard_score(truth, guess, average=None)
    np.testing.assert_allclose(list(result.iou.values()), expected, rtol=1e-12)
    assert result.miou == pytest.approx(expected.mean(), abs=1e-12)
    assert result.pixel_accuracy == pytest.approx((truth == guess).mean(), abs=1e-12)
    metrics.reset()
    metrics.update(labels.where(labels < 5, 0), labels)
    assert metrics.compute().miou == 1.0


def test_one_class():
    metrics = SegmentationMetrics(["only"])
    metrics.update(torch.zeros(1, 1, 2, 2), torch.tensor([[[0, 0], [0, 255]]]))
    assert metrics.compute().miou == 1.0


def test_bad_input_is_refused():
    metrics = SegmentationMetrics(3)
    labels = torch.zeros(1, 4, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="labels hold values from 0 to 37"):
        metrics.update(labels, labels + 37 * (torch.arange(4) == 1))
    with pytest.raises(ValueError, match="predictions hold values from 3 to 3"):
        metrics.update(labels + 3, labels)
    with pytest.raises(ValueError, match="logits of 3 classes, got 5"):
        metrics.update(torch.zeros(1, 5, 4, 4), labels)
    with pytest.raises(ValueError, match="resize"):
        metrics.update(torch.zeros(1, 3, 2, 2), labels)
    with pytest.raises(ValueError, match="as integers"):
        metrics.update(torch.zeros(1, 4, 4), labels)
    with pytest.raises(ValueError, match="is one of the 3 classes"):
        SegmentationMetrics(3, ignore_index=2)
    with pytest.raises(ValueError, match="resize its logits"):
        cross_entropy(torch.zeros(1, 3, 2, 2), labels)
    with pytest.raises(TypeError, match="int64"):
        cross_entropy(torch.zeros(1, 3, 4, 4), labels.int())
    for options in ({"batch_size": 0}, {"crop": (0, 4)}):
        with pytest.raises(ValueError, match="at least 1"):
            Segmentation(ramp([(8, 8)]), **options)
    with pytest.raises(ValueError, match="negative"):
        Segmentation(ramp([(8, 8)])).batch(-1)
