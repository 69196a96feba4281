# SPDX-License-Identifier: Apache-2.0
"""What is left of a module when its Python is taken away: compile, export, ONNX."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from widefield.core.extras import require
from widefield.testing.behaviour import close, finite
from widefield.testing.subject import Subject, check

RANDOM_NODES = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial")


@check
def compiled(s: Subject) -> None:
    """`torch.compile(fullgraph=True)` has no graph break and changes no number, in training and evaluation."""
    for train in (False, True):
        x = s.randn().requires_grad_(train)
        with s.given(f"randn{tuple(x.shape)}, {'training' if train else 'evaluation'}"), torch.random.fork_rng():
            torch.compiler.reset()
            torch.manual_seed(0)
            expected = s.build().train(train)(x)
            torch.manual_seed(0)
            y = torch.compile(s.build().train(train), fullgraph=True, backend="eager")(x)
            close(y, expected, 1e-4, "the output")
            if train:
                y.sum().backward()
                assert x.grad is not None, "the input has no gradient"
                finite(x.grad, "the gradient of the input")


def _export(s: Subject) -> tuple[nn.Module, torch.export.ExportedProgram, list[tuple[int, ...]]]:
    """Traced at one size, with the batch and every axis of the map dynamic; sizes to try it at."""
    module = s.build().eval()
    # Not named dimensions: torch takes a size that could be 1 for one that is not, so a module that works on a
    # reduced map serves maps from some size on, which is for torch to find.
    dynamic = dict.fromkeys((0, *range(2, 2 + len(s.space))), torch.export.Dim.AUTO)
    traced = tuple(n + n % 2 for n in s.space)
    program = torch.export.export(module, (s.randn(2, s.channels, *traced),), dynamic_shapes=(dynamic,))
    others = [(3, s.channels, *(n + 2 for n in traced)), (1, s.channels, *(n + 5 for n in reversed(traced)))]
    return module, program, others


@check
def exported(s: Subject) -> None:
    """`torch.export` with dynamic batch and map gives the eager numbers at other sizes, and no random node."""
    with s.given(f"randn(2, {s.channels}, *space), every axis but the channels dynamic"):
        module, program, others = _export(s)
        graph = program.module()
        for shape in others:
            x = s.randn(*shape, seed=1)
            close(graph(x), module(x), 1e-4, f"the output at {shape}")
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        drawn = [
            str(node.target)
            for node in calls
            if any(word in str(node.target) for word in RANDOM_NODES) and node.args[-1] is not False
        ]
        assert not drawn, f"random nodes in the graph: {', '.join(drawn)}"


def onnx_session(program: torch.export.ExportedProgram) -> Any:
    """The exported program as a session of onnxruntime on one thread."""
    runtime = require("onnxruntime", "export")
    require("onnxscript", "export")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = torch.onnx.export(program, verbose=False)
    assert graph is not None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(
        graph.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@check
def onnx(s: Subject) -> None:
    """ONNX Runtime computes the eager numbers to 1e-4 at other sizes, and repeats itself."""
    with s.given(f"randn(2, {s.channels}, *space), every axis but the channels dynamic"):
        module, program, others = _export(s)
        session = onnx_session(program)
        (given,) = session.get_inputs()
        for shape in others:
            x = s.randn(*shape, seed=1)
            (first,), (second,) = (session.run(None, {given.name: x.numpy()}) for _ in range(2))
            close(torch.from_numpy(first), module(x), 1e-4, f"the output at {shape}")
            assert (first == second).all(), f"a second run at {shape} gives another answer"
