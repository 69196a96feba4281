# SPDX-License-Identifier: Apache-2.0
"""The examples run and do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_deep_equilibrium() -> None:
    assert load("deep_equilibrium").main() > 0.85


def test_is_attention_needed() -> None:
    example = load("is_attention_needed")
    classes = torch.arange(40) % 10
    painted = classes[:, None, None].expand(-1, 8, 8).float()
    x, same = example.pairs(painted, classes, 500, torch.Generator().manual_seed(0))
    assert x.shape == (500, 1, 8, 16)
    assert torch.equal(x[:, 0, 0, 0] == x[:, 0, 0, 15], same.bool())
    assert 0.4 < same.float().mean() < 0.6
    assert abs(example.main(["none"], steps=20, seeds=1)["none"] - 0.5) < 0.05
    assert example.main(["mlp-mixer"], steps=400, seeds=1)["mlp-mixer"] > 0.65


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.stem}"' in text for path in EXAMPLES.glob("*.py"))
