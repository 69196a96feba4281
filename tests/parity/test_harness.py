# SPDX-License-Identifier: Apache-2.0
"""The parity test itself: does it notice a deviation, and say which?"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import adapters  # noqa: F401  (registers)
import numpy as np
import pytest
import torch
from golden import ADAPTERS, Case, compare, deviation, load_case

GOLDENS = Path(__file__).parent.parent / "goldens"


def lines(case: Case) -> list[str]:
    return compare(case, ADAPTERS[case.module](case))


@pytest.fixture
def case() -> Case:
    return load_case(GOLDENS / "nonlocal-embedded-gaussian.npz")


def test_an_untouched_case_passes(case: Case) -> None:
    assert lines(case) == []


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("outputs", "y"),
        ("buffers", "W.1.running_mean"),
        ("gradients", "x"),
        ("gradients", "phi.weight"),
    ],
)
def test_one_number_off_by_ten_tolerances_is_named(case: Case, part: str, name: str) -> None:
    wrong = {key: value.clone() for key, value in getattr(case, part).items()}
    wrong[name].view(-1)[3] += 1e-5 * wrong[name].abs().max()
    (line,) = lines(replace(case, **{part: wrong}))
    assert name in line
    assert "1.00e-05" in line


def test_what_the_replay_lacks_is_named(case: Case) -> None:
    extra = {"bases": torch.zeros(3)}
    assert "bases: the replay does not produce it" in lines(replace(case, outputs={**case.outputs, **extra}))[0]
    assert "omega" in lines(replace(case, gradients={**case.gradients, "omega": torch.ones(3)}))[0]


def test_a_gradient_that_must_not_be(case: Case) -> None:
    (line,) = lines(replace(case, meta={**case.meta, "no_gradient": ["phi.weight"]}))
    assert "phi.weight (must have none)" in line


def test_shape_and_nan_do_not_pass() -> None:
    assert deviation(torch.zeros(3), torch.zeros(4)) == float("inf")
    assert deviation(torch.zeros(3), torch.zeros(3)) == 0
    assert not deviation(torch.tensor([float("nan")]), torch.ones(1)) <= 1
    assert deviation(torch.full((2,), 1e-20), torch.zeros(2)) == float("inf")
    assert deviation(torch.full((2,), 1e-20), torch.zeros(2), floor=1.0) < 1e-12


def test_a_state_under_other_names_is_refused(case: Case) -> None:
    state = {name.replace("theta", "tehta"): value for name, value in case.state.items()}
    with pytest.raises(ValueError, match=r"missing: theta\.weight.*unknown: tehta\.weight"):
        lines(replace(case, state=state))


def test_a_file_that_is_no_case(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="meta"):
        load_case(tmp_path / "a.npz")


def test_any_folder_is_searched_and_a_missing_module_is_expected(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    meta = json.dumps({"module": "lambda-layer", "config": {}, "mode": "eval"})
    np.savez(below / "unheard-of.npz", meta=np.array(meta))
    (below / "ppm.npz").write_bytes((GOLDENS / "ppm-eval.npz").read_bytes())
    status, said = run_parity(tmp_path)
    assert status == 0
    assert "1 passed, 1 xfailed" in said
    assert "test_golden[unheard-of] - the module 'lambda-layer' does not exist yet" in said


def test_a_folder_without_cases_is_an_error(tmp_path: Path) -> None:
    status, said = run_parity(tmp_path)
    assert status != 0
    assert "no golden cases" in said


def run_parity(folder: Path) -> tuple[int, str]:
    test = Path(__file__).parent / "test_parity.py"
    command = [sys.executable, "-m", "pytest", str(test), f"--goldens={folder}", "-rx", "-v"]
    done = subprocess.run(command, cwd=test.parent.parent.parent, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
