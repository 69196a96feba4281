# SPDX-License-Identifier: Apache-2.0
"""`train` over sequences and `gradient-flow` as a person types them."""

from __future__ import annotations

import json

import pytest

from widefield.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("a rose is a rose is a rose. " * 60, encoding="utf-8")


def run(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


SMALL = ("--steps", 3, "--batch-size", 2)


def test_train_an_ntm_to_copy(capsys):
    words = ("train", "--task", "copy", "--model", "ntm+rows=8,lstm", "--length", 3, *SMALL)
    status, out, err = run(capsys, *words)
    assert status == 0
    assert "bit error" in out
    assert "guessing 0.5" in out
    assert "report.html" in err
    status, out, _ = run(capsys, *words, "--json")  # the same settings: nothing is run again
    table = json.loads(out)
    assert [row["network"] for row in table["rows"]] == ["ntm+rows=8", "lstm"]
    assert table["setting"]["longest"] == 3


@pytest.mark.parametrize(
    ("task", "more", "words"),
    [
        ("text", ("--data", "t.txt", "--length", 10), "zlib"),
        ("adding", ("--length", 5), "always 1"),
        ("digits", ("--model", "mlp,mlp+pretrain=greedy"), "the most frequent"),
        ("associative-recall", ("--length", 2, "--curriculum", 0.5), "guessing"),
        ("repeat-copy", ("--length", 2), "longer sequence error"),
    ],
)
def test_every_task_trains(capsys, task, more, words):
    more = more if "--model" in more else (*more, "--model", "gru")
    status, out, err = run(capsys, "train", "--task", task, *SMALL, *more)
    assert status == 0, err
    assert words in out


def test_gradient_flow(capsys):
    status, out, _ = run(
        capsys, "gradient-flow", "--model", "rnn,rnn-orthogonal", "--lag", 5, "--seeds", 2, "--json"
    )
    assert status == 0
    rows = json.loads(out)["rows"]
    assert len(rows[0]["new"]["gradient"]) == 6
    status, out, _ = run(capsys, "gradient-flow", "--model", "rnn,lstm", "--lag", 5, "--seeds", 2)
    assert "times rnn" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--task", "copy", "--model", "lstn"), "Did you mean"),
        (("train", "--task", "copy", "--model", ","), "no model given"),
        (("train", "--task", "text"), "any text file"),
        (("train", "--task", "text", "--data", "nowhere.txt"), "nowhere.txt"),
        (("train", "--task", "copy", "--data", "t.txt"), "leave --data out"),
        (("train", "--task", "copy", "--bands", 4), "--bands belongs to reconstruction"),
        (("train", "--length", 4), "--length belongs to tasks over sequences"),
        (("train", "--task", "digits", "--length", 4), "leave --length out"),
        (("train", "--task", "adding", "--curriculum", 0.5), "leave --curriculum out"),
        (("train", "--task", "copy", "--model", "mlp"), "one length"),
        (("train", "--task", "copy", "--pretrain", "joint"), "mlp"),
        (("gradient-flow", "--model", "lsm"), "Did you mean"),
        (("gradient-flow", "--lag", 1), "lag"),
        (("gradient-flow", "--model", "mlp"), "no steps"),
    ],
)
def test_bad_words_are_one_line_and_status_2(capsys, words, said):
    status, _, err = run(capsys, *words, *(SMALL if words[0] == "train" else ()))
    assert status == 2
    assert said in err
    assert "Traceback" not in err
