# SPDX-License-Identifier: Apache-2.0
"""GAP-Net: generalised alternating projection, unrolled, with a U-Net as the prior of each stage.

Paper   GAP-net for Snapshot Compressive Imaging, arXiv:2012.08364.
Facts   each projection is exact, `A x = y`, and pixel-wise; the stages share no weights.
Differs the toolbox and the authors return the last cube in the dispersed frame, cropped, and compare it with the
        undispersed truth; here it is rolled back first. `dispersed_output=True` is theirs, for weights trained so.
        The authors also supervise stages 7 and 8, which this does not return, and leave the squares out of Phi_s,
        which is the same for a binary mask only.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.core.numerics import widen
from widefield.imaging import backproject, energy, project_gap, roll_back, roll_forward
from widefield.models.spectral.network import SnapshotNetwork, network
from widefield.models.spectral.unfolding_unet import UnfoldingUNet, unet_table
from widefield.weights.reference import reference


@network(
    {"gap-net": {}}, title="GAP-net for Snapshot Compressive Imaging", paper="arXiv:2012.08364", year=2020,
    input="Y", mask="Phi, Phi_s",
)  # fmt: skip
class GAPNet(SnapshotNetwork):
    """Projects onto the measurement and denoises, stage after stage.

    Shape: `(b, h, w'), (l, h, w') or (b, l, h, w') -> (b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        stages: projections, each with a U-Net of its own.
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
        require_positive("GAPNet", stages=stages)
        self.dispersed_output = dispersed_output
        self.denoisers = nn.ModuleList(UnfoldingUNet(bands, widths=widths) for _ in range(stages))

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        width, dtype = self.check(y, phi), y.dtype
        y, phi = widen(y), widen(phi)  # dim pixels divide by little, which half precision overflows on
        total = energy(phi)
        x = backproject(y, phi)  # b l h w'
        for denoise in self.denoisers:
            x = roll_back(project_gap(x, y, phi, total), self.step)
            x = roll_forward(denoise(x.to(dtype)), self.step)
        cube = x if self.dispersed_output else roll_back(x, self.step)
        return cube[..., :width].to(dtype)


@reference("mst", GAPNet)
def _gap_net(module: GAPNet) -> dict[str, str]:
    table: dict[str, str] = {}
    for stage, unet in enumerate(module.denoisers):
        assert isinstance(unet, UnfoldingUNet)
        table |= unet_table(unet, f"denoisers.{stage}.", f"unet{stage + 1}.")
    return table
