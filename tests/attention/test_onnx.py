# SPDX-License-Identifier: Apache-2.0
"""Attention and pooling through ONNX, at a size that was not exported."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import widefield
from registry import build, facts

NAMES = widefield.list_modules(family="attention") + widefield.list_modules(family="pooling")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_onnx(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    caplog.set_level(logging.ERROR)
    module = build(name, 8, rates=(2, 3), size=(12, 9)).eval()
    free, size = ((0,), (12, 9)) if facts(name).fixed_size else ((0, 2, 3), (7, 10))
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 8, 12, 9, generator=generator), torch.randn(3, 8, *size, generator=generator)
    dynamic = dict.fromkeys(free, torch.export.Dim.DYNAMIC)
    program = torch.onnx.export(module, (x,), dynamo=True, dynamic_shapes=(dynamic,), verbose=False)
    assert program is not None
    program.save(tmp_path / "module.onnx")
    session = runtime.InferenceSession(str(tmp_path / "module.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    np.testing.assert_allclose(found, module(other).detach().numpy(), atol=1e-4)
