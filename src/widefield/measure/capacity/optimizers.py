# SPDX-License-Identifier: Apache-2.0
"""Optimisers for many networks at once, each with its own learning rate.

Those that treat every number by itself run on the whole matrix of parameters, and give each row what
`torch.optim` gives it. The others (Shampoo, L-BFGS) get a network at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from widefield.core.extras import require

from .procedure import Procedure


class Losses(Protocol):
    """The loss of each network on its own batch."""

    def __call__(self, flat: Tensor, only: int | None = None) -> Tensor:
        """`(e, p)` to `(e,)`; with `only`, `(1, p)` to `(1,)`, for the network in that row."""
        ...


class Optimizer(Protocol):
    """Moves `(e, p)` parameters in place."""

    def step(self, flat: Tensor, losses: Losses, factors: Tensor) -> None:
        """One update by the gradient of `losses(flat) (e,)`, the rates times `factors (e,)`."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Forgets all networks but these."""
        ...


def gradient(flat: Tensor, losses: Losses) -> Tensor:
    """`(e, p)`: of each network's own loss."""
    point = flat.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(losses(point).sum(), point)[0]


class Momentum:
    """Gradient descent with heavy-ball momentum, as `torch.optim.SGD`."""

    def __init__(self, flat: Tensor, rates: Tensor, momentum: float, weight_decay: float) -> None:
        self.rates, self.momentum, self.weight_decay = rates, momentum, weight_decay
        self.velocity = torch.zeros_like(flat)

    def step(self, flat: Tensor, losses: Losses, factors: Tensor) -> None:
        g = gradient(flat, losses).add_(flat, alpha=self.weight_decay)
        self.velocity.mul_(self.momentum).add_(g)
        flat.sub_((self.rates * factors)[:, None] * self.velocity)

    def keep(self, rows: Tensor) -> None:
        self.rates, self.velocity = self.rates[rows], self.velocity[rows]


class Adam:
    """Kingma and Ba, arXiv:1412.6980, as `torch.optim.Adam`; with `decoupled`, Loshchilov and Hutter's AdamW,
    arXiv:1711.05101."""

    def __init__(self, flat: Tensor, rates: Tensor, weight_decay: float, decoupled: bool) -> None:
        self.rates, self.weight_decay, self.decoupled = rates, weight_decay, decoupled
        self.mean, self.square, self.steps = torch.zeros_like(flat), torch.zeros_like(flat), 0

    def step(self, flat: Tensor, losses: Losses, factors: Tensor) -> None:
        g, rate = gradient(flat, losses), (self.rates * factors)[:, None]
        if self.decoupled:
            flat.mul_(1 - rate * self.weight_decay)
        else:
            g.add_(flat, alpha=self.weight_decay)
        self.steps += 1
        self.mean.lerp_(g, 1 - 0.9)
        self.square.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        scale = (self.square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
        flat.sub_(rate / (1 - 0.9**self.steps) * self.mean / scale)

    def keep(self, rows: Tensor) -> None:
        self.rates, self.mean, self.square = self.rates[rows], self.mean[rows], self.square[rows]


class OneByOne:
    """An optimiser a network, over its parameters in their own shapes."""

    def __init__(
        self,
        flat: Tensor,
        rates: Tensor,
        shapes: Sequence[torch.Size],
        make: Callable[[list[nn.Parameter], float], torch.optim.Optimizer],
        closure: bool = False,
    ) -> None:
        self.shapes, self.closure, self.rates = shapes, closure, rates.tolist()
        self.parameters = [
            [nn.Parameter(part.clone()) for part in self._split(row)] for row in flat.detach().unbind()
        ]
        self.each = [make(p, rate) for p, rate in zip(self.parameters, self.rates, strict=True)]

    def step(self, flat: Tensor, losses: Losses, factors: Tensor) -> None:
        grads = None if self.closure else gradient(flat, losses)
        for i, optimizer in enumerate(self.each):
            for group in optimizer.param_groups:
                group["lr"] = self.rates[i] * float(factors[i])

            def evaluated(i: int = i) -> float:
                point = self._joined(i)[None].requires_grad_()
                with torch.enable_grad():
                    loss = losses(point, i)[0]
                    (g,) = torch.autograd.grad(loss, point)
                self._set_gradient(i, g[0])
                return float(loss.detach())

            if grads is None:
                optimizer.step(evaluated)
            else:
                self._set_gradient(i, grads[i])
                optimizer.step()
            flat[i] = self._joined(i)

    def keep(self, rows: Tensor) -> None:
        kept = rows.tolist()
        self.parameters, self.each = [self.parameters[i] for i in kept], [self.each[i] for i in kept]
        self.rates = [self.rates[i] for i in kept]

    def _split(self, row: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(row.split(sizes), self.shapes, strict=True)]

    def _joined(self, i: int) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters[i]])

    def _set_gradient(self, i: int, row: Tensor) -> None:
        for parameter, part in zip(self.parameters[i], self._split(row), strict=True):
            parameter.grad = part.clone()


def make_optimizer(procedure: Procedure, flat: Tensor, rates: Tensor, shapes: Sequence[torch.Size]) -> Optimizer:
    """The optimiser of a procedure.

    Raises:
        ImportError: Shampoo without pytorch_optimizer; named with the install command.
    """
    if procedure.optimizer in ("sgd", "gd"):
        return Momentum(flat, rates, procedure.momentum, procedure.weight_decay)
    if procedure.optimizer in ("adam", "adamw"):
        return Adam(flat, rates, procedure.weight_decay, procedure.optimizer == "adamw")
    if procedure.optimizer == "lbfgs":

        def lbfgs(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(parameters, lr=rate, max_iter=20, history_size=50, tolerance_grad=1e-14,
                                     tolerance_change=1e-18, line_search_fn="strong_wolfe")  # fmt: skip

        return OneByOne(flat, rates, shapes, lbfgs, closure=True)
    shampoo: Any = require("pytorch_optimizer", "capacity").Shampoo

    def make(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        return shampoo(parameters, lr=rate, momentum=procedure.momentum, weight_decay=procedure.weight_decay,
                       preconditioning_compute_steps=10)  # fmt: skip

    return OneByOne(flat, rates, shapes, make)
