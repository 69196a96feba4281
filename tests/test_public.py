# SPDX-License-Identifier: Apache-2.0
"""The public face: its names, what importing it costs, and which room may know which."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "widefield"
SURFACE = HERE / "api_surface.json"
# From the top floor to the ground; rooms of one floor do not know each other.
FLOORS = [
    {"cli"}, {"claims"}, {"lab"}, {"tasks"}, {"models"}, {"data"}, {"weights"}, {"testing"}, {"measure"},
    {"attention", "decomposition", "graph", "pooling"}, {"mixing", "sequence", "imaging"}, {"implicit"}, {"core"},
]  # fmt: skip
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))


def public_names(path: Path) -> list[str]:
    """What an `__init__` re-exports: `from ... import X as X`, or `__all__`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        alias.asname
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None and alias.asname == alias.name
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            names |= set(ast.literal_eval(node.value))
    return sorted(names)


def imported(path: Path) -> set[str]:
    """Every module of the package that a file names in an import statement, absolute."""
    package = ["widefield", *path.relative_to(SOURCE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "widefield" else {module}
    return {name for name in found if name.split(".")[0] == "widefield"}


def surface() -> dict[str, list[str]]:
    faces = {"widefield": SOURCE / "__init__.py"}
    faces |= {f"widefield.{room}": SOURCE / room / "__init__.py" for room in sorted(FLOOR)}
    return {name: public_names(path) for name, path in faces.items() if path.exists() and name != "widefield.cli"}


def test_the_public_names_are_the_recorded_ones() -> None:
    """To change them on purpose: `python tests/test_public.py` writes the record anew."""
    assert surface() == json.loads(SURFACE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", surface())
def test_the_public_names_exist(name: str) -> None:
    module = __import__(name, fromlist=["_"])
    for public in surface()[name]:
        assert getattr(module, public) is not None
    assert module.__doc__


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_it_loads_torch_and_itself_alone() -> None:
    """No clock: a module beyond torch's own is what would cost time."""
    code = "import sys, torch; before = set(sys.modules); import widefield; print(*(set(sys.modules) - before))"
    loaded = run(code)
    assert {name.split(".")[0] for name in loaded} - {"widefield"} <= set(sys.stdlib_module_names)
    assert len(loaded) < 40


def test_building_a_module_needs_torch_alone() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import widefield; "
        "[widefield.create(name, 64) for name in widefield.list_modules()]; print(*(set(sys.modules) - before))"
    )
    loaded = {name.split(".")[0] for name in run(code)} - {"widefield"}
    heavy = {
        "timm",
        "torchvision",
        "torchmetrics",
        "sklearn",
        "scipy",
        "tyro",
        "rich",
        "plotly",
        "jinja2",
        "einops",
    }
    assert not loaded & (heavy | {"lightning_fabric", "safetensors", "PIL", "onnx", "onnxruntime"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_from_rooms_below_it_only(path: Path) -> None:
    parts = path.relative_to(SOURCE).parts
    for module in imported(path):
        target = module.split(".")[1] if "." in module else "widefield"
        if len(parts) == 1:
            assert target in ("core", "_version", "widefield"), f"the package itself imports {module}"
        elif target not in (parts[0], "_version"):
            assert target in FLOOR, f"{module} is no room"
            assert FLOOR[target] > FLOOR[parts[0]], f"{parts[0]} imports {module}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_how_a_file_reads(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(ast.parse(text)) or path.name == "_version.py"
    assert len(text.splitlines()) <= 400


if __name__ == "__main__":
    SURFACE.write_text(json.dumps(surface(), indent=1) + "\n", encoding="utf-8")
