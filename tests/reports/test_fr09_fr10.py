# SPDX-License-Identifier: Apache-2.0
"""Field reports FR-09 (what mIoU means) and FR-10 (a crop without labels), with exactly their inputs."""

import math
import warnings

import pytest
import torch

from widefield.tasks import NoValidPixelWarning, SegmentationMetrics, cross_entropy


def score(classes, target, prediction):
    metrics = SegmentationMetrics(classes)
    for labels, guess in zip(target, prediction, strict=True):
        metrics.update(torch.tensor(guess)[None], torch.tensor(labels)[None])
    return metrics.compute()


def test_fr09_a_absent_class():
    result = score(3, [[[0, 1], [1, 0]]], [[[0, 1], [1, 0]]])
    assert result.miou == 1.0
    assert result.iou["2"] is None
    assert result.absent == ("2",)
    assert result.classes_averaged == 2


@pytest.mark.parametrize("guess", [0, 2], ids=["b", "c"])
def test_fr09_b_c_ignored_pixel(guess):
    result = score(3, [[[0, 1], [1, 255]]], [[[0, 1], [1, guess]]])
    assert result.miou == 1.0
    assert result.iou["2"] is None
    assert result.valid_pixels == 3


def test_fr09_c_a_guess_beyond_the_classes_at_an_ignored_pixel():
    assert score(3, [[[0, 1], [1, 255]]], [[[0, 1], [1, 255]]]).miou == 1.0


def test_fr09_d_predicted_and_never_true():
    result = score(3, [[[0, 1], [1, 0]]], [[[0, 1], [1, 2]]])
    assert result.iou == {"0": 0.5, "1": 1.0, "2": 0.0}
    assert result.miou == 0.5
    assert result.classes_averaged == 3


def test_fr09_e_two_images_are_pooled():
    zeros, rows = [[0] * 4] * 4, [[1] * 4] * 2 + [[0] * 4] * 2
    result = score(2, [zeros, rows], [zeros, zeros])
    assert result.miou == pytest.approx(0.375, abs=1e-12)
    assert result.pixel_accuracy == 24 / 32


def test_fr09_f_nothing_valid():
    metrics = SegmentationMetrics(3)
    metrics.update(torch.zeros(1, 2, 2, dtype=torch.int64), torch.full((1, 2, 2), 255))
    with pytest.warns(NoValidPixelWarning, match="no valid pixel"):
        result = metrics.compute()
    assert math.isnan(result.miou)
    assert math.isnan(result.pixel_accuracy)
    assert str(result) == "no valid pixel"
    assert result.as_dict()["miou"] is None


def test_fr09_f_before_anything_was_counted():
    with pytest.warns(NoValidPixelWarning):
        assert math.isnan(SegmentationMetrics(3).compute().miou)


def test_fr09_g_large_set():
    metrics = SegmentationMetrics(2)
    zeros = torch.zeros(8, 512, 512, dtype=torch.int64)
    for _ in range(9):
        metrics.update(zeros, zeros)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = metrics.compute()
    assert result.miou == 1.0
    assert result.valid_pixels == 18_874_368


def test_fr10_no_valid_pixel():
    torch.manual_seed(0)
    logits = torch.randn(1, 5, 4, 4, requires_grad=True)
    loss, valid = cross_entropy(logits, torch.full((1, 4, 4), 255))
    assert loss.item() == 0.0
    assert valid.item() == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize("weighted", [False, True])
def test_fr10_half_of_the_pixels(weighted):
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(10, 19, 20, 20, generator=generator)
    labels = torch.randint(0, 19, (10, 20, 20), generator=generator)
    labels[torch.rand(10, 20, 20, generator=generator) < 0.5] = 255
    weight = torch.rand(19, generator=generator) if weighted else None
    loss, valid = cross_entropy(logits, labels, weight=weight)
    # written out: log-sum-exp minus the true logit, over the valid pixels
    kept, rows = labels[labels != 255], logits.double().movedim(1, -1)[labels != 255]
    each = rows.exp().sum(-1).log() - rows.gather(-1, kept[:, None])[:, 0]
    w = torch.ones(len(kept)).double() if weight is None else weight.double()[kept]
    assert loss.item() == pytest.approx(((each * w).sum() / w.sum()).item(), abs=1e-6)
    assert valid.item() == len(kept)


def test_fr10_weighted_without_a_valid_pixel():
    logits = torch.randn(1, 5, 4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss, _ = cross_entropy(logits, torch.full((1, 4, 4), 255), weight=torch.ones(5))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))
