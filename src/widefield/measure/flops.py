# SPDX-License-Identifier: Apache-2.0
"""Counting the multiply-adds of anything that runs on torch.

`OperatorCounter` sees every operator that reaches a kernel, so batched products, fused attention, hand-written
loops and custom autograd functions count alike, and what no formula covers is named. It is
`torch.utils.flop_counter` with the formulas that one lacks (`formulas`, `factorisations`), in multiply-adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .formulas import attention, attention_backward, attention_scores
from .operators import Kind, formula_of, kind_of, name_of
from .workload import Shape, cotangents, on_shadow, prepare

UNIT = "multiply-adds (one multiplication and one addition; half the operations)"


@dataclass(frozen=True)
class Count:
    """The arithmetic of one call.

    Attributes:
        multiply_adds: of an inference.
        multiply_adds_backward: of the backward alone, recomputation included; None when not asked for.
        multiply_adds_training: of forward and backward in training mode; None when not asked for.
        by_operator: multiply-adds of an inference by torch operator.
        elementwise: numbers touched in an inference by operators that are no products, by operator; the softmax
            inside a fused attention appears as `softmax`.
        uncounted: operators that no formula covers, forward and backward.
        executed: the call ran for real (False: on tensors without numbers).
    """

    multiply_adds: int
    multiply_adds_backward: int | None
    multiply_adds_training: int | None
    by_operator: dict[str, int]
    elementwise: dict[str, int]
    uncounted: tuple[str, ...]
    executed: bool

    @property
    def operations(self) -> int:
        """Twice the multiply-adds: what other tables call FLOPs."""
        return 2 * self.multiply_adds

    @property
    def lower_bound(self) -> bool:
        """Something in the call could not be counted, so the totals are lower bounds."""
        return bool(self.uncounted)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, for JSON."""
        return {
            "unit": UNIT,
            "multiply_adds": self.multiply_adds,
            "operations": self.operations,
            "multiply_adds_backward": self.multiply_adds_backward,
            "multiply_adds_training": self.multiply_adds_training,
            "by_operator": dict(self.by_operator),
            "elementwise": dict(self.elementwise),
            "uncounted": list(self.uncounted),
            "lower_bound": self.lower_bound,
            "executed": self.executed,
        }


class OperatorCounter(TorchDispatchMode):
    """Counts what runs inside `with OperatorCounter() as counter:`.

    Attributes:
        products: multiply-adds by operator.
        elementwise: numbers touched by operator.
        unknown: calls by operator, of those that no formula covers.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[str] = Counter()
        self.elementwise: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    @property
    def multiply_adds(self) -> int:
        """All products so far."""
        return self.products.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        if kind is Kind.UNKNOWN and isinstance(func, torch._ops.OpOverload):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        out = func(*args, **kwargs)
        if kind is Kind.PRODUCT:
            self.add_product(func, out, args, kwargs)
        elif kind is Kind.ELEMENTWISE:
            tensors = [leaf for leaf in pytree.tree_leaves((out, args, kwargs)) if isinstance(leaf, Tensor)]
            self.elementwise[name_of(func)] += max((tensor.numel() for tensor in tensors), default=0)
        elif kind is Kind.UNKNOWN:
            self.unknown[f"{getattr(func, 'namespace', 'higher_order')}.{name_of(func)}"] += 1
        return out

    def add_product(self, func: Any, out: Any, args: Any, kwargs: Any) -> None:
        """Enters one call of an operator that has a formula."""
        formula = formula_of(func)
        assert formula is not None
        # A result written into the caller's buffer (`torch.mm(..., out=buffer)`) arrives as `out` already.
        options = {name: value for name, value in kwargs.items() if name != "out"}
        self.products[name_of(func)] += formula(out, *args, **options)
        if formula is attention:
            self.elementwise["softmax"] += attention_scores(args[0], args[1])
        elif formula is attention_backward:
            self.elementwise["softmax_backward"] += attention_scores(args[1], args[2])


def count(
    module: Callable[..., Any],
    shape: Shape,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    backward: bool = False,
    train: bool | None = None,
) -> Count:
    """Multiply-adds of a module at an input shape.

    A module is counted on a copy without numbers, so large shapes cost nothing; one that reads numbers out of its
    tensors, and any function, is run for real. Sparse and quantised operators have no formula and are named.

    Args:
        module: any `nn.Module`, or a function of tensors.
        shape: of the input, `(b, c, *space)`; a tuple of shapes for several inputs.
        dtype: of the inputs; a module's copy is cast to it.
        device: where to count; the module's by default. Kernels, and so operators, depend on it.
        backward: count a training step as well.
        train: mode of the module. By default eval for the inference and train for the training step.

    Returns:
        The count; `uncounted` names what it leaves out.

    Raises:
        ValueError, TypeError: bad shape or module, see `workload.prepare`; nothing to differentiate.
    """

    def measure(shadow: bool) -> tuple[OperatorCounter, tuple[OperatorCounter, OperatorCounter] | None]:
        work = prepare(module, shape, dtype=dtype, device=device, requires_grad=backward, shadow=shadow)
        with work.context():
            work.set_training(bool(train))
            with OperatorCounter() as inference:
                work.forward()
            if not backward:
                return inference, None
            work.set_training(train is not False)
            with OperatorCounter() as forward:
                outputs = work.forward_with_graph()
            seeds = cotangents(outputs)
            with OperatorCounter() as gradient:
                torch.autograd.backward(outputs, seeds)
            work.clear_gradients()
        return inference, (forward, gradient)

    (inference, step), executed = on_shadow(module, measure)
    counters = (inference, *(step or ()))
    return Count(
        multiply_adds=inference.multiply_adds,
        multiply_adds_backward=step[1].multiply_adds if step else None,
        multiply_adds_training=sum(counter.multiply_adds for counter in step) if step else None,
        by_operator=dict(inference.products),
        elementwise=dict(inference.elementwise),
        uncounted=tuple(sorted(set().union(*(counter.unknown for counter in counters)))),
        executed=executed,
    )
