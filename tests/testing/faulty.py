# SPDX-License-Identifier: Apache-2.0
"""Modules with one fault each, and the sound one they are made from."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sound(nn.Module):
    """`x + W mean(x)`, after a projection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels, channels)

    def context(self, x: Tensor) -> Tensor:
        return self.project(x.flatten(2).mean(-1))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError(f"takes (b, c, h, w), got {tuple(x.shape)}")
        return x + self.context(x)[:, :, None, None]


class SeesItsNeighbours(Sound):
    def context(self, x: Tensor) -> Tensor:
        return super().context(x).softmax(0)


class WritesIntoItsInput(Sound):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach().mul_(2) if not x.requires_grad else x)


class SharesMemory(Sound):
    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        return x.view_as(x)


class DrawsInEvaluation(Sound):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-3 * torch.rand(1)


class DividesByItsLength(Sound):
    def context(self, x: Tensor) -> Tensor:
        mean = x.flatten(2).mean(-1)
        return self.project(mean / mean.norm(dim=1, keepdim=True))


class OneSize(Sound):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.bias = nn.Parameter(torch.zeros(7, 9))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias


class CreatesState(Sound):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "last"):
            self.register_buffer("last", torch.zeros(x.shape[1]))
        return super().forward(x)


class MovesInEvaluation(Sound):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return super().forward(x)


class WrongGradient(Sound):
    def context(self, x: Tensor) -> Tensor:
        return super().context(x.detach())


class HalfSum(Sound):
    """Sums positions in the dtype of autocast."""

    def context(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2)
        gram = tokens @ (1e3 * tokens).mT
        return self.project((gram / (1e3 * tokens.shape[-1])).mean(-1))


class BreaksTheGraph(Sound):
    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().sum()) > 1e30:
            return x
        return super().forward(x)


class UnusedParameter(Sound):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.spare = nn.Parameter(torch.zeros(3))


class NeedsABatch(Sound):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.norm = nn.BatchNorm1d(channels)

    def context(self, x: Tensor) -> Tensor:
        return self.norm(super().context(x))


class LayoutMatters(Sound):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) + 0.0)


class TwiceWhenReplayed(Sound):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("mean", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 2, 3))
        return super().forward(x)
