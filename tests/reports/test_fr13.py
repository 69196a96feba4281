# SPDX-License-Identifier: Apache-2.0
"""FR-13, export: one graph for every batch and map size, without a random node, and no graph break."""

from __future__ import annotations

import io
import warnings

import pytest
import torch

from registry import MOVING, NAMES, RANDOM, build, facts, randn, smallest_side

EXAMPLE = (2, 16, 8, 12)
RANDOM_NODES = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial")
OTHER = [(3, 16, 7, 10), (1, 16, 12, 5)]


def export(name: str, **options: int | str) -> tuple[torch.nn.Module, torch.export.ExportedProgram]:
    module = build(name, 16, size=EXAMPLE[2:], **options).eval()
    dynamic = {0: torch.export.Dim("b")}
    if not facts(name).fixed_size:
        dynamic |= {axis: torch.export.Dim(f"side{axis}", min=smallest_side(name)) for axis in (2, 3)}
    return module, torch.export.export(module, (randn(*EXAMPLE),), dynamic_shapes=(dynamic,))


def others(name: str) -> list[tuple[int, ...]]:
    """Shapes that were not exported; of another batch alone where the size is fixed."""
    return [(b, *EXAMPLE[1:]) for b in (3, 1)] if facts(name).fixed_size else OTHER


def random_nodes(program: torch.export.ExportedProgram) -> list[str]:
    """Nodes that draw numbers; a dropout whose last argument is False does not."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return [
        str(node.target)
        for node in calls
        if any(word in str(node.target) for word in RANDOM_NODES) and node.args[-1] is not False
    ]


@pytest.mark.parametrize("name", NAMES)
def test_fr13_export(name: str) -> None:
    module, program = export(name)
    exported = program.module()
    for shape in others(name):
        x = randn(*shape, seed=1)
        y = exported(x)
        torch.testing.assert_close(y, module(x), rtol=0, atol=1e-4)
        assert torch.equal(exported(x), y)
    assert not random_nodes(program)


@pytest.mark.parametrize("name", NAMES)
def test_fr13_onnx(name: str) -> None:
    """The list of those that ONNX cannot express is exact."""
    onnxruntime = pytest.importorskip("onnxruntime")
    module, program = export(name, steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not facts(name).exportable:
            with pytest.raises(torch.onnx.OnnxExporterError):
                torch.onnx.export(program, verbose=False)
            return
        graph = torch.onnx.export(program, verbose=False)
    assert graph is not None
    content = io.BytesIO()
    graph.save(content)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content.getvalue(), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    for shape in others(name):
        x = randn(*shape, seed=1)
        (first,), (second,) = (session.run(None, {given.name: x.numpy()}) for _ in range(2))
        torch.testing.assert_close(torch.from_numpy(first), module(x).detach(), rtol=0, atol=1e-4)
        assert (first == second).all()


@pytest.mark.parametrize("name", [name for name in NAMES if facts(name).random_start])
def test_fr13_a_random_start_stays_out_of_the_graph(name: str) -> None:
    _, program = export(name, **RANDOM, steps=2)
    assert not random_nodes(program)


@pytest.mark.parametrize("name", NAMES)
def test_fr13_compile_without_a_graph_break(name: str) -> None:
    torch.compiler.reset()
    module = build(name, 16, size=EXAMPLE[2:], **MOVING, dropout=0.0)
    for train in (False, True):
        module.train(train)
        x = randn(*EXAMPLE).requires_grad_(train)
        state = {key: value.clone() for key, value in module.state_dict().items()}
        expected = module(x)
        module.load_state_dict(state)
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        y = compiled(x)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-4)
        if train:
            y.sum().backward()
            assert torch.isfinite(x.grad).all()
