# SPDX-License-Identifier: Apache-2.0
"""DAUHST: half-quadratic splitting, unrolled, with penalties and noise levels read from the measurement.

    z_0 = conv [S, Phi]                                     S: the measurement within the support of every band
    x   = z + A^T [(y - A z) / (alpha_k + Phi_s)]           alpha_k, beta_k = estimator(z_0)
    z   = HST_k [x, beta_k]

Paper   Degradation-Aware Unfolding Half-Shuffle Transformer for Spectral Compressive Imaging, NeurIPS 2022,
        arXiv:2205.10102.
Facts   47 364 parameters estimate (two stages); a stage holds 677 352, a third of them position tables.
Differs the authors' network runs at one size, 256 x 310 on the sensor; this one at any, and is the authors' at
        theirs. `height` and `width` name the scene that the tables are made for (`half_shuffle.table_at`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.imaging.dispersion import disperse, dispersed_width, roll_back, roll_forward
from widefield.imaging.sensing import backproject, energy, first_estimate, measure
from widefield.models.spectral.half_shuffle import below
from widefield.models.spectral.half_shuffle_transformer import HalfShuffleTransformer, transformer_table
from widefield.models.spectral.network import SnapshotNetwork, network
from widefield.weights.reference import reference


class DegradationEstimator(nn.Module):
    """The penalty weight alpha and the noise level beta of every stage, positive numbers.

    Shape: `(b, in_channels, h, w) -> (b, stages, 1, 1), (b, stages, 1, 1)`.

    Args:
        in_channels: of the map.
        stages: how many pairs.
        channels: inside.
    """

    def __init__(self, in_channels: int, stages: int, *, channels: int = 64) -> None:
        super().__init__()
        require_positive("DegradationEstimator", in_channels=in_channels, stages=stages, channels=channels)
        self.enter = nn.Conv2d(in_channels, channels, 1)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.read = nn.Sequential(
            Pointwise(channels, channels), nn.ReLU(),
            Pointwise(channels, channels), nn.ReLU(),
            Pointwise(channels, 2 * stages),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.down(F.relu(self.enter(x)))
        with float32_island(features):
            numbers = self.read(widen(features).mean((-2, -1), keepdim=True))  # b 2K 1 1
            alpha, beta = (F.softplus(numbers) + 1e-6).chunk(2, 1)
        return alpha, beta


@network(
    {f"dauhst-{stages}stg": {"stages": stages} for stages in (2, 3, 5, 9)},
    title="Degradation-Aware Unfolding Half-Shuffle Transformer for Spectral Compressive Imaging",
    paper="arXiv:2205.10102", year=2022, input="Y", mask="Phi, Phi_s",
)  # fmt: skip
class DAUHST(SnapshotNetwork):
    """Unrolled half-quadratic splitting with a half-shuffle transformer as the prior of each stage.

    Shape: `(b, h, w'), (l, h, w') or (b, l, h, w') -> (b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        stages: projections, each with a transformer of its own.
        channels: width of the transformers.
        layers: of each of their levels.
        estimator_channels: width of the estimator.
        height, width: of the scene that the position tables are made for; at other sizes they are interpolated.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        stages: int = 9,
        channels: int = 28,
        layers: Sequence[int] = (1, 1, 1),
        estimator_channels: int = 64,
        height: int = 256,
        width: int = 256,
    ) -> None:
        super().__init__(bands, step)
        require_positive("DAUHST", stages=stages, height=height, width=width)
        self.fuse = Pointwise(2 * bands, bands)
        self.estimate = DegradationEstimator(bands, stages, channels=estimator_channels)
        size = (height, dispersed_width(width, bands, step))
        self.denoisers = nn.ModuleList(
            HalfShuffleTransformer(bands + 1, bands, channels=channels, layers=layers, size=size)
            for _ in range(stages)
        )

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        width = self.check(y, phi)
        phi_s = energy(phi)
        z, alphas, betas = self.start(y, phi)
        for k, denoise in enumerate(self.denoisers):
            z = roll_forward(z, self.step) if k else z
            x = z + backproject((y - measure(z, phi)) / (alphas[:, k] + phi_s), phi)  # b l h w'
            noise = betas[:, k : k + 1].to(x.dtype).expand(-1, -1, *x.shape[-2:])
            z = denoise(torch.cat([roll_back(x, self.step), noise], 1))
        return z[..., :width]

    def start(self, y: Tensor, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z_0 `(b, l, h, w')`, dispersed; alpha and beta `(b, stages, 1, 1)`."""
        support = disperse(first_estimate(y, self.bands, self.step), self.step)
        z = self.fuse(support, phi.expand_as(support))
        return z, *self.estimate(z)


@reference("mst", DegradationEstimator)
def estimator_table(module: DegradationEstimator) -> dict[str, str]:
    return {"enter": "fution", "down": "down_sample", "read": "mlp"}


@reference("mst", DAUHST)
def dauhst_table(module: DAUHST) -> dict[str, str]:
    table = {"fuse": "fution"} | below("estimate.", "para_estimator.", estimator_table(module.estimate))
    for k, denoiser in enumerate(module.denoisers):
        assert isinstance(denoiser, HalfShuffleTransformer)
        table |= below(f"denoisers.{k}.", f"denoisers.{k}.", transformer_table(denoiser))
    return table
