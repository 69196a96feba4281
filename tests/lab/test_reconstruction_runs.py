# SPDX-License-Identifier: Apache-2.0
"""Reconstruction runs: the same record twice, the same figures after a kill, methods side by side."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from widefield.data import cube_sets
from widefield.imaging import first_estimate, psnr
from widefield.lab.methods import MethodComparison, compare_methods, parse_method
from widefield.lab.reconstruction import ReconstructionPlan, build_task, random_mask, run_reconstruction
from widefield.lab.report.methods import write_methods_report
from widefield.models.spectral import create_network, load_weights

TINY = ReconstructionPlan(
    "mst-s", {"blocks": (1, 1)}, data_options={"bands": 4, "size": (32, 32)}, crop=(16, 16), batch_size=2, steps=6,
    evaluate_every=3, mask_size=32,
)  # fmt: skip
FILES = ("record.json", "metrics.jsonl", "evidence.npz", "model.safetensors", "experiment.json")


@pytest.fixture(scope="module")
def data():
    return cube_sets.indian_pines(bands=4, size=(32, 32))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    return run_reconstruction(TINY, tmp_path_factory.mktemp("reference") / "runs", data=data)


def contents(record):
    return {name: (record.folder / name).read_bytes() for name in FILES}


def test_two_runs_give_the_same_record(finished, data, tmp_path):
    assert contents(run_reconstruction(TINY, tmp_path / "runs", data=data)) == contents(finished)


@pytest.mark.parametrize("stop", [1, 4])
def test_a_run_stopped_anywhere_resumes_to_the_same_record(finished, data, tmp_path, stop):
    class Stop(Exception):
        pass

    def watch(progress):
        if progress.step == stop:
            raise Stop

    with pytest.raises(Stop):
        run_reconstruction(TINY, tmp_path / "runs", data=data, watch=watch)
    assert contents(run_reconstruction(TINY, tmp_path / "runs", data=data)) == contents(finished)


def test_the_weights_give_the_recorded_score(finished, data):
    network = create_network("mst-s", bands=4, blocks=(1, 1)).eval()
    assert load_weights(network, finished.folder / "model.safetensors") == "widefield"
    (sample,) = build_task(TINY, data).batches()
    with torch.no_grad():
        cube = network(sample.y, sample.phi)
    recorded = json.loads((finished.folder / "record.json").read_text())["score"]
    assert float(psnr(cube[0].double(), sample.truth[0].double())) == pytest.approx(recorded["psnr"], abs=1e-6)
    example = np.load(finished.folder / "evidence.npz")
    np.testing.assert_allclose(example["estimate"], cube[0].numpy(), atol=2e-3)


def test_what_does_not_train_is_scored(data, tmp_path):
    record = run_reconstruction(replace(TINY, method="first-estimate", options={}), tmp_path / "runs", data=data)
    (sample,) = build_task(TINY, data).batches()
    expected = float(psnr(first_estimate(sample.y, 4, 2)[0].double(), sample.truth[0].double()))
    assert record.result["score"]["psnr"] == pytest.approx(expected)
    assert not (record.folder / "model.safetensors").exists()


def test_methods_side_by_side(data, tmp_path):
    methods = ("first-estimate", "gap-tv+iterations=5", "mst-s+blocks=1/1", "gap-net+stages=1+widths=4/8")
    comparison = MethodComparison(methods, 2, replace(TINY, steps=2))
    told = []
    summary = compare_methods(comparison, data, tmp_path, told=told.append)
    assert not told
    rows = {row["method"]: row for row in summary["rows"]}
    assert [len(rows[m]["psnr"]["values"]) for m in methods] == [1, 1, 2, 2]
    assert rows["gap-tv+iterations=5"]["difference"]["mean"] == pytest.approx(
        rows["gap-tv+iterations=5"]["psnr"]["mean"] - rows["first-estimate"]["psnr"]["mean"]
    )
    assert rows["mst-s+blocks=1/1"]["parameters"] == sum(
        p.numel() for p in create_network("mst-s", bands=4, blocks=(1, 1)).parameters()
    )
    values = rows["mst-s+blocks=1/1"]["psnr"]["values"]
    half = 12.706204736 * abs(values[0] - values[1]) / 2  # Student's t of one degree of freedom, two values
    assert rows["mst-s+blocks=1/1"]["psnr"]["half_width"] == pytest.approx(half, rel=1e-6)
    page = write_methods_report(summary, tmp_path).read_text(encoding="utf-8")
    for text in (*methods, "south-east", "data:image/png;base64,"):
        assert text in page
    again = compare_methods(comparison, data, tmp_path)
    assert again["rows"] == summary["rows"]


def test_one_method_that_fails_does_not_stop_the_others(data, tmp_path):
    comparison = MethodComparison(("first-estimate", "mst-s+blocks=1/1"), 1, replace(TINY, steps=2, lr=1e30))
    told = []
    summary = compare_methods(comparison, data, tmp_path, told=told.append)
    rows = {row["method"]: row for row in summary["rows"]}
    assert rows["first-estimate"]["status"] == "finished"
    if rows["mst-s+blocks=1/1"]["status"] == "failed":
        assert told
        assert "failed" in write_methods_report(summary, tmp_path).read_text(encoding="utf-8")


def test_names_with_a_plus_and_options():
    assert parse_method("mst++") == ("mst++", {})
    assert parse_method("mst+++stages=1") == ("mst++", {"stages": 1})
    assert parse_method("gap-tv+iterations=5") == ("gap-tv", {"iterations": 5})
    with pytest.raises(ValueError, match="Did you mean 'dauhst-2stg'"):
        parse_method("dauhst-2stage")


def test_bad_plans(data, tmp_path):
    with pytest.raises(ValueError, match="brings no mask"):
        run_reconstruction(replace(TINY, mask="data"), tmp_path, data=data)
    with pytest.raises(TypeError, match="iteration"):
        run_reconstruction(replace(TINY, method="gap-tv", options={"iteration": 3}), tmp_path, data=data)
    with pytest.raises(ValueError, match="stands twice"):
        MethodComparison(("gap-tv", "gap-tv"), 1, TINY)
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        MethodComparison(("gap-tv",), 0, TINY)


def test_random_masks_are_fair_and_repeat():
    mask = random_mask((64, 64), 3)
    assert torch.equal(mask, random_mask((64, 64), 3))
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert abs(float(mask.mean()) - 0.5) < 4 * 0.5 / 64
