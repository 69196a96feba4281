# SPDX-License-Identifier: Apache-2.0
"""The commands as a person types them: output, JSON, one-line errors, exit status."""

import json

import pytest

from widefield.cli import main
from widefield.cli.compare import Compare
from widefield.core.registry import list_modules


def run(capsys, *words):
    status = main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_list_shows_every_module(capsys):
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert all(name in out for name in list_modules())


def test_list_filters_and_speaks_json_and_markdown(capsys):
    status, out, _ = run(capsys, "list", "hamburger-v2-*", "--json")
    assert status == 0
    assert [row["name"] for row in json.loads(out)] == ["hamburger-v2-cd", "hamburger-v2-nmf", "hamburger-v2-vq"]
    _, out, _ = run(capsys, "list", "--family", "attention", "--markdown")
    assert out.count("\n") == 2 + len(list_modules(family="attention"))


def test_describe(capsys):
    status, out, _ = run(capsys, "describe", "hamburger-nmf")
    assert status == 0
    assert "arXiv:2109.04553" in out
    assert "gradient = 'one_step'" in out
    _, out, _ = run(capsys, "describe", "hamburger-nmf", "--json")
    assert json.loads(out)["options"]["rank"] == 64


def test_cost_agrees_with_arithmetic(capsys):
    status, out, _ = run(capsys, "cost", "nonlocal", "--shape", "1,64,8,8", "--backward", "--no-latency", "--json")
    assert status == 0
    (row,) = json.loads(out)
    n, c, d = 64, 64, 32
    # theta, phi, g and W; then two n x n products
    assert row["multiply_adds"] == 4 * n * c * d + 2 * n * n * d
    # weights and biases, and scale and shift of the norm
    assert row["parameters"] == 4 * c * d + 3 * d + c + 2 * c
    assert row["latency_forward_s"] is None
    status, out, _ = run(capsys, "cost", "nonlocal", "hamburger-nmf+rank=8", "--shape", "1,64,8,8", "--no-latency")
    assert "hamburger-nmf+rank=8" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("describe", "hamburgr-nmf"), "Did you mean 'hamburger-nmf'"),
        (("list", "xyz*"), "no module matches"),
        (("list", "--family", "atention"), "Did you mean 'attention'"),
        (("cost", "nonlocal", "--shape", "1,a"), "whole numbers"),
        (("cost", "nonlocal", "--shape", "1,64"), "b,c,h,w"),
        (("cost", "--shape", "1,64,8,8"), "at least one module"),
        (("cost", "nonlocal+iner=3", "--shape", "1,64,8,8"), "Did you mean 'inner'"),
        (("cost", "nonlocal+inner", "--shape", "1,64,8,8"), "name=value"),
        (("cost", "nonlocal", "--threads", "0"), "--threads"),
        (("cost", "nonlocal", "--device", "tpuu", "--no-latency"), "tpuu"),
        (("compare", "--data", "/does/not/exist"), "/does/not/exist"),
        (("compare", "--modules", "none,nonlocl"), "Did you mean 'nonlocal'"),
        (("compare", "--modules", "none,none"), "stands twice"),
        (("compare", "--modules", ","), "no modules"),
        (("compare", "--seeds", "0"), "seeds must be at least 1"),
        (("compare", "--steps", "0"), "steps"),
        (("compare", "--backbone", "resnet18x"), "resnet18"),
        (("compare", "--gradient", "onestep"), "one_step"),
        (("compare", "--crop", "3"), "--crop"),
        (("compare", "--crop", "0,0"), "at least 1"),
        (("compare", "--batch-size", "0"), "batch_size"),
        (("compare", "--rank", "0"), "rank"),
        (("compare", "--lr", "-1"), "lr must be positive"),
        (("compare", "--modules", "none,hamburger-nmf+width=0"), "widths must be at least 1"),
        (("compare", "--out", "/dev/null/x"), "/dev/null"),
        (("compare", "--backbone", "resnet18", "--pretrained", __file__), "cannot be read as weights"),
    ],
)
def test_bad_words_give_one_line_and_status_two(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("widefield:")]) == 1


@pytest.mark.parametrize("words", [("nonsense",), ("cost", "--nonsense"), ("compare", "--seeds", "two")])
def test_words_that_cannot_be_parsed(capsys, words):
    status, _, err = run(capsys, *words)
    assert status == 2
    assert "Traceback" not in err


def test_compare_end_to_end_and_again(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("compare", "--modules", "none,global-average,hamburger-nmf", "--seeds", "2", "--steps", "2",
             "--batch-size", "2", "--width", "8", "--out", "out")  # fmt: skip
    status, out, err = run(capsys, *words)
    assert status == 0
    assert "no context module can be told from none" in out
    assert "report:" in err
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "hamburger-nmf" in page
    first = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["module"] for row in first["rows"]] == ["none", "global-average", "hamburger-nmf"]
    assert all(len(row["values"]) == 2 for row in first["rows"])
    status, out, _ = run(capsys, *words, "--json")
    assert status == 0
    second = json.loads(out)
    assert second["rows"] == first["rows"]


def test_a_timm_backbone_takes_pictures_of_several_sizes(capsys, tmp_path, monkeypatch):
    import numpy as np
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    for folder in ("images", "masks"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
    for i in range(8):
        h, w = 32 + i, 40 - i
        Image.fromarray(np.full((h, w, 3), 20 * i, np.uint8)).save(tmp_path / f"photos/images/{i}.png")
        Image.fromarray((np.arange(h * w).reshape(h, w) % 3).astype(np.uint8)).save(
            tmp_path / f"photos/masks/{i}.png"
        )
    words = ("compare", "--data", "photos", "--backbone", "resnet18", "--pretrained", "none", "--modules", "none",
             "--seeds", "1", "--steps", "1", "--batch-size", "2", "--width", "8", "--out", "out")  # fmt: skip
    status, out, _ = run(capsys, *words, "--json")
    assert status == 0
    assert json.loads(out)["setting"]["frozen_backbone"] is False
    status, _, err = run(capsys, *words, "--freeze-backbone", "True")
    assert status == 2
    assert err.count("frozen features need pictures of one size") == 1


def test_ctrl_c_says_how_to_resume(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("widefield.lab.comparison.compare", interrupt)
    status, _, err = run(capsys, "compare", "--steps", "7", "--modules", "none,emau")
    assert status == 130
    assert "widefield compare --modules none,emau --steps 7 --out runs/compare-scenes-" in err


def test_the_resume_command_means_the_same_comparison():
    asked = Compare(steps=7, modules="none,emau", closed_gates=True, freeze_backbone=False)
    words = asked.resume()
    assert "--closed-gates" in words
    assert "--freeze-backbone False" in words
    assert str(asked.folder) in words
