# SPDX-License-Identifier: Apache-2.0
"""DAUHST: half-quadratic splitting unrolled, its penalties read from the measurement, its denoisers transformers.

Paper   Degradation-Aware Unfolding Half-Shuffle Transformer for Spectral Compressive Imaging, NeurIPS 2022,
        arXiv:2205.10102.
*differs*: the start is computed once (the code does so twice); size, bands and step are free (`half_shuffle`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.core.numerics import widen
from widefield.core.pointwise import Pointwise
from widefield.imaging import (
    disperse,
    dispersed_width,
    energy,
    first_estimate,
    project_hqs,
    roll_back,
    roll_forward,
)
from widefield.models.spectral.half_shuffle import HalfShuffleTransformer, transformer_names
from widefield.models.spectral.network import SnapshotNetwork, network
from widefield.weights.reference import reference


class DegradationEstimator(nn.Module):
    """Penalty alpha and noise level beta of every stage: the start `(b, l, h, w')` to two `(b, stages, 1, 1)`."""

    def __init__(self, in_channels: int, stages: int, *, width: int = 64) -> None:
        super().__init__()
        self.enter = Pointwise(in_channels, width)
        self.down = nn.Conv2d(width, width, 3, 2, padding=1)
        self.first = Pointwise(width, width)
        self.second = Pointwise(width, width)
        self.last = Pointwise(width, 2 * stages)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.down(F.relu(self.enter(x))).mean((2, 3), keepdim=True)
        x = F.softplus(self.last(F.relu(self.second(F.relu(self.first(x)))))) + 1e-6
        alpha, beta = x.chunk(2, 1)
        return alpha, beta


@network(
    {f"dauhst-{stages}stg": {"stages": stages} for stages in (2, 3, 5, 9)},
    title="Degradation-Aware Unfolding Half-Shuffle Transformer for Spectral Compressive Imaging",
    paper="arXiv:2205.10102", year=2022, input="Y", mask="Phi, Phi_s",
)  # fmt: skip
class DAUHST(SnapshotNetwork):
    """Degradation-aware unfolding: in each stage a projection with an estimated penalty, then a denoiser.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        stages: projections and denoisers; each denoiser has weights of its own.
        width: of the denoisers (None: 28).
        estimator_width: of the estimator.
        blocks: of each denoiser, at each level, the bottom last.
        size: `(h, w)` of the scenes that the tables of positions belong to; at others they are interpolated.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        stages: int = 2,
        width: int = 28,
        estimator_width: int = 64,
        blocks: Sequence[int] = (1, 1, 1),
        size: Sequence[int] = (256, 256),
    ) -> None:
        super().__init__(bands, step)
        require_positive("DAUHST", stages=stages, width=width, estimator_width=estimator_width)
        wide = (size[0], dispersed_width(size[1], bands, step))
        self.start = Pointwise(2 * bands, bands)
        self.estimator = DegradationEstimator(bands, stages, width=estimator_width)
        self.denoisers = nn.ModuleList(
            HalfShuffleTransformer(bands + 1, bands, width=width, blocks=blocks, size=wide) for _ in range(stages)
        )

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        width, dtype = self.check(y, phi), y.dtype
        z, alphas, betas = self.begin(y, phi)
        y, phi = widen(y), widen(phi)  # dim pixels divide by little, which half precision overflows on
        total = energy(phi)
        for k, denoise in enumerate(self.denoisers):
            x = roll_back(project_hqs(z, y, phi, total, alphas[:, k]), self.step)  # (b, l, h, w')
            z = denoise(torch.cat([x, betas[:, k, None].expand_as(x[:, :1])], 1).to(dtype))
            if k < len(self.denoisers) - 1:
                z = roll_forward(z, self.step)
        return z[..., :width].to(dtype)

    def begin(self, y: Tensor, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The start `(b, l, h, w')`, and alpha and beta, `(b, stages, 1, 1)` each."""
        supported = disperse(first_estimate(y, self.bands, self.step), self.step)
        z = self.start(supported, phi.to(y.dtype).expand_as(supported))
        return z, *self.estimator(z)


ESTIMATOR = {"enter": "fution", "down": "down_sample", "first": "mlp.0", "second": "mlp.2", "last": "mlp.4"}


@reference("mst", DegradationEstimator)
def _estimator(module: DegradationEstimator) -> dict[str, str]:
    return ESTIMATOR


@reference("mst", DAUHST)
def _dauhst(module: DAUHST) -> dict[str, str]:
    table = {f"estimator.{a}": f"para_estimator.{b}" for a, b in ESTIMATOR.items()} | {"start": "fution"}
    for k, denoiser in enumerate(module.denoisers):
        assert isinstance(denoiser, HalfShuffleTransformer)
        table |= {f"denoisers.{k}.{a}": f"denoisers.{k}.{b}" for a, b in transformer_names(denoiser).items()}
    return table
