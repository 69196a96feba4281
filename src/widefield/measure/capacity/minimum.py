# SPDX-License-Identifier: Apache-2.0
"""Whether a training that failed had come to a minimum: gradient, slope of the loss, curvature.

The three checks of Shwartz-Ziv et al., arXiv:2406.11463. They are reported and decide nothing: an optimiser that
stops at saddles has the capacity that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from widefield.core.extras import require

from .network import Copies
from .procedure import Procedure
from .samples import Samples
from .train import Fit, sample_losses

_CHUNK = 4096
# Up to this order the whole Hessian costs no more than Lanczos would.
_DENSE = 64


@dataclass(frozen=True)
class Convergence:
    """How a training ended.

    Attributes:
        gradient: norm over the whole set, as a share of the norm at the start.
        falling: share of the loss that was lost over the last fifth of the checks.
        lowest, largest: Hessian eigenvalues, the lowest and the largest in magnitude; None if not found.
        verdict: "minimum"; "saddle", a negative eigenvalue; "still falling"; "cannot tell".
    """

    gradient: float | None
    falling: float | None
    lowest: float | None
    largest: float | None
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """The fields, for records."""
        return asdict(self)


def convergence(copies: Copies, procedure: Procedure, samples: Samples, fit: Fit) -> Convergence:
    """Looks at the network that a training ended with, in float64 and eval mode, over the whole set."""
    if fit.flat is None or not math.isfinite(fit.loss):
        return Convergence(None, None, None, None, "cannot tell")
    product = _hessian(copies, samples, fit)
    norm = float(product(None).norm())
    share = norm / fit.start_norm if fit.start_norm > 0 else 0.0
    falling = loss_fall(fit.losses)
    lowest, largest = extreme_eigenvalues(product, copies.parameters)
    if share > procedure.gradient or falling is None or falling > procedure.flat:
        verdict = "still falling" if falling is not None and falling > procedure.flat else "cannot tell"
    elif lowest is None or largest is None:
        verdict = "cannot tell"
    else:
        verdict = "saddle" if lowest < -procedure.curvature * abs(largest) else "minimum"
    return Convergence(share, falling, lowest, largest, verdict)


def loss_fall(losses: list[float]) -> float | None:
    """The relative fall over the last fifth of the checks; None with fewer than two checks in it."""
    last = losses[-max(2, len(losses) // 5) :]
    if len(last) < 2 or not all(math.isfinite(loss) for loss in last) or last[0] <= 0:
        return None
    return (last[0] - min(last[1:])) / last[0]


def extreme_eigenvalues(
    product: Callable[[Tensor], Tensor], order: int
) -> tuple[float, float] | tuple[None, None]:
    """The lowest eigenvalue of a symmetric matrix and the largest in magnitude, by products with it.

    Lanczos as in ARPACK (scipy); the whole matrix where it is small. None if Lanczos did not converge.
    """
    if order <= _DENSE:
        rows = torch.stack([product(row) for row in torch.eye(order, dtype=torch.float64)])
        values = torch.linalg.eigvalsh((rows + rows.T) / 2)
        return float(values[0]), float(values[values.abs().argmax()])
    sparse = require("scipy.sparse.linalg", "tasks")

    def apply(vector: np.ndarray) -> np.ndarray:
        return product(torch.from_numpy(np.ascontiguousarray(vector).reshape(-1))).numpy()

    operator = sparse.LinearOperator((order, order), matvec=apply, dtype=np.float64)
    start = torch.randn(order, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    try:
        found = [
            float(sparse.eigsh(operator, k=1, which=which, v0=start, tol=1e-3, maxiter=300,
                               return_eigenvectors=False)[0])
            for which in ("SA", "LM")
        ]  # fmt: skip
    except (sparse.ArpackNoConvergence, sparse.ArpackError):
        return None, None
    return found[0], found[1]


def _hessian(copies: Copies, samples: Samples, fit: Fit) -> Callable[[Tensor | None], Tensor]:
    """A vector to the Hessian's product with it; None to the gradient."""
    assert fit.flat is not None
    flat = fit.flat.detach().double()
    buffers = {k: v.double() if v.is_floating_point() else v for k, v in fit.buffers.items()}
    y = samples.labels if samples.num_classes else samples.labels.double()

    def product(vector: Tensor | None) -> Tensor:
        total = torch.zeros_like(flat)
        # Attention has no second derivative but in its plain form.
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            for start in range(0, len(samples), _CHUNK):
                part = slice(start, start + _CHUNK)
                point = flat.clone().requires_grad_()
                output = copies.one(point, buffers, samples.inputs[part].to(flat))
                loss = sample_losses(output, y[part].to(flat.device), samples.num_classes).sum() / len(samples)
                (g,) = torch.autograd.grad(loss, point, create_graph=vector is not None)
                if vector is not None:
                    # A network that is linear in a parameter has no second derivative there.
                    found = torch.autograd.grad(g, point, vector.to(flat), allow_unused=True)[0]
                    g = torch.zeros_like(flat) if found is None else found
                total += g.detach()
        return total.cpu()

    return product
