# SPDX-License-Identifier: Apache-2.0
"""`pytest tests/parity --goldens DIR`: one test for each `.npz` below DIR."""

from __future__ import annotations

from pathlib import Path

import pytest

DEFAULT = Path(__file__).parent.parent / "goldens"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--goldens", metavar="DIR", help=f"folder of golden cases, searched recursively (default {DEFAULT.name})"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden" not in metafunc.fixturenames:
        return
    folder = Path(metafunc.config.getoption("--goldens", default=None) or DEFAULT)
    files = sorted(folder.rglob("*.npz"))
    if not files:
        raise pytest.UsageError(f"no golden cases (*.npz) below {folder.resolve()}")
    metafunc.parametrize("golden", files, ids=[file.stem for file in files])
