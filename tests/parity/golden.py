# SPDX-License-Identifier: Apache-2.0
"""Golden cases: numbers made by running original implementations, and how a widefield module replays one.

A case is an `.npz` with `meta` (JSON: module, config, mode, no_gradient, ...), `state/*`, `in/*`, `cotangent/*`
and the reference's `out/*`, `out/buffer/*` and `grad/*`. An adapter is a function from a case to a `Replay`,
registered under the case's module; configuration is data, so one adapter serves all cases of its module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from widefield.weights import load_reference, reference_names

TOLERANCE = 1e-6
_THROUGH = "_through_"
NOISE = 1e-12  # a gradient that is zero in exact arithmetic is rounding noise of this size against the others

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One golden file. Values are float64 made from the float32 on disk."""

    path: Path
    meta: dict[str, Any]
    state: Tensors
    inputs: Tensors
    outputs: Tensors
    buffers: Tensors
    cotangents: Tensors
    gradients: Tensors

    @property
    def module(self) -> str:
        return self.meta["module"]

    @property
    def config(self) -> dict[str, Any]:
        return self.meta["config"]

    @property
    def training(self) -> bool:
        return self.meta["mode"] == "train"


@dataclass
class Replay:
    """How to run a case.

    Attributes:
        module: built from the configuration; any for a function, which has no state.
        source: the naming of its state; None for a function.
        run: named inputs to named outputs; by default `{"y": module(x)}`.
        unrelated: outputs of the case that were not made from its inputs; they are not compared.
    """

    module: nn.Module
    source: str | None
    run: Callable[[Tensors], Tensors] | None = None
    unrelated: frozenset[str] = frozenset()


ADAPTERS: dict[str, Callable[[Case], Replay]] = {}


def adapter(*modules: str) -> Callable[[Callable[[Case], Replay]], Callable[[Case], Replay]]:
    """Registers the function below it for cases of these modules."""

    def add(build: Callable[[Case], Replay]) -> Callable[[Case], Replay]:
        for name in modules:
            ADAPTERS[name] = build
        return build

    return add


def load_case(path: Path) -> Case:
    """Reads a file; a file that is no case says so."""
    parts: dict[str, Tensors] = {"state": {}, "in": {}, "out": {}, "buffer": {}, "cotangent": {}, "grad": {}}
    with np.load(path, allow_pickle=False) as file:
        if "meta" not in file:
            raise ValueError(f"{path} is no golden case: it has no 'meta'")
        meta = json.loads(str(file["meta"]))
        for key in file.files:
            kind, _, name = key.partition("/")
            if name.startswith("buffer/") and kind == "out":
                kind, name = "buffer", name.removeprefix("buffer/")
            if kind in parts:
                value = torch.from_numpy(np.asarray(file[key]))
                parts[kind][name] = value.double() if value.is_floating_point() else value
    return Case(path, meta, *(parts[kind] for kind in ("state", "in", "out", "buffer", "cotangent", "grad")))


def deviation(found: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Largest difference, relative to the largest entry of the reference (at least `floor`)."""
    if found.numel() != expected.numel():
        return float("inf")
    difference = (found.detach().reshape(expected.shape) - expected).abs().max().item()
    scale = max(expected.abs().max().item(), floor)
    return difference / scale if scale else (0.0 if difference == 0 else float("inf"))


def compare(case: Case, replay: Replay) -> list[str]:
    """Runs forward and backward in float64; one line for everything that deviates."""
    module = replay.module.double()
    names: dict[str, str] = {}
    if replay.source is not None:
        load_reference(module, case.state, source=replay.source)
        names = reference_names(module, replay.source)
    module.train(case.training)
    inputs = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in case.inputs.items()}
    outputs = replay.run(inputs) if replay.run else {"y": module(inputs["x"])}

    found: list[tuple[str, Tensor | None, Tensor, float]] = [
        (f"out/{name}", outputs.get(name), expected, 0.0)
        for name, expected in case.outputs.items()
        if name not in replay.unrelated
    ]
    buffers = dict(module.named_buffers())
    found += [
        (f"out/buffer/{name}", buffers.get(names.get(name, "")), expected, 0.0)
        for name, expected in case.buffers.items()
    ]
    # `grad/x_through_y` is the vector-Jacobian product of the output y alone.
    for name in [name for name in case.gradients if _THROUGH in name]:
        source, _, output = name.partition(_THROUGH)
        expected = case.gradients[name]
        (gradient,) = torch.autograd.grad(
            outputs[output], inputs[source], case.cotangents[output], retain_graph=True
        )
        found.append((f"grad/{name}", gradient, expected, 0.0))
    summed = {name: g for name, g in case.gradients.items() if _THROUGH not in name}
    if summed:
        loss = sum((outputs[name] * cotangent).sum() for name, cotangent in case.cotangents.items())
        assert isinstance(loss, Tensor)
        loss.backward()
        leaves = {name: x.grad for name, x in inputs.items()}
        parameters = dict(module.named_parameters())
        leaves |= {theirs: parameters[ours].grad for theirs, ours in names.items() if ours in parameters}
        size = max(g.abs().max().item() for g in summed.values())
        for name, expected in summed.items():
            gradient = leaves.get(name)
            if gradient is None and name in leaves:
                gradient = torch.zeros_like(expected)
            found.append((f"grad/{name}", gradient, expected, size * NOISE / TOLERANCE))
        for name in case.meta.get("no_gradient", []):
            if (gradient := leaves.get(name)) is not None:
                nothing = torch.zeros_like(gradient)
                found.append((f"grad/{name} (must have none)", gradient, nothing, size * NOISE / TOLERANCE))
    lines = []
    for name, value, expected, floor in found:
        if value is None:
            lines.append(f"{name}: the replay does not produce it")
        elif (error := deviation(value, expected, floor)) > TOLERANCE or not torch.isfinite(value).all():
            lines.append(f"{name}: off by {error:.2e} of the reference's scale, shape {tuple(value.shape)}")
    return lines
