# SPDX-License-Identifier: Apache-2.0
"""The catalogue shows what the instruments measure. `python tests/cli/test_figures.py` writes its figures anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import widefield.cli
from widefield import list_modules
from widefield.cli.figures import FILE, measured, render

PATH = Path(widefield.cli.__file__).parent / FILE
SHIPPED = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}


def test_every_module_has_figures_and_no_other():
    assert list(SHIPPED) == list_modules()


@pytest.mark.parametrize("name", SHIPPED)
def test_the_figures_are_measured(name):
    found = measured(name)
    for key in ("parameters", "multiply_adds"):
        assert found[key] == SHIPPED[name][key]
    for key in ("memory_forward", "memory_training"):  # other versions of torch may save other tensors
        assert found[key] == pytest.approx(SHIPPED[name][key], rel=0.02)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
