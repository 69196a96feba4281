# SPDX-License-Identifier: Apache-2.0
"""MST++: spectral-wise transformers one after the other, and one of them alone for RGB to spectra.

Paper   MST++: Multi-stage Spectral-wise Transformer for Efficient Spectral Reconstruction, CVPRW 2022,
        arXiv:2204.07908.
Facts   attention over channels: linear in the number of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from widefield.core.pointwise import Pointwise
from widefield.imaging import first_estimate, undisperse
from widefield.models.spectral.blocks import Block, Blocks, UShape, crop, nested, reset_linear_, u_names
from widefield.models.spectral.mst import SpectralAttention, block_names
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.weights.reference import reference


class SpectralTransformer(nn.Module):
    """SST, one stage: 3x3, a U of spectral attention, 3x3, and the input where it has as many channels.

    Shape: `(b, in_channels, h, w)` to `(b, out_channels, h, w)`; height and width multiples of `2**levels`.

    Args:
        in_channels, out_channels: of the map; equal, or there is no residual.
        width: at the top of the U.
        blocks: at each level, the bottom last.
    """

    def __init__(
        self, in_channels: int = 28, out_channels: int = 28, *, width: int = 28, blocks: Sequence[int] = (1, 1, 1)
    ) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.embed = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.u = UShape(width, len(self.blocks) - 1, self._blocks)
        self.map = nn.Conv2d(width, out_channels, 3, padding=1, bias=False)
        self.residual = in_channels == out_channels
        reset_linear_(self)

    def _blocks(self, level: int, width: int) -> Blocks:
        attentions = [SpectralAttention(width, 1 << level) for _ in range(self.blocks[level])]
        return Blocks([Block(width, attention, first_norm=False) for attention in attentions])

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(self.u(self.embed(x)))
        return y + x if self.residual else y


class SpectralBody(nn.Module):
    """`conv, stages, conv`, plus what the first convolution gave: `(b, in, h, w)` to `(b, out, h, w)`, any size.

    With 3 channels in, this is the network for spectra from RGB.
    """

    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 31,
        *,
        stages: int = 3,
        width: int | None = None,
        blocks: Sequence[int] = (1, 1, 1),
    ) -> None:
        super().__init__()
        self.multiple = 8
        self.enter = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.stages = nn.ModuleList(
            SpectralTransformer(
                out_channels, out_channels, width=out_channels if width is None else width, blocks=blocks
            )
            for _ in range(stages)
        )
        self.leave = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        x = self.enter(pad_to_multiple(x, self.multiple))
        y = x
        for stage in self.stages:
            y = stage(y)
        return crop(self.leave(y) + x, height, width)


@network(
    {"mst++": {}},
    title="MST++: Multi-stage Spectral-wise Transformer for Efficient Spectral Reconstruction",
    paper="arXiv:2204.07908", year=2022, input="H", mask="Mask",
)  # fmt: skip
class MSTPlusPlus(SnapshotNetwork):
    """First estimate and plain mask fused by a 1x1, then three spectral-wise transformers.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        stages: transformers.
        width: of each (None: the bands).
        blocks: at each level of each, the bottom last.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        stages: int = 3,
        width: int | None = None,
        blocks: Sequence[int] = (1, 1, 1),
    ) -> None:
        super().__init__(bands, step)
        self.fuse = Pointwise(2 * bands, bands)
        self.body = SpectralBody(bands, bands, stages=stages, width=width, blocks=blocks)

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        self.check(y, phi)
        return self.reconstruct(first_estimate(y, self.bands, self.step), undisperse(phi, self.step))

    def reconstruct(self, x: Tensor, mask: Tensor) -> Tensor:
        """From the first estimate and the mask of every band, `(b, l, h, w)` each, to the cube."""
        return self.body(self.fuse(x, mask.to(x.dtype).expand_as(x)))


def transformer_names(module: SpectralTransformer) -> dict[str, str]:
    """The toolbox's."""
    table = nested(u_names(len(module.blocks) - 1, ours="u."), block_names, module)
    return table | {"embed": "embedding", "map": "mapping"}


@reference("mst", SpectralTransformer)
def _transformer(module: SpectralTransformer) -> dict[str, str]:
    return transformer_names(module)


@reference("mst", SpectralBody)
def _body(module: SpectralBody) -> dict[str, str]:
    table = {"enter": "conv_in", "leave": "conv_out"}
    for i, stage in enumerate(module.stages):
        assert isinstance(stage, SpectralTransformer)
        table |= {f"stages.{i}.{a}": f"body.{i}.{b}" for a, b in transformer_names(stage).items()}
    return table


@reference("mst", MSTPlusPlus)
def _whole(module: MSTPlusPlus) -> dict[str, str]:
    return {f"body.{a}": b for a, b in _body(module.body).items()} | {"fuse": "fution"}
