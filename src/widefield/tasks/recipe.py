# SPDX-License-Identifier: Apache-2.0
"""How a network is trained: optimiser, learning rate, schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from widefield.core.errors import unknown
from widefield.core.extras import require


def poly_schedule(step: int, steps: int, *, power: float = 0.9, warmup: int = 0, floor: float = 0.0) -> float:
    """Factor on the learning rate at a step: linear warm-up, then `(1 - progress) ** power`, as in DeepLab.

    Args:
        step: 0 for the first update.
        steps: in the whole run.
        power: of the decay.
        warmup: steps over which the factor rises to 1; 0 for none.
        floor: the factor never falls below it after the warm-up.

    Raises:
        ValueError: a step outside `0 .. steps`, or a warm-up that is not shorter than the run.
    """
    if not 0 <= step <= steps or steps < 1:
        raise ValueError(f"step must lie in 0..steps with at least one step, got step {step} of {steps}")
    if not 0 <= warmup < steps:
        raise ValueError(f"the warm-up must be shorter than the run of {steps} steps, got {warmup}")
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return max(floor, (1 - (step - warmup) / (steps - warmup)) ** power)


def cosine_schedule(step: int, steps: int) -> float:
    """Half a cosine from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def halving_schedule(step: int, steps: int) -> float:
    """Halved after every sixth of the run: MST's 50 of 300 epochs."""
    return 0.5 ** (6 * step // steps)


def decay_schedule(step: int, steps: int) -> float:
    """Times 0.9 after every tenth of the run: GAP-Net's 30 of 300 epochs."""
    return 0.9 ** (10 * step // steps)


def constant_schedule(step: int, steps: int) -> float:
    """1 throughout."""
    return 1.0


SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "cosine": cosine_schedule,
    "halving": halving_schedule,
    "decay": decay_schedule,
    "constant": constant_schedule,
}


def _adamw(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.999))


def _adam(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=recipe.lr, betas=(0.9, 0.999))


def _lamb(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """You et al., arXiv:1904.00962, by timm: for large batches."""
    return require("timm.optim", "models").Lamb(groups, lr=recipe.lr, max_grad_norm=None)


def _sgd(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], Recipe], torch.optim.Optimizer]] = {
    "adam": _adam,
    "adamw": _adamw,
    "sgd": _sgd,
    "lamb": _lamb,
}


@dataclass(frozen=True)
class Recipe:
    """Everything of a training run but the data, the network and the number of steps.

    Attributes:
        optimizer: "adamw", "adam", "sgd" or "lamb".
        lr: of what is new; the backbone has `lr * backbone_lr`.
        backbone_lr: factor for the backbone: 1 from scratch, 0.1 for pretrained weights.
        weight_decay: not applied to norms, biases and gates.
        momentum: of sgd.
        schedule: "poly", "cosine", "halving", "decay" or "constant".
        warmup: share of the run with a rising learning rate; of the poly schedule.
        power: of the poly schedule.
        clip: largest norm of the gradient; None for no bound.
    """

    optimizer: Literal["adamw", "adam", "sgd", "lamb"] = "adamw"
    lr: float = 4e-3
    backbone_lr: float = 1.0
    weight_decay: float = 1e-2
    momentum: float = 0.9
    schedule: Literal["poly", "cosine", "halving", "decay", "constant"] = "poly"
    warmup: float = 0.05
    power: float = 0.9
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in ("poly", *SCHEDULES):
            raise unknown("schedule", self.schedule, ["poly", *SCHEDULES])
        if self.lr <= 0 or self.weight_decay < 0 or self.backbone_lr < 0:
            raise ValueError(
                f"lr must be positive, weight_decay and backbone_lr not negative; got {self.lr}, "
                f"{self.weight_decay}, {self.backbone_lr}"
            )
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the run, from 0 to below 1; got {self.warmup}")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip must be positive or None, got {self.clip}")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimiser over the parameters that are trained.

        Parameters below `backbone.` get `backbone_lr`; those of one dimension, and those that the model's
        `no_weight_decay()` names, are not decayed. Each group keeps its own rate as `base_lr`.

        Raises:
            ValueError: nothing to train.
        """
        named: Any = getattr(model, "no_weight_decay", None)
        spared: set[str] = set(named()) if named else set()
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                decayed = parameter.ndim > 1 and name not in spared
                groups.setdefault((name.startswith("backbone."), decayed), []).append(parameter)
        if not groups:
            raise ValueError("the model has no parameter that requires a gradient; nothing can be trained")
        settings: list[dict[str, Any]] = []
        for (backbone, decayed), parameters in sorted(groups.items(), key=lambda item: item[0]):
            rate = self.lr * (self.backbone_lr if backbone else 1.0)
            decay = self.weight_decay if decayed else 0.0
            settings.append({"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay})
        return OPTIMIZERS[self.optimizer](settings, self)

    def set_rates(self, optimizer: torch.optim.Optimizer, step: int, steps: int) -> float:
        """Sets the learning rates for an update and returns the factor; a function of the step alone."""
        if self.schedule == "poly":
            factor = poly_schedule(step, steps, power=self.power, warmup=int(self.warmup * steps))
        else:
            factor = SCHEDULES[self.schedule](step, steps)
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        return factor

    def as_dict(self) -> Mapping[str, Any]:
        """The fields, for records."""
        return dict(vars(self))


SCRATCH = Recipe()
FINE_TUNE = Recipe(lr=1e-3, backbone_lr=0.1)
