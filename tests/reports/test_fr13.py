# SPDX-License-Identifier: Apache-2.0
"""FR-13, export: one graph for every batch and map size, without a random node, and no graph break.

The input and what is right stand in `widefield.testing.graphs`.
"""

from __future__ import annotations

import pytest

from registry import MOVING, NAMES, RANDOM, broken, facts
from widefield.testing.matrix import excuses


def hold(name: str, check: str, **options: int | str) -> None:
    found = broken(name, check, **options)
    if check in excuses(name):
        assert found, f"passes, although excused: {excuses(name)[check]}"
    else:
        assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("name", NAMES)
def test_fr13_export(name: str) -> None:
    hold(name, "exported")


@pytest.mark.parametrize("name", NAMES)
def test_fr13_onnx(name: str) -> None:
    pytest.importorskip("onnxruntime")
    hold(name, "onnx", steps=2)


@pytest.mark.parametrize("name", [name for name in NAMES if facts(name).random_start])
def test_fr13_a_random_start_stays_out_of_the_graph(name: str) -> None:
    hold(name, "exported", **RANDOM, steps=2)


@pytest.mark.parametrize("name", NAMES)
def test_fr13_compile_without_a_graph_break(name: str) -> None:
    hold(name, "compiled", **MOVING)
