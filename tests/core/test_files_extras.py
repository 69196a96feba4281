# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all; missing extras that name their install command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from widefield.core.extras import require
from widefield.core.files import read_json, write_bytes, write_json, write_text


def test_round_trip_and_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    write_json(path, {"b": [1, 2.5, None], "a": "ü"})
    assert read_json(path) == {"a": "ü", "b": [1, 2.5, None]}
    first = path.read_bytes()
    write_json(path, {"a": "ü", "b": [1, 2.5, None]})
    assert path.read_bytes() == first
    write_text(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]


def test_a_kill_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_bytes(path, b"old")

    def killed(*args: object) -> None:
        assert path.read_bytes() == b"old", "the target is touched by the rename only"
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, killed)
            with pytest.raises(KeyboardInterrupt):
                write_bytes(path, b"new")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path], "no part is left behind"


def test_nan_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "record.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"record\.json is not valid JSON .*delete it"):
        read_json(path)


def test_a_missing_extra_names_its_install_command() -> None:
    with pytest.raises(
        ImportError, match=r"'no_such_library\.part' is needed here.*pip install 'widefield\[models\]'"
    ):
        require("no_such_library.part", "models")
    assert require("json", "models").loads("1") == 1


def test_a_library_that_is_there_but_broken_keeps_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_library.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="No module named 'something_it_needs'"):
        require("broken_library", "models")
