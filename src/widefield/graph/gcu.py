# SPDX-License-Identifier: Apache-2.0
"""Graph convolutional unit (GCU) of Beyond Grids: positions join learned regions, regions exchange.

    q_ik = softmax_k(-|(x_i - w_k) / s_k|^2 / 2)        z_k = sum_i q_ik (x_i - w_k) / s_k / sum_i q_ik
    A = Z^ Z^^T        Z^: z_k of unit length           y = [x, q ReLU(A Z^^T W) for each number of vertices]

Paper   Beyond Grids: Learning Graph Representations for Visual Recognition, NeurIPS 2018.
Facts   cost n v (3 c + width) for v vertices; rank of each unit's context at most v. Output of channels + units x
        width.
Differs the distance is written as products around the mean anchor, without the n x v x c residuals. Anchors start
        at random, as no data is there yet; the paper clusters features first, which `initialise_` does. Regions
        that nobody joins keep a direction: their mean is a softmax over positions, not a quotient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.layout import Space
from widefield.core.numerics import unit, widen
from widefield.core.pointwise import Pointwise
from widefield.core.registry import register


def project(
    x: Tensor, anchors: Tensor, scales: Tensor, units: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Assignments q `(b, v, n)` and mean residuals z `(b, c, v)`, before their length is taken out.

    Args:
        x: `(b, c, n)`.
        anchors: w, `(c, v)`.
        scales: s, `(c, v)`, positive.
        units: how the v vertices fall into units, each with a softmax of its own; one unit if None.
    """
    # Around the mean anchor the three terms of the square are as small as the distance allows.
    centre = anchors.detach().mean(1, keepdim=True)
    x, anchors, inverse = x - centre, anchors - centre, 1 / scales
    precision = inverse.square()
    scores = (
        (anchors * precision).mT @ x - 0.5 * (precision.mT @ x.square())
        - 0.5 * (anchors.square() * precision).sum(0)[:, None]
    )  # fmt: skip
    logs = torch.cat([s.log_softmax(1) for s in scores.split(list(units or (anchors.shape[1],)), 1)], 1)
    return logs.exp(), (x @ logs.softmax(-1).mT - anchors) * inverse


def k_means(points: Tensor, clusters: int, steps: int = 10) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from a farthest-first start, without random numbers: centres `(k, c)` and labels `(n,)`.

    Args:
        points: `(n, c)`, at least as many as clusters.
        clusters: k. A cluster that loses all its points keeps its centre.
        steps: of assigning and averaging.
    """
    nearest = torch.cdist(points.mean(0, keepdim=True), points)[0]
    chosen = [nearest.argmin()]
    for _ in range(clusters - 1):
        latest = torch.cdist(points[chosen[-1]][None], points)[0]
        nearest = latest if len(chosen) == 1 else torch.minimum(nearest, latest)
        chosen.append(nearest.argmax())
    centres = points[torch.stack(chosen)]
    for _ in range(steps):
        members = nn.functional.one_hot(torch.cdist(points, centres).argmin(1), clusters).to(points.dtype)
        counts = members.sum(0)[:, None]
        centres = torch.where(counts > 0, members.mT @ points / counts.clamp(min=1), centres)
    return centres, torch.cdist(points, centres).argmin(1)


@register(
    "gcu", family="graph", title="Beyond Grids: Learning Graph Representations for Visual Recognition",
    paper="NeurIPS", year=2018, max_rank="vertices",
)  # fmt: skip
class GCU(Context):
    """Graph convolutional units side by side, one for each number of vertices, concatenated with the input.

    Several units are one module because that is how the paper uses them, and because they read the map together.

    Shape: `(b, channels, *space) -> (b, channels + units x width, *space)`.

    Args:
        channels: of the input.
        vertices: of each unit; one number for a single unit.
        width: channels that each unit adds (None: channels over the number of units, at least 1).
        reason: messages between the vertices, A and the ReLU; without them each goes back through W alone.
    """

    def __init__(
        self,
        channels: int,
        *,
        vertices: int | Sequence[int] = (2, 4, 8, 32),
        width: int | None = None,
        reason: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.vertices = (vertices,) if isinstance(vertices, int) else tuple(vertices)
        if not self.vertices or min(self.vertices) < 1:
            raise ValueError(f"GCU: vertices must be one or more positive numbers, got {vertices!r}")
        self.width = max(1, channels // len(self.vertices)) if width is None else width
        if self.width < 1:
            raise ValueError(f"GCU: width must be a positive number of channels, got {width}")
        super().__init__(channels, out_channels=channels + len(self.vertices) * self.width)
        self.reason = reason
        total = sum(self.vertices)
        self.anchors = nn.Parameter(torch.randn(channels, total) / math.sqrt(channels))
        self.scales = nn.Parameter(torch.zeros(channels, total))  # before the sigmoid
        self.weights = nn.ModuleList(Pointwise(channels, self.width, bias=False) for _ in self.vertices)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        anchors, scales = (p.to(tokens.dtype) for p in (self.anchors, self.scales))
        assigned, residuals = project(tokens, anchors, scales.sigmoid(), self.vertices)
        units = list(self.vertices)
        found = []
        for weight, q, z in zip(
            self.weights, assigned.split(units, 1), unit(residuals, 1).split(units, 2), strict=True
        ):
            nodes = weight(z)
            if self.reason:
                nodes = torch.relu(nodes @ (z.mT @ z))
            found.append(nodes @ q)
        return torch.cat(found, 1)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y.to(x.dtype)], 1)

    @torch.no_grad()
    def initialise_(self, x: Tensor, *, steps: int = 10) -> None:
        """Anchors and scales from k-means of features `(b, channels, *space)`, as the paper starts; repeatable.

        A scale is the deviation of its cluster, between 0.05 and 0.95 since it comes out of a sigmoid.
        """
        self._check(x)
        points = widen(x).flatten(2).transpose(1, 2).flatten(0, 1)
        if len(points) < max(self.vertices):
            raise ValueError(
                f"GCU: {max(self.vertices)} vertices need at least as many positions to start from, got "
                f"{len(points)}; pass a larger batch of features"
            )
        anchors, scales = [], []
        for count in self.vertices:
            centres, labels = k_means(points, count, steps)
            members = nn.functional.one_hot(labels, count).to(points.dtype)
            variance = members.mT @ (points - centres[labels]).square() / members.sum(0)[:, None].clamp(min=1)
            anchors.append(centres)
            scales.append(variance.sqrt().clamp(0.05, 0.95).logit())
        self.anchors.copy_(torch.cat(anchors).mT)
        self.scales.copy_(torch.cat(scales).mT)

    def cost(self, shape: tuple[int, ...]) -> Cost:
        return Cost(
            shape[0] * self.mixing_cost(tuple(shape[2:])),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        n, c, w = math.prod(space), self.channels, self.width
        reasoning = sum(v * v * (c + w) for v in self.vertices) if self.reason else 0
        return sum(self.vertices) * (n * (3 * c + w) + c * w) + reasoning
