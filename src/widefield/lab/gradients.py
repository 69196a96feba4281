# SPDX-License-Identifier: Apache-2.0
"""On a trained module: how far each gradient it could be trained with is from the one through all steps."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from widefield.decomposition.emanet import EMAttention
from widefield.measure import gradient_agreement

POLICIES = ("one_step", "neumann", "codes_only")
EM_POLICIES = ("one_step", "neumann", "stopped")


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
    if not any(hasattr(m, "gradient") for m in context.modules()):
        return []

    def build(policy: str) -> nn.Module:
        module = copy.deepcopy(context).eval()
        for part in module.modules():
            if hasattr(part, "gradient"):
                part.gradient = policy  # type: ignore[assignment]
        return _Alone(module)

    policies = EM_POLICIES if isinstance(context, EMAttention) else POLICIES
    # "stopped" has no gradient at all: nothing to run.
    found = gradient_agreement(build, features, policies=[p for p in policies if p != "stopped"])
    stopped = [{"policy": "stopped", "norm_ratio": 0.0, "cosine": None}] if "stopped" in policies else []
    return stopped + [
        {"policy": line.policy, "norm_ratio": line.input_ratio, "cosine": line.input_cosine} for line in found
    ]
