# SPDX-License-Identifier: Apache-2.0
"""Samples, what no function can fit, and the variants of the data."""

import pytest
import torch

from widefield.measure.capacity import Samples, fittable, merge_classes, variant, without_conflicts


def pictures(n=40, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Samples(torch.rand(n, 2, 3, 5, generator=g), torch.randint(classes, (n,), generator=g), classes)


def test_fittable_is_the_longest_beginning_without_a_contradiction():
    x = torch.tensor([[0.0], [1.0], [-0.0], [2.0], [1.0], [3.0]])
    assert fittable(Samples(x, torch.tensor([0, 1, 0, 1, 0, 0]), 2)) == 4  # the second 1.0 has another label
    assert fittable(Samples(x, torch.tensor([0, 1, 1, 1, 1, 0]), 2)) == 2  # -0.0 is the same input as 0.0
    assert fittable(Samples(x, torch.tensor([0, 1, 0, 1, 1, 0]), 2)) == 6
    assert fittable(Samples(x, torch.tensor([[0.0], [1], [0], [1], [0.5], [0]]))) == 4  # targets too


def test_all_copies_of_a_contradiction_are_taken_out():
    x = torch.tensor([[0.0], [1.0], [0.0], [2.0], [0.0]])
    left = without_conflicts(Samples(x, torch.tensor([0, 1, 0, 1, 1]), 2))
    assert left.inputs[:, 0].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="nothing is left"):
        without_conflicts(Samples(torch.zeros(2, 1), torch.tensor([0, 1]), 2))


def test_random_labels_are_even_and_keep_the_inputs():
    samples = pictures(4000, 4)
    drawn = variant("random", samples, 3)
    assert torch.equal(drawn.inputs, samples.inputs)
    # Four standard deviations of a count with probability a quarter.
    assert (torch.bincount(drawn.labels, minlength=4) - 1000).abs().max() < 4 * (4000 * 0.25 * 0.75) ** 0.5
    assert abs(float((drawn.labels == samples.labels).double().mean()) - 0.25) < 0.03
    assert torch.equal(drawn.labels, variant("random", samples, 3).labels)
    assert not torch.equal(drawn.labels, variant("random", samples, 4).labels)


def test_gaussian_inputs_have_the_labels_of_random():
    samples = pictures(2000)
    drawn = variant("gaussian", samples, 1)
    assert drawn.inputs.shape == samples.inputs.shape
    assert abs(float(drawn.inputs.mean())) < 0.02
    assert abs(float(drawn.inputs.std()) - 1) < 0.02
    assert torch.equal(drawn.labels, variant("random", samples, 1).labels)


def test_one_permutation_of_the_pixels_serves_all_samples_and_channels():
    samples = pictures()
    moved = variant("permuted", samples, 2)
    assert torch.equal(moved.labels, samples.labels)
    before, after = samples.inputs.flatten(2), moved.inputs.flatten(2)
    # Each place of the result is one place of the original, in every sample and channel.
    places = (after[:, :, :, None] == before[:, :, None, :]).all(0).all(0)
    assert places.sum(0).tolist() == [1] * 15
    assert places.sum(1).tolist() == [1] * 15
    assert not torch.equal(before, after)


def test_merged_classes_keep_samples_and_join_evenly():
    samples = Samples(torch.rand(100, 3), torch.arange(100) % 10, 10)
    merged = merge_classes(samples, 4, seed=1)
    assert merged.num_classes == 4
    assert torch.equal(merged.inputs, samples.inputs)
    joined = [{int(c) for c in samples.labels[merged.labels == k]} for k in range(4)]
    assert sorted(len(j) for j in joined) == [2, 2, 3, 3]
    assert set().union(*joined) == set(range(10))
    with pytest.raises(ValueError, match=r"1\.\.10"):
        merge_classes(samples, 11)


@pytest.mark.parametrize(
    ("inputs", "labels", "classes", "error", "match"),
    [
        (torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), 2, TypeError, "uint8"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64), 2, ValueError, "as many labels"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 2, ValueError, "at least 1"),
        (torch.tensor([[float("nan")]]), torch.zeros(1, dtype=torch.int64), 2, ValueError, "not finite"),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), 2, ValueError, "0..1 are accepted"),
        (torch.zeros(3, 2), torch.zeros(3), 2, TypeError, "int64"),
        (torch.zeros(3, 2), torch.zeros(3), 0, TypeError, r"\(n, k\)"),
    ],
)
def test_what_is_no_sample(inputs, labels, classes, error, match):
    with pytest.raises(error, match=match):
        Samples(inputs, labels, classes)


def test_an_unknown_variant_is_named():
    with pytest.raises(ValueError, match="gaussian"):
        variant("gausian", pictures(), 0)
