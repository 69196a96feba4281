# SPDX-License-Identifier: Apache-2.0
"""The plain versions that the benchmarks measure against compute what the modules compute."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from benchmarks.plain import plain_versions

from registry import NAMES, build, facts, randn

PLAIN = plain_versions()


def test_every_module_has_a_plain_version() -> None:
    assert list(PLAIN) == NAMES


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_version_computes_the_same(name: str) -> None:
    unrolled = {"gradient": "unrolled"} if facts(name).iterative and not facts(name).exact_gradient else {}
    module = build(name, 16, dropout=0.0, size=(9, 11), **unrolled).double().train()
    copy = deepcopy(module)  # batch norm moves its statistics in both
    inputs = [randn(2, 16, 9, 11, dtype=torch.float64).requires_grad_() for _ in range(2)]
    outputs = [module(inputs[0]), PLAIN[name](copy, inputs[1])]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-9)
    cotangent = randn(*outputs[0].shape, seed=1, dtype=torch.float64)
    found = []
    for part, x, y in zip((module, copy), inputs, outputs, strict=True):
        given = [x, *(p for p in part.parameters() if p.requires_grad)]
        gradients = torch.autograd.grad(y, given, cotangent, allow_unused=True)
        found.append([torch.zeros_like(p) if g is None else g for p, g in zip(given, gradients, strict=True)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-8, atol=1e-8)
