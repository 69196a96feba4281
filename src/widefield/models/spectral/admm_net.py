# SPDX-License-Identifier: Apache-2.0
"""ADMM-Net: the alternating direction method of multipliers, unrolled, with a U-Net as the prior of each stage.

Paper   Deep Tensor ADMM-Net for Snapshot Compressive Imaging, ICCV 2019, after which the toolbox names it.
Facts   one learnt penalty a stage, 0 to begin with, where the step is GAP's; the stages share no weights.
Differs this is the network of the toolbox caiyuanhao1998/MST, not the tensor network of the paper: its U-Nets are
        GAP-Net's. It returns the last cube in the dispersed frame, cropped, and compares it with the undispersed
        truth; here it is rolled back first. `dispersed_output=True` is theirs, for weights trained so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.core.numerics import widen
from widefield.imaging import backproject, energy, project_admm, roll_back, roll_forward
from widefield.models.spectral.network import SnapshotNetwork, network
from widefield.models.spectral.unfolding_unet import UnfoldingUNet, unet_table
from widefield.weights.reference import reference


@network(
    {"admm-net": {}}, title="Deep Tensor ADMM-Net for Snapshot Compressive Imaging", paper="ICCV 2019", year=2019,
    input="Y", mask="Phi, Phi_s",
)  # fmt: skip
class ADMMNet(SnapshotNetwork):
    """Projects, denoises and carries the difference of the two on, stage after stage.

    Shape: `(b, h, w'), (l, h, w') or (b, l, h, w') -> (b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        stages: projections, each with a penalty and a U-Net of its own.
        widths: channels of the U-Nets' levels.
        dispersed_output: return the first w columns of the dispersed cube, as the published code.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        stages: int = 9,
        widths: Sequence[int] = (32, 64, 128),
        dispersed_output: bool = False,
    ) -> None:
        super().__init__(bands, step)
        require_positive("ADMMNet", stages=stages)
        self.dispersed_output = dispersed_output
        self.penalties = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(stages))  # gamma
        self.denoisers = nn.ModuleList(UnfoldingUNet(bands, widths=widths) for _ in range(stages))

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        width, dtype = self.check(y, phi), y.dtype
        y, phi = widen(y), widen(phi)  # dim pixels divide by little, which half precision overflows on
        total = energy(phi)
        theta = backproject(y, phi)  # b l h w'
        b = torch.zeros_like(theta)
        for gamma, denoise in zip(self.penalties, self.denoisers, strict=True):
            x = project_admm(theta, b, y, phi, total, gamma)
            theta = roll_forward(denoise(roll_back(x - b, self.step).to(dtype)), self.step)
            b = b - (x - theta)
        cube = theta if self.dispersed_output else roll_back(theta, self.step)
        return cube[..., :width].to(dtype)


@reference("mst", ADMMNet)
def _admm_net(module: ADMMNet) -> dict[str, str]:
    table: dict[str, str] = {}
    for stage, unet in enumerate(module.denoisers):
        assert isinstance(unet, UnfoldingUNet)
        table[f"penalties.{stage}"] = f"gamma{stage + 1}"
        table |= unet_table(unet, f"denoisers.{stage}.", f"unet{stage + 1}.")
    return table
