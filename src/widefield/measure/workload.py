# SPDX-License-Identifier: Apache-2.0
"""A module and an input of some shape, made ready for measuring without leaving a trace.

An instrument must not change what it measures: a training step moves running statistics and online bases and
fills `.grad`. So a module is copied first; the global random generators are put back afterwards.

A *shadow* workload lives on fake tensors (shapes, dtypes and strides, no numbers): the same Python runs
and calls the same operators, and an attention over 16,384 positions costs nothing to count. Code that
reads a number out of a tensor, or closes over a real one, cannot run so; `on_shadow` then runs it for real.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils import _pytree as pytree

Shape = Sequence[int] | Sequence[Sequence[int]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Workload:
    """A callable and its inputs, on one device.

    Attributes:
        run: the copied module, or the function as it was given.
        inputs: one tensor a shape.
        context: to be entered around every call; holds the fake mode of a shadow.
    """

    run: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    context: Callable[[], Any]

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters of the module; none for a function."""
        return tuple(self.run.parameters()) if isinstance(self.run, nn.Module) else ()

    def set_training(self, training: bool) -> None:
        """Train or eval mode, where there is one."""
        if isinstance(self.run, nn.Module):
            self.run.train(training)

    def forward(self) -> Any:
        """One inference."""
        with torch.no_grad():
            return self.run(*self.inputs)

    def forward_with_graph(self) -> list[Tensor]:
        """One training forward: the outputs a gradient can flow from.

        Raises:
            ValueError: no output depends differentiably on the input or the parameters.
        """
        with torch.enable_grad():
            outputs = [
                leaf
                for leaf in pytree.tree_leaves(self.run(*self.inputs))
                if isinstance(leaf, Tensor) and leaf.requires_grad
            ]
        if not outputs:
            raise ValueError(
                "no output requires a gradient, so there is no backward to measure; accepted are modules whose "
                "output depends on a floating-point input or parameter. Measure the forward alone: backward=False"
            )
        return outputs

    def clear_gradients(self) -> None:
        """Forgets the gradients of the last backward."""
        for tensor in (*self.inputs, *self.parameters()):
            tensor.grad = None


def cotangents(outputs: Sequence[Tensor]) -> list[Tensor]:
    """What a loss would send back into `outputs`: ones."""
    return [torch.ones_like(output) for output in outputs]


def shapes_of(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """`(1, 8, 16)` is one input; `((1, 8, 16), (1, 8, 4))` are two.

    Raises:
        ValueError: something else was given.
    """
    sizes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Sequence) else ()
    if sizes and all(isinstance(size, int) for size in sizes):
        sizes = (sizes,)
    if not sizes or not all(
        isinstance(one, Sequence) and all(isinstance(size, int) and size > 0 for size in one) for one in sizes
    ):
        raise ValueError(
            f"shape={shape!r} is no input shape; give positive sizes such as (1, 512, 64, 64), or a tuple of such "
            f"shapes for a module of several inputs"
        )
    return tuple(tuple(int(size) for size in one) for one in sizes)


def device_of(module: Callable[..., Any], device: torch.device | str | None) -> torch.device:
    """The device asked for; else that of the module; else the CPU."""
    if device is not None:
        return torch.device(device)
    tensors = (*module.parameters(), *module.buffers()) if isinstance(module, nn.Module) else ()
    return tensors[0].device if tensors else torch.device("cpu")


def prepare(
    module: Callable[..., Any],
    shape: Shape,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
    shadow: bool = False,
) -> Workload:
    """Copies a module to `device` and `dtype` and makes its inputs.

    A function is taken as it is, with what it closes over: a training step leaves its gradients there.

    Floating inputs are standard normal from a generator of their own; integer ones are zeros.

    Raises:
        TypeError: `module` is neither a module nor callable, or cannot be copied.
        ValueError: bad shape, or a lazy module that has not seen an input yet.
    """
    if not callable(module):
        raise TypeError(f"{type(module).__name__} was given; accepted are an nn.Module or a function of tensors")
    shapes, device = shapes_of(shape), device_of(module, device)
    fake = FakeTensorMode() if shadow else None
    run = module
    if isinstance(module, nn.Module):
        run = duplicate(module).to(device, dtype if dtype.is_floating_point else None)
        run.zero_grad(set_to_none=True)
        if fake is not None:
            with FakeCopyMode(fake):
                run = copy.deepcopy(run)
    with fake or nullcontext():
        inputs = tuple(make_input(one, dtype, device, requires_grad, shadow) for one in shapes)
    return Workload(run, inputs, lambda: quiet(device, fake))


def duplicate(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with the module."""
    lazy = [name for name, p in module.named_parameters() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ValueError(
            f"parameter {lazy[0]!r} has no shape yet; run the lazy module once on an input, then measure it"
        )
    # A compiled module is measured as the module it compiles: the compiler hides the operators.
    module = getattr(module, "_orig_mod", module)
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise TypeError(
            f"{type(module).__name__} cannot be copied ({error}); accepted are modules that copy.deepcopy copies, "
            f"so that measuring leaves yours as it was. Pass a function that calls it to measure it in place"
        ) from error


def make_input(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, requires_grad: bool, shadow: bool
) -> Tensor:
    """One input tensor."""
    if shadow:
        x = torch.empty(shape, dtype=dtype, device=device)
    elif dtype.is_floating_point or dtype.is_complex:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    else:
        x = torch.zeros(shape, dtype=dtype, device=device)
    return x.requires_grad_(requires_grad and (dtype.is_floating_point or dtype.is_complex))


@contextmanager
def quiet(device: torch.device, fake: FakeTensorMode | None) -> Iterator[None]:
    """Puts the global generators back; keeps fused encoder kernels and compilers from hiding the operators."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        if fake is not None:
            stack.enter_context(fake)
        yield


def on_shadow(module: Callable[..., Any], measure: Callable[[bool], Result]) -> tuple[Result, bool]:
    """`measure(shadow=True)` when that works, else `measure(shadow=False)`; and whether it ran for real.

    Functions are never run on a shadow: what they close over could not be copied and would keep fake tensors.
    """
    if isinstance(module, nn.Module):
        try:
            return measure(True), False
        except Exception:  # whatever the shadow stumbled over, the real run says it better
            pass
    return measure(False), True
