# SPDX-License-Identifier: Apache-2.0
"""A small deep-equilibrium classifier: one layer, iterated to its fixed point, trained by the implicit gradient.

    z* = tanh(W z* + U x + b)          class scores = V z*

The layer is as deep as it takes to converge, and its training memory is that of one evaluation. Reads the
handwritten digits that scikit-learn ships; takes seconds on a CPU.

    python examples/deep_equilibrium.py
"""

from __future__ import annotations

from typing import cast

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from widefield.core import Status
from widefield.implicit import fixed_point


class Equilibrium(nn.Module):
    """`(b, features) -> (b, width)`: the fixed point of a contraction."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.inject = nn.Linear(features, width)
        # A spectral norm of 1 times 0.9 makes tanh(0.9 W z + ...) a contraction, so a fixed point exists.
        self.recur = spectral_norm(nn.Linear(width, width, bias=False))
        self.status: Status | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight = 0.9 * cast(Tensor, self.recur.weight)
        start = x.new_zeros(x.shape[0], weight.shape[0])
        state, self.status, _ = fixed_point(
            lambda z, u: torch.tanh(z @ weight.T + u), start, self.inject(x),
            steps=100, tolerance=1e-4, gradient="implicit", adjoint_tolerance=1e-4,
        )  # fmt: skip
        return state


def main(epochs: int = 6, seed: int = 0) -> float:
    """Trains and returns the accuracy on held-out digits."""
    torch.manual_seed(seed)
    pictures, classes = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32) / 16
    y = torch.tensor(classes)
    train, test = slice(0, 1400), slice(1400, None)
    model = nn.Sequential(Equilibrium(64, 64), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in torch.randperm(1400).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[train][batch]), y[train][batch]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = float((model.eval()(x[test]).argmax(1) == y[test]).float().mean())
        model.train()
        status = model[0].status
        assert isinstance(status, Status)
        print(f"epoch {epoch + 1}: accuracy {accuracy:.3f}; solver: {status.summary()}")
    return accuracy


if __name__ == "__main__":
    main()
