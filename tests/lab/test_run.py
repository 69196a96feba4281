# SPDX-License-Identifier: Apache-2.0
"""Runs: the same record twice, the same figures after a kill, damaged files named."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from widefield.data import scenes
from widefield.lab import Experiment, LocalEngine, Record, run
from widefield.lab.loop import Diverged
from widefield.lab.record import DamagedFile

TINY = Experiment(
    "hamburger-nmf", {"rank": 4, "bases": "random"}, width=8, batch_size=4, steps=8, evaluate_every=4
)
FILES = ("record.json", "metrics.jsonl", "evidence.npz", "model.safetensors", "experiment.json")


@pytest.fixture(scope="module")
def data():
    return scenes(train=64, val=8)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    return run(TINY, tmp_path_factory.mktemp("reference") / "runs", data=data)


def contents(record: Record) -> dict[str, bytes]:
    return {name: (record.folder / name).read_bytes() for name in FILES}


def test_an_experiment_survives_json():
    experiment = replace(TINY, crop=(32, 48))
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert Experiment.from_json(experiment.to_json()).key == experiment.key
    assert replace(TINY, seed=1).key != TINY.key


def test_experiments_refuse_nonsense():
    with pytest.raises(ValueError, match="steps"):
        replace(TINY, steps=0)
    with pytest.raises(ValueError, match="plain numbers"):
        replace(TINY, options={"norm": torch.nn.Identity})
    text = json.loads(TINY.to_json())
    with pytest.raises(ValueError, match="Did you mean 'steps'"):
        Experiment.from_json(json.dumps(text | {"step": 3}))
    with pytest.raises(ValueError, match="schema 99"):
        Experiment.from_json(json.dumps(text | {"schema": 99}))


def test_two_runs_of_one_experiment_give_the_same_record(finished, data, tmp_path):
    again = run(TINY, tmp_path / "runs", data=data)
    assert contents(again) == contents(finished)


def test_a_finished_run_is_not_run_again(finished, data):
    before = contents(finished)
    told = []
    run(TINY, finished.folder.parent, data=data, watch=told.append)
    assert told == []
    assert contents(finished) == before


def test_a_run_stopped_anywhere_resumes_to_the_same_record(finished, data, tmp_path):
    class Stop(Exception):
        pass

    for stop in (1, 3, 7):
        root = tmp_path / str(stop) / "runs"

        def watch(progress, stop=stop):
            if progress.step == stop:
                raise Stop

        with pytest.raises(Stop):
            run(TINY, root, data=data, watch=watch)
        assert not Record(root / TINY.folder).finished
        assert contents(run(TINY, root, data=data)) == contents(finished)


def test_kill_nine_in_the_middle_resumes_to_the_same_record(finished, tmp_path):
    script = f"""
import torch; torch.set_num_threads({torch.get_num_threads()})
from pathlib import Path
from widefield.data import scenes
from widefield.lab import Experiment, run
def watch(p): print(p.step, flush=True)
experiment = Experiment.from_json({TINY.to_json()!r})
run(experiment, Path({str(tmp_path / "runs")!r}), data=scenes(train=64, val=8), watch=watch)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.strip() == "5":
                os.kill(process.pid, signal.SIGKILL)
                break
    folder = tmp_path / "runs" / TINY.folder
    assert not (folder / "record.json").exists()
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert contents(Record(folder)) == contents(finished)
    assert not list(folder.glob("*.tmp"))


def test_a_damaged_checkpoint_is_set_aside_and_the_run_starts_over(finished, data, tmp_path):
    record = Record.open(tmp_path / "runs", TINY)
    (record.folder / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    (record.folder / "metrics.jsonl").write_text('{"step": 4, "lo')
    with pytest.warns(DamagedFile, match="starts over"):
        run(TINY, tmp_path / "runs", data=data)
    assert contents(record) == contents(finished)
    assert (record.folder / "checkpoint.damaged").exists()


def test_a_diverging_run_says_so_and_the_others_go_on(data, tmp_path):
    bad = replace(TINY, module="none", options={}, lr=1e30, steps=4)
    with pytest.raises(Diverged, match="lower the learning rate"):
        run(bad, tmp_path / "runs", data=data)
    good = replace(TINY, module="none", options={}, steps=2, evaluate_every=2)
    outcomes = list(LocalEngine(data).map([bad, good], tmp_path / "runs"))
    assert "Diverged" in outcomes[0].error
    assert outcomes[1].record.finished


def test_a_frozen_backbone_trains_what_follows_only(data, tmp_path):
    frozen = replace(TINY, module="none", options={}, freeze_backbone=True)
    record = run(frozen, tmp_path / "runs", data=data)
    result = record.result["parameters"]
    assert result["trained"] < result["total"]
    assert len(list((tmp_path / "features").glob("*.safetensors"))) == 1
    written = (tmp_path / "features").stat().st_mtime_ns
    time.sleep(0.01)
    run(replace(frozen, module="global-average"), tmp_path / "runs", data=data)
    assert (tmp_path / "features").stat().st_mtime_ns == written


def test_frozen_features_give_the_scores_of_the_network_itself(data, tmp_path):
    from widefield.lab.run import Pictures, build_model, build_task, evaluate

    frozen = replace(TINY, module="none", options={}, freeze_backbone=True)
    record = run(frozen, tmp_path / "runs", data=data)
    from safetensors.torch import load_file

    model, task = build_model(frozen, data), build_task(frozen, data)
    model.load_state_dict(load_file(record.folder / "model.safetensors"))
    score = evaluate(model, task, Pictures(task), torch.device("cpu"))
    # The cache is float16; a handful of pixels may change sides.
    assert score.miou == pytest.approx(record.result["score"]["miou"], abs=2e-3)
    assert score.valid_pixels == record.result["score"]["valid_pixels"]


def test_a_folder_of_another_experiment_is_refused(tmp_path):
    folder = tmp_path / TINY.folder
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(replace(TINY, seed=5).to_json())
    with pytest.raises(ValueError, match="another experiment"):
        Record.open(Path(tmp_path), TINY)


@pytest.mark.parametrize("name", ["record.json", "experiment.json", "timing.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe{", b'{"step": '])
def test_damaged_files_of_a_record_do_not_stop_a_comparison(finished, data, tmp_path, name, content):
    import shutil
    import warnings

    from widefield.lab import Comparison, compare

    base = replace(TINY, module="none", options={})
    comparison = Comparison(("hamburger-nmf+rank=4+bases=random",), 1, base)
    folder = tmp_path / "runs" / TINY.folder
    shutil.copytree(finished.folder, folder)
    (folder / name).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedFile)
        summary = compare(comparison, data, tmp_path)
    (row,) = summary["rows"]
    assert row["status"] == "finished"
    assert row["values"] == [finished.result["score"]["miou"]]
    assert json.loads((folder / "record.json").read_text()) == finished.result


def test_a_damaged_cost_is_measured_again(data, tmp_path):
    from widefield.lab import Comparison, compare

    comparison = Comparison(("none",), 1, replace(TINY, module="none", options={}))
    first = compare(comparison, data, tmp_path)
    (path,) = (tmp_path / "cost").glob("*.json")
    path.write_text("{}")
    assert compare(comparison, data, tmp_path)["rows"][0]["parameters"] == first["rows"][0]["parameters"]
