# SPDX-License-Identifier: Apache-2.0
"""The contract suite finds what it promises to find, says so, and leaves sound modules alone."""

from __future__ import annotations

import faulty
import pytest
import torch
from torch import nn

from widefield import UnknownName
from widefield.testing import CHECKS, ContractError, check_context, find_broken

# Every planted fault and the checks that must find it (others may break with it).
FAULTS: list[tuple[type[nn.Module], set[str]]] = [
    (faulty.SeesItsNeighbours, {"batch_independence"}),
    (faulty.WritesIntoItsInput, {"input_untouched"}),
    (faulty.SharesMemory, {"input_untouched"}),
    (faulty.DrawsInEvaluation, {"repeats", "exported"}),
    (faulty.DividesByItsLength, {"extremes"}),
    (faulty.OneSize, {"sizes", "exported"}),
    (faulty.CreatesState, {"state"}),
    (faulty.MovesInEvaluation, {"state"}),
    (faulty.WrongGradient, {"gradcheck"}),
    (faulty.HalfSum, {"autocast"}),
    (faulty.BreaksTheGraph, {"compiled", "exported"}),
    (faulty.UnusedParameter, {"distributed"}),
    (faulty.NeedsABatch, {"batch_of_one"}),
    (faulty.LayoutMatters, {"layouts"}),
    (faulty.TwiceWhenReplayed, {"checkpointing"}),
]


def test_a_sound_module_passes_every_check() -> None:
    check_context(faulty.Sound)
    check_context(lambda channels: nn.Conv2d(channels, 2 * channels, 3, padding=1), channels=5, dims=(2,))


@pytest.mark.parametrize(("build", "expected"), FAULTS, ids=[build.__name__ for build, _ in FAULTS])
def test_a_planted_fault_is_caught(build: type[nn.Module], expected: set[str]) -> None:
    found = {broken.check for broken in find_broken(build, checks=expected)}
    assert expected <= found, f"missed {expected - found}"


def test_one_error_lists_every_broken_check_with_its_input() -> None:
    class Two(faulty.DividesByItsLength, faulty.CreatesState):
        pass

    with pytest.raises(ContractError) as error:
        check_context(Two, checks=["sizes", "extremes", "state"])
    text = str(error.value)
    assert text.startswith(f"Two breaks 2 of {len(CHECKS)} checks (extremes, state):")
    assert "extremes: zeros (2, 16, 7, 9), evaluation: the output is not finite" in text
    assert "state: randn(2, 16, 7, 9), evaluation: the forward created last (buffer)" in text
    assert {b.check for b in error.value.broken} == {"extremes", "state"}


def test_an_excuse_must_be_needed() -> None:
    check_context(faulty.WrongGradient, checks=["sizes", "gradcheck"], excused={"gradcheck": "by design"})
    with pytest.raises(ContractError, match=r"kept, although excused \(by design\)"):
        check_context(faulty.Sound, checks=["gradcheck"], excused={"gradcheck": "by design"})


def test_a_module_tied_to_a_size_is_checked_at_that_size() -> None:
    assert {b.check for b in find_broken(faulty.OneSize, space=(7, 9))} == {"sizes", "exported", "onnx"}
    assert "batch_of_one" in {b.check for b in find_broken(faulty.OneSize, space=(5, 5), checks=["batch_of_one"])}


def test_words() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'extremes'"):
        check_context(faulty.Sound, checks=["extreme"])
    with pytest.raises(UnknownName, match="'onx'"):
        check_context(faulty.Sound, excused={"onx": "?"})

    def broken_build(channels: int) -> nn.Module:
        raise RuntimeError("no such layer")

    with pytest.raises(ContractError, match=r"build\(16\): RuntimeError: no such layer"):
        check_context(broken_build)


def test_the_global_generator_and_the_default_dtype_stay_as_they_are() -> None:
    before = torch.get_rng_state()
    check_context(faulty.Sound, checks=[name for name in CHECKS if name not in ("onnx", "distributed")])
    assert torch.equal(torch.get_rng_state(), before)
