# SPDX-License-Identifier: Apache-2.0
"""The README's table is the one that the command prints, and its snippets run."""

import re
from pathlib import Path

import pytest
import torch

import widefield
from widefield.cli import main
from widefield.models.tokens import list_classifiers

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_table_of_modules_is_up_to_date(capsys):
    assert main(["list", "--markdown"]) == 0
    assert capsys.readouterr().out.strip() in README, "run `widefield list --markdown` and put its output there"


def test_the_first_snippet_runs():
    (snippet,) = [s for s in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "widefield.create" in s]
    names: dict = {}
    exec(snippet, names)
    assert names["y"].shape == (1, 512, 33, 47)


def test_the_fixed_point_snippet_runs():
    (snippet,) = [s for s in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "fixed_point" in s]
    width = 4
    names = {"torch": torch, "W": 0.1 * torch.eye(width), "x": torch.ones(2, width), "z0": torch.zeros(2, width)}
    exec(snippet, names)
    assert torch.allclose(names["z"], torch.tanh(names["z"] @ names["W"].T + names["x"]), atol=1e-4)


def test_the_sequence_snippet_runs():
    (snippet,) = [s for s in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "GridLSTM" in s]
    names: dict = {}
    exec(snippet, names)
    assert names["y"].shape == (4, 50, 64)
    assert not names["y"][2, 7:].any()
    assert names["grid"].shape == (1, 64, 64, 64)


def test_the_snapshot_snippet_runs():
    (snippet,) = [s for s in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "Snapshot" in s]
    mask, scene = (torch.rand(16, 16) < 0.5).float(), torch.rand(1, 28, 16, 16)
    names: dict = {"mask": mask, "scene": scene}
    exec(snippet, names)
    assert names["cube"].shape == scene.shape
    assert names["network"](torch.rand(1, 16, 70), names["operator"].phi).shape == scene.shape


def test_the_snippet_of_token_networks_runs():
    (snippet,) = [s for s in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "create_classifier" in s]
    names: dict = {}
    with torch.device("meta"):
        exec(snippet, names)
        for name, edge in (("mixer", 224), ("larger", 256), ("context", 224)):
            assert names[name](torch.empty(1, 3, edge, edge)).shape == (1, 10)
    assert names["merged"].merged
    assert f"{len(list_classifiers())} published networks" in README


@pytest.mark.parametrize("name", ["create", "list_modules", "describe"])
def test_the_names_of_the_readme_exist(name):
    assert hasattr(widefield, name)
