# SPDX-License-Identifier: Apache-2.0
"""On a trained module: how far each gradient it could be trained with is from the one through all steps."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from widefield.measure import gradient_agreement

# The reference itself, and a gradient whose linear system a trained decomposition can leave singular.
_LEFT_OUT = ("unrolled", "implicit")


def iterative_parts(module: nn.Module) -> list[Any]:
    """The parts that run an optimiser: they have a `gradient`, one of their `gradients`."""
    return [part for part in module.modules() if hasattr(part, "gradients")]


class _Alone(nn.Module):
    """A module's context without projection back, norm and residual."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.context(x)  # type: ignore[operator]


def agreement(context: nn.Module, features: Tensor) -> list[dict[str, Any]]:
    """Norm ratio and cosine of the input gradient against "unrolled" for each policy; [] if it does not iterate.

    Measured on the context alone: through the residual every policy would look right.

    Args:
        context: a trained module of the registry.
        features: `(b, c, *space)` that it sees.
    """
    parts = iterative_parts(context)
    if not parts:
        return []

    def build(policy: str) -> nn.Module:
        module = copy.deepcopy(context).eval()
        for part in iterative_parts(module):
            part.gradient = policy
        return _Alone(module)

    policies = [p for p in parts[0].gradients if p not in _LEFT_OUT]
    # "stopped" has no gradient at all: nothing to run.
    found = gradient_agreement(build, features, policies=[p for p in policies if p != "stopped"])
    stopped = [{"policy": "stopped", "norm_ratio": 0.0, "cosine": None}] if "stopped" in policies else []
    return stopped + [
        {"policy": line.policy, "norm_ratio": line.input_ratio, "cosine": line.input_cosine} for line in found
    ]
