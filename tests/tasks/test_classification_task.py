# SPDX-License-Identifier: Apache-2.0
"""Classification as a task: batches that resume, scores against scikit-learn, pictures of several sizes."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, log_loss
from torch.nn import functional as F

from widefield.data.classification import ArraySet, ClassificationData, load_classification
from widefield.tasks.classification import Classification, ClassificationMetrics


def pictures(n=20, classes=3, size=(8, 8), channels=3, natural=True):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, channels, *size), generator=g, dtype=torch.uint8)
    y = torch.arange(n) % classes
    return ClassificationData("p", tuple(map(str, range(classes))), ArraySet(x, y), ArraySet(x[:6], y[:6]),
                              natural=natural)  # fmt: skip


@pytest.mark.parametrize("augment", ["none", "plain", "timm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_a_function_of_seed_and_step(augment, channels):
    data = pictures(channels=channels)
    task, again = (Classification(data, batch_size=8, augment=augment, seed=1) for _ in range(2))
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    x, y = task.batch(3)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2] == random.getstate()
    again.batch(0)
    other_x, other_y = again.batch(3)
    assert torch.equal(x, other_x)
    assert torch.equal(y, other_y)
    assert x.shape == (8, channels, 8, 8)
    assert x.dtype == torch.float32
    assert y.shape == ((8, 3) if augment == "timm" else (8,))
    if augment == "timm":
        torch.testing.assert_close(y.sum(1).float(), torch.ones(8))


def test_an_epoch_shows_every_sample_once_and_normalised():
    task = Classification(pictures(), batch_size=5, augment="none")
    seen = sorted(row for step in range(4) for row in task.indices(step))
    assert seen == list(range(20))
    x = torch.cat([task.batch(step)[0] for step in range(4)]).double()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)
    assert task.steps_per_epoch == 4


def test_digits_are_not_mirrored():
    task = Classification(pictures(natural=False), batch_size=20, augment="plain")
    plain = Classification(pictures(natural=False), batch_size=20, augment="none")
    original = {tuple(x.flatten().tolist()): x for x in plain.batch(0)[0]}
    # A shift leaves an inner column that stands somewhere in the original, in the same direction.
    moved = task.batch(0)[0]
    rows = plain.indices(0)
    assert rows == task.indices(0)
    found = 0
    for x, source in zip(moved, original.values(), strict=True):
        windows = F.pad(source, (1, 1, 1, 1), value=float("nan")).unfold(1, 8, 1).unfold(2, 8, 1)
        inside = x[:, 1:-1, 1:-1]
        found += any(torch.equal(windows[:, i, j][:, 1:-1, 1:-1], inside) for i in range(3) for j in range(3))
    assert found == 20


def test_scores_against_scikit_learn():
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 4, generator=g), torch.randint(0, 3, (50,), generator=g)
    logits[:, 3] = -9  # the class that does not occur is not predicted either
    metrics = ClassificationMetrics("abcd")
    for a, b in zip(logits.split(7), labels.split(7), strict=True):
        metrics.update(a, b)
    score = metrics.compute()
    predicted = logits.argmax(1)
    assert score.accuracy == pytest.approx(float((predicted == labels).double().mean()))
    assert score.balanced == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert score.per_class["d"] is None
    assert np.array_equal(score.confusion, confusion_matrix(labels, predicted, labels=range(4)))
    assert score.loss == pytest.approx(log_loss(labels, logits.double().softmax(1), labels=range(4)), rel=1e-5)
    with pytest.raises(ValueError, match="build the network with 4 outputs"):
        metrics.update(torch.zeros(3, 5), labels[:3])
    with pytest.raises(ValueError, match="no sample"):
        ClassificationMetrics("ab").compute()


def test_the_loss_takes_classes_shares_and_two_heads():
    task = Classification(pictures(), batch_size=4)
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    expected = -logits.log_softmax(1)[range(4), labels].mean()
    torch.testing.assert_close(task.loss(logits, labels), expected)
    torch.testing.assert_close(task.loss(logits, F.one_hot(labels, 3).float()), expected)
    torch.testing.assert_close(task.loss((logits, logits), labels), expected)


def test_pictures_of_several_sizes_are_brought_to_one(tmp_path):
    for i, size in enumerate(((10, 8), (12, 8), (14, 20))):
        for name in "ab":
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("RGB", size, (i, 0, 0)).save(tmp_path / name / f"{i}.png")
    data = load_classification(tmp_path)
    assert Classification(data, batch_size=2).batch(0)[0].shape[1] == 3
    task = Classification(data, batch_size=2, size=(16, 12))
    assert task.batch(0)[0].shape == (2, 3, 16, 12)
    assert all(x.shape[1:] == (3, 16, 12) for x, _ in task.batches("val"))
    assert task.shape == (3, 16, 12)


def test_rows_of_a_table_are_given_as_they_are():
    data = load_classification("iris")
    task = Classification(data, batch_size=10)
    x, y = task.batch(0)
    rows = task.indices(0)
    assert torch.equal(x, data.train.samples[rows])
    assert torch.equal(y, data.train.labels[rows])
    with pytest.raises(ValueError, match="not augmented"):
        Classification(data, augment="plain")


@pytest.mark.parametrize(
    ("options", "match"),
    [({"batch_size": 0}, "batch_size"), ({"size": (0, 3)}, "size"), ({"augment": "timmm"}, "timm"),
     ({"augment": "timm", "batch_size": 3}, "even")],
)  # fmt: skip
def test_bad_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        Classification(pictures(), **options)
