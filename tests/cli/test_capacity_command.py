# SPDX-License-Identifier: Apache-2.0
"""`capacity` and `train --task classification` as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from widefield.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


CAPACITY = ("capacity", "--model", "mlp+width=4,mlp+width=6+activation=tanh", "--components", 6, "--samples", 60,
            "--updates", 60, "--seeds", 2, "--start", 4, "--tolerance", 0.2, "--out", "out")  # fmt: skip


def test_capacity_prints_a_table_and_writes_a_report(capsys):
    status, out, err = run(capsys, *CAPACITY, "--gap")
    assert status == 0
    assert "mlp+width=6+activation=tanh" in out
    assert "true labels fit more than twice as many as random ones" in out
    assert "report: out/report.html" in err
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert "Effective" in page or "effective" in page
    assert "Plotly" in page
    status, out, err = run(capsys, *CAPACITY, "--gap", "--json")
    assert status == 0
    table = json.loads(out)
    assert "1 of 4" not in err  # nothing was trained again
    assert [row["parameters"] for row in table["rows"]] == [7 * 4 + 50] * 2 + [7 * 6 + 70] * 2
    for row in table["rows"]:
        assert min(row["capacity"]["values"]) >= 1
        assert (row["variant"] == "semantic") == ("gap" in row)
    assert table["command"].startswith("widefield capacity --model")


def test_a_killed_capacity_resumes_to_the_same_table(capsys, monkeypatch):
    run(capsys, *CAPACITY)
    whole = json.loads(Path("out/table.json").read_text(encoding="utf-8"))
    import widefield.lab.capacity as lab

    real, calls = lab.capacity, []

    def killed(*given, **options):
        def watch(looking):
            calls.append(looking)
            if len(calls) == 25:
                raise KeyboardInterrupt

        return real(*given, **{**options, "watch": watch})

    words = [*CAPACITY[:-1], "again"]
    monkeypatch.setattr(lab, "capacity", killed)
    status, _, err = run(capsys, *words)
    assert status == 130
    assert "Resume with: widefield capacity" in err
    monkeypatch.setattr(lab, "capacity", real)
    assert run(capsys, *words)[0] == 0
    resumed = json.loads(Path("again/table.json").read_text(encoding="utf-8"))
    assert [r["capacity"] for r in resumed["rows"]] == [r["capacity"] for r in whole["rows"]]


def test_capacity_of_a_table_with_a_contradiction(capsys):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(8, 2))  # ten rows of each, labelled at random
    rows = [
        f"{a:.3f},{b:.3f},{c}" for (a, b), c in zip(np.tile(points, (10, 1)), rng.integers(0, 2, 80), strict=True)
    ]
    Path("t.csv").write_text("a,b,kind\n" + "\n".join(rows), encoding="utf-8")
    words = ("capacity", "--data", "t.csv", "--target", "kind", "--model", "mlp+width=16", "--variants",
             "semantic", "--updates", 200, "--seeds", 2, "--start", 2, "--out", "out")  # fmt: skip
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert "equal inputs have different labels" in out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--model", "mpl"), "Did you mean 'mlp'"),
        (("--model", "mlp+widht=3"), "unknown option of mlp 'widht'"),
        (("--model", "cnn", "--components", 4), "use mlp"),
        (("--variants", "semantic,randm"), "random"),
        (("--optimizer", "adma"), "adam"),
        (("--rates", "x"), "--rates takes numbers"),
        (("--data", "nowhere"), "does not exist"),
        (("--tolerance", 2), "tolerance"),
        (("--seeds", 0), "seeds"),
        (("--model", "mlp,mlp"), "each once"),
    ],
)
def test_bad_words_are_one_line(capsys, words, match):
    status, out, err = run(capsys, "capacity", *words)
    assert status == 2
    assert match in err
    assert "Traceback" not in err
    assert not out


TRAIN = ("train", "--task", "classification", "--model", "cnn+width=2,vit+width=8+depth=1+mixer=ff-only",
         "--steps", 6, "--seeds", 2, "--batch-size", 8, "--out", "out")  # fmt: skip


def test_train_classifiers(capsys):
    status, out, err = run(capsys, *TRAIN)
    assert status == 0
    assert "vit+width=8+depth=1+mixer=ff-only" in out
    assert "report: out/report.html" in err
    status, out, err = run(capsys, *TRAIN, "--json")
    table = json.loads(out)
    assert "seed 0: loss" not in err  # finished runs are not done again
    assert len(table["rows"][0]["accuracy"]["values"]) == 2
    assert table["setting"]["shape"] == [1, 8, 8]
    assert 0 <= table["rows"][1]["accuracy"]["mean"] <= 1
    assert "cnn+width=2" in Path("out/report.html").read_text(encoding="utf-8")


def test_train_on_a_table(capsys):
    status, out, _ = run(capsys, "train", "--task", "classification", "--data", "iris", "--steps", 300,
                         "--batch-size", 30, "--out", "out", "--lr", 0.01, "--json")  # fmt: skip
    assert status == 0
    assert json.loads(out)["rows"][0]["accuracy"]["mean"] > 0.9


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            ("--task", "classification", "--bands", 3),
            "--bands belongs to reconstruction, not to the task clas",
        ),
        (("--augment", "timm"), "--augment belongs to classification, not to the task reconstruction"),
        (("--task", "classification", "--size", 8), "--size takes height,width"),
        (("--task", "classification", "--model", "vit+patch=3"), "multiples of the patch"),
    ],
)
def test_bad_words_of_train(capsys, words, match):
    status, _, err = run(capsys, "train", *words)
    assert status == 2
    assert match in err
