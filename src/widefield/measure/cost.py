# SPDX-License-Identifier: Apache-2.0
"""What a module costs at an input shape: parameters, multiply-adds, memory, time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import benchmark

from .flops import UNIT, count
from .memory import peak_bytes
from .workload import Shape, Workload, cotangents, device_of, on_shadow, prepare, shapes_of

UNITS = {
    "parameters": "numbers",
    "multiply_adds": UNIT,
    "operations": "multiplications and additions (FLOPs; twice the multiply-adds)",
    "activation_memory": "bytes",
    "latency": "seconds",
    "elementwise": "numbers touched",
}


@dataclass(frozen=True)
class Latency:
    """Seconds of one call: the median over blocks of calls, and their inter-quartile range.

    Attributes:
        median: seconds.
        iqr: seconds between the quartiles.
        blocks: measurements.
        threads: CPU threads torch was given.
    """

    median: float
    iqr: float
    blocks: int
    threads: int


@dataclass(frozen=True)
class CostReport:
    """The cost of one module at one shape; `UNITS` and the field comments name the units.

    Attributes:
        module: class or function name.
        shapes: of the inputs.
        dtype: of inputs and parameters.
        device: where it was measured.
        parameters: numbers in parameters, shared ones once, frozen ones included.
        multiply_adds: of an inference.
        operations: twice that (FLOPs).
        multiply_adds_backward: of the backward alone.
        multiply_adds_training: of forward and backward in training mode.
        activation_memory_forward: bytes, peak of an inference beyond parameters and input; output included.
        activation_memory_training: bytes, the same for forward and backward; the gradients of parameters and input
            and the cotangent of the output are in it.
        latency_forward: of an inference.
        latency_training: of forward and backward.
        by_operator: multiply-adds of an inference by torch operator.
        elementwise: numbers touched by other operators in an inference.
        uncounted: operators without a formula; if any, multiply-adds and operations are lower bounds.
        stated_multiply_adds: what the module's own closed form says, if it has one (`Context.cost`).
    """

    module: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    device: str
    parameters: int
    multiply_adds: int
    operations: int
    multiply_adds_backward: int | None
    multiply_adds_training: int | None
    activation_memory_forward: int
    activation_memory_training: int | None
    latency_forward: Latency | None
    latency_training: Latency | None
    by_operator: dict[str, int]
    elementwise: dict[str, int]
    uncounted: tuple[str, ...]
    stated_multiply_adds: int | None

    @property
    def latency_forward_s(self) -> float | None:
        """Median seconds of an inference."""
        return self.latency_forward.median if self.latency_forward else None

    @property
    def latency_training_s(self) -> float | None:
        """Median seconds of forward and backward."""
        return self.latency_training.median if self.latency_training else None

    @property
    def lower_bound(self) -> bool:
        """Some operator could not be counted."""
        return bool(self.uncounted)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, for JSON; with the units."""
        plain = asdict(self)
        plain["shapes"] = [list(shape) for shape in self.shapes]
        plain["uncounted"] = list(self.uncounted)
        plain["latency_forward_s"] = self.latency_forward_s
        plain["latency_training_s"] = self.latency_training_s
        return plain | {"lower_bound": self.lower_bound, "units": dict(UNITS)}


def cost(
    module: Callable[..., Any],
    shape: Shape,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    backward: bool = False,
    latency: bool = True,
    train: bool | None = None,
    min_run_time: float = 0.2,
) -> CostReport:
    """Measures a module at an input shape; the module itself is left untouched.

    Args:
        module: any `nn.Module`, or a function of tensors.
        shape: of the input, `(b, c, *space)`; a tuple of shapes for several inputs.
        dtype: of the inputs; a module's copy is cast to it.
        device: where to measure; the module's by default.
        backward: measure a training step as well, with respect to parameters and inputs.
        latency: time it; without, a module of any size is measured without running it (except on CUDA,
            where memory is the allocator's).
        train: mode of the module. By default eval for the inference and train for the training step.
        min_run_time: seconds of timing for each latency.

    Returns:
        A report in stated units.

    Raises:
        ValueError, TypeError: bad shape or module, see `workload.prepare`; nothing to differentiate.
    """
    device = device_of(module, device)
    counted = count(module, shape, dtype=dtype, device=device, backward=backward, train=train)

    def peaks(shadow: bool) -> tuple[int, int | None]:
        work = prepare(module, shape, dtype=dtype, device=device, requires_grad=backward, shadow=shadow)
        with work.context():
            work.set_training(bool(train))
            forward = peak_bytes(work.forward, device)
            if not backward:
                return forward, None
            work.set_training(train is not False)
            training = peak_bytes(lambda: training_step(work), device)
            work.clear_gradients()
        return forward, training

    (memory, memory_training), _ = (peaks(False), True) if device.type == "cuda" else on_shadow(module, peaks)
    forward_time = training_time = None
    if latency:
        work = prepare(module, shape, dtype=dtype, device=device, requires_grad=backward)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            work.set_training(bool(train))
            forward_time = timed(work.forward, min_run_time)
            if backward:
                work.set_training(train is not False)
                training_time = timed(lambda: training_step(work, forget=True), min_run_time)
    return CostReport(
        module=type(module).__name__
        if isinstance(module, nn.Module)
        else getattr(module, "__name__", repr(module)),
        shapes=shapes_of(shape),
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        parameters=sum(p.numel() for p in module.parameters()) if isinstance(module, nn.Module) else 0,
        multiply_adds=counted.multiply_adds,
        operations=counted.operations,
        multiply_adds_backward=counted.multiply_adds_backward,
        multiply_adds_training=counted.multiply_adds_training,
        activation_memory_forward=memory,
        activation_memory_training=memory_training,
        latency_forward=forward_time,
        latency_training=training_time,
        by_operator=counted.by_operator,
        elementwise=counted.elementwise,
        uncounted=counted.uncounted,
        stated_multiply_adds=stated(module, shapes_of(shape)[0]),
    )


def training_step(work: Workload, forget: bool = False) -> None:
    """Forward and backward; `forget` frees the gradients, as an optimiser's `zero_grad` does between steps."""
    outputs = work.forward_with_graph()
    torch.autograd.backward(outputs, cotangents(outputs))
    if forget:
        work.clear_gradients()


def timed(call: Callable[[], Any], min_run_time: float) -> Latency:
    """Median and spread by `torch.utils.benchmark`, on as many threads as torch has now."""
    threads = torch.get_num_threads()
    measured = benchmark.Timer("call()", globals={"call": call}, num_threads=threads).blocked_autorange(
        min_run_time=min_run_time
    )
    times = measured.times
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [0.0, 0.0, 0.0]
    return Latency(statistics.median(times), quartiles[2] - quartiles[0], len(times), threads)


def stated(module: Any, shape: tuple[int, ...]) -> int | None:
    """The closed form of a module that has one; other modules may use the name `cost` for anything."""
    closed_form = getattr(module, "cost", None) if isinstance(module, nn.Module) else None
    if not callable(closed_form) or isinstance(closed_form, nn.Module):
        return None
    try:
        said = getattr(closed_form(shape), "multiply_adds", None)
    except (TypeError, NotImplementedError):
        return None
    return int(said) if isinstance(said, int) else None
