# SPDX-License-Identifier: Apache-2.0
"""Every golden case, forward and backward, in float64 against the original implementation."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from golden import ADAPTERS, compare, load_case

import widefield

for file in Path(__file__).parent.glob("adapters*.py"):
    importlib.import_module(file.stem)


def test_golden(golden: Path) -> None:
    case = load_case(golden)
    if case.module not in ADAPTERS:
        assert case.module not in widefield.list_modules(), f"{case.module} exists and has no parity adapter"
        pytest.xfail(f"the module {case.module!r} does not exist yet")
    wrong = compare(case, ADAPTERS[case.module](case))
    assert not wrong, "\n".join(wrong)
