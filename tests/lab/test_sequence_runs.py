# SPDX-License-Identifier: Apache-2.0
"""Runs over sequences: the same record twice, after a kill too; networks side by side; auto-encoders; flows."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import widefield
from widefield.lab.flow import FlowStudy, study_flow
from widefield.lab.pretraining import pretrain
from widefield.lab.report.flow import write_flow_report
from widefield.lab.report.sequences import write_sequence_report
from widefield.lab.sequence_comparison import SequenceComparison, compare_networks, parse_network
from widefield.lab.sequences import SequencePlan, build_network, build_task, outputs, run_sequence
from widefield.models.sequences import create_sequence_network, list_sequence_networks

SMALL = {"rows": 8, "width": 4, "controller_size": 8}
TINY = SequencePlan(
    task="copy", method="ntm", options=SMALL, task_options={"longest": 3}, steps=6, batch_size=2, evaluate_every=3
)
DEEP = SequencePlan(task="digits", method="mlp", steps=6, evaluate_every=3, pretrain="greedy", pretrain_steps=3)
FILES = ("record.json", "metrics.jsonl", "evidence.npz", "model.safetensors", "experiment.json")


class Stop(Exception):
    pass


def contents(record):
    return {name: (record.folder / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("plan", [TINY, DEEP], ids=["ntm", "mlp"])
@pytest.mark.parametrize("stop", [1, 4])
def test_a_run_stopped_anywhere_resumes_to_the_same_record(tmp_path, plan, stop):
    def watch(progress):
        if progress.stage == "training" and progress.step == stop:
            raise Stop

    with pytest.raises(Stop):
        run_sequence(plan, tmp_path / "stopped", watch=watch)
    whole = run_sequence(plan, tmp_path / "whole")
    assert contents(run_sequence(plan, tmp_path / "stopped")) == contents(whole)


def test_a_finished_run_is_not_run_again(tmp_path):
    first = contents(run_sequence(TINY, tmp_path))
    assert contents(run_sequence(TINY, tmp_path, watch=lambda _: pytest.fail("it ran"))) == first


def test_the_record_is_what_the_saved_network_says(tmp_path):
    from safetensors.torch import load_file

    record = run_sequence(TINY, tmp_path)
    task = build_task(TINY, None)
    network = build_network(TINY, task)
    network.load_state_dict(load_file(record.folder / "model.safetensors"))
    assert task.score(outputs(network, task, torch.device("cpu"))) == record.result["score"]
    with np.load(record.folder / "evidence.npz") as file:
        assert file["memory"].shape == (8, 4)
        np.testing.assert_allclose(file["read"].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in list_sequence_networks() if n != "mlp"])
def test_every_network_learns_to_add_two_steps(tmp_path, name):
    """Two steps, two marks: the sum of both numbers. The error falls well below that of a constant answer."""
    options = {"hidden_sizes": [16]} if name == "hm-lstm" else {"hidden_size": 16}
    if name.startswith("ntm"):
        options = {"rows": 4, "width": 4, "controller_size": 16}
    plan = SequencePlan(task="adding", method=name, options=options, task_options={"length": 2}, steps=150,
                        batch_size=16, evaluate_every=150, lr=1e-2)  # fmt: skip
    found = run_sequence(plan, tmp_path).result["score"]["mse"]
    assert found < 0.1 * (1 / 6)


def test_the_state_is_carried_through_a_held_out_text(tmp_path):
    """Scored in one piece or in several, a text has one score."""
    from widefield.data.sequences import read_text
    from widefield.tasks.sequences_text import CharacterModel

    (tmp_path / "t.txt").write_text("abcde fghij klmno " * 900, encoding="utf-8")
    task = CharacterModel(read_text(tmp_path / "t.txt"), length=10)
    task.streams = 2
    network = create_sequence_network("lstm", task.input_size, task.output_size, {"hidden_size": 8})
    assert len(list(task.batches())) == 2
    found = task.score(outputs(network, task, torch.device("cpu")))
    batches = list(task.batches())
    whole = torch.cat([b.x for b in batches], 1)
    said = network(whole)[0].detach().split([b.x.shape[1] for b in batches], 1)
    expected = task.score(list(zip(said, batches, strict=True)))
    assert found["bits_per_character"] == pytest.approx(expected["bits_per_character"], rel=1e-5)


def test_networks_side_by_side(tmp_path):
    base = replace(TINY, method="lstm", options={})
    comparison = SequenceComparison(("ntm+rows=8+controller_size=8", "lstm+hidden_size=8"), 2, base)
    summary = compare_networks(comparison, None, tmp_path, command="again")
    assert [row["status"] for row in summary["rows"]] == ["finished"] * 2
    values = [row["score"]["values"] for row in summary["rows"]]
    assert summary["rows"][1]["difference"]["mean"] == pytest.approx(np.mean(values[1]) - np.mean(values[0]))
    assert json.loads((tmp_path / "table.json").read_text())["verdict"] == summary["verdict"]
    page = write_sequence_report(summary, tmp_path).read_text()
    assert "memory after the last step" in page
    assert "weights of the read head" in page
    assert page.count("<polyline") == 2


def test_less_error_is_better_and_more_accuracy_is(monkeypatch):
    from widefield.lab import sequence_comparison as module

    for sign, verdict in ((1.0, "better"), (-1.0, "worse")):
        records = [(seed, _Fake(0.9 + seed / 100)) for seed in range(3)]
        row = module._row("x", records, {s: 0.5 + s / 100 for s in range(3)}, "accuracy", sign, None)
        assert row["difference"]["verdict"] == verdict
        assert row["difference"]["mean"] == pytest.approx(0.4)


class _Fake:
    seconds = 1.0

    def __init__(self, value):
        self.result = {"score": {"accuracy": value}, "parameters": {"total": 1}}
        self.folder = type("F", (), {"name": "f"})


def test_a_network_that_fails_does_not_stop_the_others(tmp_path):
    base = SequencePlan(task="copy", method="lstm", task_options={"longest": 2}, steps=2, batch_size=2)
    with pytest.raises(ValueError, match="one length"):
        compare_networks(SequenceComparison(("lstm", "mlp"), 1, base), None, tmp_path)
    base = replace(base, lr=1e30)
    comparison = SequenceComparison(("rnn-relu-orthogonal", "lstm"), 1, replace(base, steps=30))
    summary = compare_networks(comparison, None, tmp_path)
    assert summary["rows"][0]["status"] == "failed"
    assert "lower the learning rate" in summary["rows"][0]["error"]


def test_names_and_options():
    assert parse_network("hm-lstm+hidden_sizes=8/9") == ("hm-lstm", {"hidden_sizes": [8, 9]})
    assert parse_network("hm-lstm+hidden_sizes=8") == ("hm-lstm", {"hidden_sizes": [8]})
    with pytest.raises(widefield.UnknownName, match="lstm"):
        parse_network("lstn")
    with pytest.raises(TypeError, match="hidden_size"):
        create_sequence_network("lstm", 3, 2, {"hiden_size": 4})
    with pytest.raises(TypeError, match="longest"):
        build_task(replace(TINY, task_options={"longst": 3}), None)
    with pytest.raises(ValueError, match="twice"):
        SequenceComparison(("lstm", "lstm"), 1, TINY)


# --- auto-encoders


def stack(widths, seed=0):
    torch.manual_seed(seed)
    return [torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.Tanh()) for a, b in pairwise(widths)]


def data(step):
    """Numbers on a plane of two dimensions in ten."""
    generator = torch.Generator().manual_seed(step)
    basis = torch.randn(2, 10, generator=torch.Generator().manual_seed(99))
    return 0.3 * torch.randn(64, 2, generator=generator) @ basis


@pytest.mark.parametrize("mode", ["greedy", "joint"])
def test_auto_encoders_learn_to_keep_what_they_are_given(mode):
    """Two dimensions go through a layer of two: nearly nothing has to be lost; a single step leaves most lost."""
    torch.manual_seed(0)
    short = pretrain(stack((10, 6, 2)), data, mode=mode, steps=1, lr=1e-2)
    layers = stack((10, 6, 2))
    errors = pretrain(layers, data, mode=mode, steps=400, lr=1e-2)
    assert len(errors) == (2 if mode == "greedy" else 1)
    assert errors[-1] < 0.1
    assert short[-1] > 0.3
    assert all(p.grad is None for layer in layers for p in layer.parameters())


def test_greedy_pre_training_leaves_the_layers_below_as_they_are():
    layers, seen = stack((10, 6, 4)), []

    def batch(step):
        seen.append([p.detach().clone() for p in layers[0].parameters()])
        return data(step)

    pretrain(layers, batch, mode="greedy", steps=3)
    # A look at the sizes and three steps of the first layer, then the same of the second.
    assert len(seen) == 8
    assert not torch.equal(seen[1][0], seen[3][0])
    for before, after in zip(seen[4], seen[7], strict=True):
        assert torch.equal(before, after)


def test_pre_training_is_for_deep_networks_only(tmp_path):
    with pytest.raises(ValueError, match="mlp"):
        run_sequence(replace(TINY, pretrain="joint"), tmp_path)


# --- flows


def test_a_study_of_flows_before_and_after_training(tmp_path):
    study = FlowStudy(("rnn+hidden_size=8", "rnn-orthogonal+hidden_size=8", "ham-nmf"), lag=10, seeds=2, steps=10)
    summary = study_flow(study, tmp_path)
    plain, orthogonal, ham = summary["rows"]
    assert [row["status"] for row in summary["rows"]] == ["finished"] * 3
    assert orthogonal["new"]["last"][0] > plain["new"]["last"][0]
    ratios = [np.log10(a / b) for a, b in zip(orthogonal["new"]["last"], plain["new"]["last"], strict=True)]
    assert orthogonal["new"]["factor"]["decades"] == pytest.approx(np.mean(ratios))
    assert orthogonal["orthogonality"][0][1] < 1e-6 < orthogonal["orthogonality"][-1][1]
    assert len(plain["trained"]["gradient"]) == 11
    assert "trained" not in ham
    page = write_flow_report(summary, tmp_path).read_text()
    assert "bound of rnn+hidden_size=8" in page
    assert "nan" not in page.lower().replace("autonan", "")
