# SPDX-License-Identifier: Apache-2.0
"""Samples out of data sets, verdicts on figures that are made up, the gap of a network that is known."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from sklearn.datasets import load_digits
from torch import nn

from widefield.data.classification import ArraySet, ClassificationData, load_classification
from widefield.lab.capacity_gap import generalisation_gap
from widefield.lab.capacity_verdicts import above, inequalities, ratio
from widefield.lab.samples import Prepared, prepare
from widefield.measure.capacity import Procedure, Samples


def row(model, variant, values, parameters=100, censored=False, optimizer="adam", gap=None):
    found = {"model": model, "optimizer": optimizer, "variant": variant, "parameters": parameters,
             "status": "finished", "capacity": {"values": values, "censored": censored}}  # fmt: skip
    return found | ({"gap": {"mean": gap}} if gap is not None else {})


def test_a_ratio_is_paired_and_has_students_interval():
    a, b = row("m", "semantic", [40, 90, 50]), row("m", "random", [10, 30, 10])
    logs = np.log([4, 3, 5])
    found = ratio(a, b)
    assert found.mean == pytest.approx(logs.mean())
    assert found.half_width == pytest.approx(student.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3))
    assert ratio(a, row("m", "random", [0, 1, 1])) is None


def verdicts(rows):
    return {item["statement"]: item["verdict"] for item in inequalities(rows)}


@pytest.mark.parametrize(
    ("semantic", "random", "top", "bottom", "expected"),
    [
        ([50, 52, 48], [10, 10, 10], False, False, "holds"),
        ([50, 52, 48], [10, 10, 10], True, False, "holds"),  # at least so much above
        ([50, 52, 48], [10, 10, 10], False, True, "cannot tell"),  # at least so much below
        ([15, 15, 16], [10, 10, 10], False, False, "does not hold"),
        ([15, 15, 16], [10, 10, 10], True, False, "cannot tell"),
        ([15, 60, 20], [10, 10, 10], False, False, "cannot tell"),
        ([50], [10], False, False, "cannot tell"),
    ],
)
def test_twice_as_many_true_labels(semantic, random, top, bottom, expected):
    found = verdicts([row("m", "semantic", semantic, censored=top), row("m", "random", random, censored=bottom)])
    assert found["m adam: true labels fit more than twice as many as random ones"] == expected


def test_fewer_random_labels_than_parameters():
    statement = "m adam: random labels fit fewer samples than parameters"
    assert verdicts([row("m", "random", [50, 51, 52], 100)])[statement] == "holds"
    assert verdicts([row("m", "random", [150, 151, 152], 100)])[statement] == "does not hold"
    assert verdicts([row("m", "random", [50, 51, 52], 100, censored=True)])[statement] == "cannot tell"


def test_the_slope_of_a_power_law_is_found():
    rows = [
        row(f"mlp+width={p}", "random", [round(0.5 * p**0.9), round(0.51 * p**0.9)], p) for p in (1000, 4000, 9000)
    ]
    (item,) = [i for i in inequalities(rows) if "power" in i["statement"]]
    assert item["ratio"] == pytest.approx(0.9, abs=0.01)
    assert item["verdict"] == "holds"
    flat = [row(f"mlp+width={p}", "random", [50, 51], p) for p in (1000, 4000, 9000)]
    assert next(i for i in inequalities(flat) if "power" in i["statement"])["verdict"] == "does not hold"
    # What is only "at least" belongs in no slope.
    rows[2]["capacity"]["censored"] = True
    assert not [i for i in inequalities(rows) if "power" in i["statement"]]


def test_gain_against_gap():
    rows = []
    for i in range(12):
        rows += [row(f"m{i}", "semantic", [(i + 2) * 10] * 2, gap=1 / (i + 2)), row(f"m{i}", "random", [10, 10])]
    (item,) = [i for i in inequalities(rows) if "rank correlation" in i["statement"]]
    assert item["ratio"] == pytest.approx(-1)
    assert item["verdict"] == "holds"
    few = [i for i in inequalities(rows[:10]) if "rank correlation" in i["statement"]]
    assert few[0]["verdict"] == "cannot tell"


def test_sgd_against_full_batch():
    rows = [row("m", "random", [50, 51, 52], optimizer="sgd"), row("m", "random", [80, 81, 82], optimizer="gd")]
    assert verdicts(rows)["m random: SGD fits more than full-batch gradient descent"] == "does not hold"


def test_above_by_hand():
    assert above(None, 1) == "cannot tell"


def test_samples_of_pictures_are_standardised_by_channel():
    prepared = prepare(load_classification("digits"))
    x = prepared.train.inputs
    assert x.shape == (1438, 1, 8, 8)
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std()) == pytest.approx(1, abs=1e-4)
    assert len(prepared.val) == 359
    fewer = prepare(load_classification("digits"), samples=100, classes=3)
    assert len(fewer.train) == 100
    assert fewer.train.num_classes == 3
    assert int(fewer.val.labels.max()) == 2


def test_principal_components_are_scikit_learns():
    prepared = prepare(load_classification("digits"), components=8)
    x = prepared.train.inputs.double()
    torch.testing.assert_close(torch.cov(x.T), torch.eye(8, dtype=torch.float64), atol=1e-4, rtol=0)
    # The first component is the direction of the largest variance of the pictures.
    pixels = prepare(load_classification("digits")).train.inputs.flatten(1).double()
    direction = torch.linalg.svd(pixels - pixels.mean(0), full_matrices=False)[2][0]
    projected = (pixels - pixels.mean(0)) @ direction
    assert abs(float(torch.corrcoef(torch.stack([projected, x[:, 0]]))[0, 1])) == pytest.approx(1, abs=1e-5)
    assert load_digits().data.shape[1] == 64


def test_bad_preparation():
    digits = load_classification("digits")
    for options, match in (
        ({"components": 65}, r"1\.\.64"),
        ({"samples": 0}, r"1\.\.1438"),
        ({"classes": 11}, "10"),
    ):
        with pytest.raises(ValueError, match=match):
            prepare(digits, **options)


def test_the_gap_of_a_network_that_only_memorises():
    """Inputs are one-hot and the held-out ones zero: all training samples are right, half of the others."""
    x, y = torch.eye(20)[:, :10].repeat(1, 1), torch.arange(20) % 2
    train, val = Samples(torch.eye(20), y, 2), Samples(torch.zeros(20, 20), y, 2)
    procedure = Procedure(rates=(0.1,), updates=60, check_every=10)
    found = generalisation_gap(lambda: nn.Linear(20, 2), Prepared(train, val, ""), procedure, 3)
    assert found["train"] == 1
    # The same logits for all held-out samples: half of the labels are right.
    assert found["held_out_accuracy"] == 0.5
    assert found["values"] == [0.5] * 3
    assert x.shape == (20, 10)


def test_a_data_set_of_one_class_is_refused_by_its_labels():
    with pytest.raises(ValueError, match=r"0\.\.0 are accepted"):
        ClassificationData("x", ("a",), ArraySet(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])),
                           ArraySet(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([0])))  # fmt: skip
