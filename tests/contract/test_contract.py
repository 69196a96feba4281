# SPDX-License-Identifier: Apache-2.0
"""`widefield.testing` over the whole registry: every cell of docs/contract.md, both ways.

`exported`, `onnx` and `compiled` are run as FR-13, in tests/reports/test_fr13.py.

`PYTHONPATH=tests python tests/contract/test_contract.py` writes docs/contract.md anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import widefield
from registry import NAMES, broken, warm
from widefield.testing import CHECKS, check_context
from widefield.testing.matrix import dimensions, excuses, render

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
HEAD = """# What each module keeps

Every registered module is held to `widefield.testing.check_context`, which takes anybody's module too. ✓: the
check passes with default options, gate open. A number: the mathematics forbids it, for the reason below the table;
then the test makes sure that it really fails. Written by
`PYTHONPATH=tests python tests/contract/test_contract.py`.

"""


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in ("exported", "onnx", "compiled")])
@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, check: str) -> None:
    found = broken(name, check) if check != "gradcheck" else broken(name, check, (2, 3), rank=3, **warm(name))
    if check in excuses(name):
        assert found, f"passes, although excused: {excuses(name)[check]}"
    else:
        assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_does_not_take_every_number_of_dimensions_says_why(name: str) -> None:
    claimed, reason = dimensions(name)
    assert bool(reason) == (claimed != "1, 2, 3")


def test_the_page_is_what_the_tests_hold() -> None:
    assert PAGE.read_text(encoding="utf-8") == HEAD + render()


def test_layers_of_others_go_through_the_same_suite() -> None:
    """torch's own attention; and one of timm's, which is sound but for what its sizes forbid."""
    layers = pytest.importorskip("timm.layers")
    check_context(lambda channels: layers.GlobalContext(channels, rd_ratio=0.5), dims=(2,))
    check_context(lambda channels: torch.nn.Conv2d(channels, channels, 1), dims=(2,))


def test_an_unregistered_name_has_no_excuses() -> None:
    with pytest.raises(widefield.UnknownName):
        excuses("nonlokal")


if __name__ == "__main__":
    PAGE.write_text(HEAD + render(), encoding="utf-8")
