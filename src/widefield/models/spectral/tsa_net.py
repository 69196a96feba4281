# SPDX-License-Identifier: Apache-2.0
"""TSA-Net: a U-Net of Res2Net blocks whose last three decoder steps end in spatial-spectral attention (TSA).

Paper   End-to-End Low Cost Compressive Spectral Imaging with Spatial-Spectral Self-Attention, ECCV 2020. No arXiv.
*differs*: the original takes 256 x 256 only; here any size, see `tsa_block`. Scenes are padded by reflection to
multiples of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.branch import normalise_and_rectify
from widefield.core.errors import require_positive
from widefield.core.norm import BatchNorm
from widefield.imaging import first_estimate, undisperse
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.models.spectral.tsa_block import PointwiseNorm, TSABlock, block_names, under
from widefield.weights.reference import Table, reference


class Res2Net(nn.Module):
    """Res2Net block without its residual: 1x1, a chain of 3x3 over the parts of the map, 1x1.

    Part i is convolved together with what part i - 1 became; the last is passed on (arXiv:1904.01169).

    Shape: `(b, channels, h, w)` to the same.

    Args:
        channels: in and out.
        width: of a part.
        scale: parts.
    """

    def __init__(self, channels: int, width: int, scale: int = 4) -> None:
        super().__init__()
        require_positive("Res2Net", channels=channels, width=width, scale=scale)
        self.scale = scale
        self.enter = PointwiseNorm(channels, width * scale)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(scale - 1)
        )
        self.norms = nn.ModuleList(BatchNorm(width) for _ in range(scale - 1))
        self.leave = PointwiseNorm(width * scale, channels)

    def forward(self, x: Tensor) -> Tensor:
        *parts, last = self.enter(x).relu().chunk(self.scale, 1)
        done: list[Tensor] = []
        for part, convolve, norm in zip(parts, self.convolutions, self.norms, strict=True):
            part = part + done[-1] if done else part
            done.append(normalise_and_rectify(convolve(part), norm, 0.0))
        return self.leave(torch.cat([*done, last], 1))


def rectified(in_channels: int, channels: int) -> nn.Sequential:
    """3x3 and ReLU."""
    return nn.Sequential(nn.Conv2d(in_channels, channels, 3, padding=1), nn.ReLU(inplace=True))


class Decoder(nn.Module):
    """The map twice as large beside the encoder's of the same size, `Res2Net`, 3x3, ReLU."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(in_channels, channels, 2, 2)
        self.mix = Res2Net(2 * channels, max(1, channels // 2))
        self.leave = rectified(2 * channels, channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.leave(self.mix(torch.cat([self.enlarge(x).relu_(), skip], 1)))


HALVE = ((1, 1), (1, 0), (0, 0))  # by level: rows and columns attend on a quarter of the scene at each


@network(
    {"tsa-net": {}},
    title="End-to-End Low Cost Compressive Spectral Imaging with Spatial-Spectral Self-Attention",
    paper="ECCV 2020", year=2020, input="HM", mask="none",
)  # fmt: skip
class TSANet(SnapshotNetwork):
    """Spatial-spectral self-attention network. The mask weighs its input; the network itself sees none.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`, in (0, 1).

    Args:
        bands, step: of the cube and the sensor.
        size: h and w of the scenes that the linear layers are built for; scenes of any size are taken, those of
            this size without resampling. Train a new network at the size it will see.
        widths: of the levels, the top first; four or more. The first two have plain convolutions on the way down.
        heads: of each attention.
        features: of a line and of a band, for the attention of each of the first three levels.

    Raises:
        ValueError: fewer than four levels, another number of features than three pairs, a number below 1.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        size: tuple[int, int] = (256, 256),
        widths: Sequence[int] = (64, 128, 256, 512, 1024),
        heads: int = 8,
        features: Sequence[tuple[int, int]] = ((48, 30), (64, 40), (64, 80)),
    ) -> None:
        super().__init__(bands, step)
        widths = tuple(widths)
        if len(widths) < 4 or min(widths) < 4:
            raise ValueError(f"TSANet: widths takes four or more numbers, each 4 or more, got {widths!r}")
        if len(features) != len(HALVE) or len(size) != 2:
            raise ValueError(
                f"TSANet: features takes {len(HALVE)} pairs and size is one, got {features!r} and {size!r}"
            )
        require_positive("TSANet", height=size[0], width=size[1], heads=heads)
        self.multiple = 1 << (len(widths) - 1)
        padded = [-(-edge // self.multiple) * self.multiple for edge in size]
        self.encoders = nn.ModuleList(
            nn.Sequential(
                rectified(before, width), rectified(width, width) if level < 2 else Res2Net(width, width // 4)
            )
            for level, (before, width) in enumerate(zip((bands, *widths[:-2]), widths[:-1], strict=True))
        )
        self.bottom = nn.Sequential(rectified(widths[-2], widths[-1]), rectified(widths[-1], widths[-1]))
        self.decoders = nn.ModuleList(Decoder(deep, wide) for wide, deep in pairwise(widths))
        self.attentions = nn.ModuleList(
            TSABlock(
                widths[level],
                widths[level] if level else bands,
                heads=heads,
                size=(padded[0] >> level, padded[1] >> level),
                features=features[level],
                halve=halve,
                smooth=level == 0,
            )
            for level, halve in enumerate(HALVE)
        )
        self.leave = nn.Conv2d(bands, bands, 1)

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        self.check(y, phi)
        return self.body(first_estimate(y, self.bands, self.step) * undisperse(phi, self.step).to(y.dtype))

    def body(self, x: Tensor) -> Tensor:
        """From the masked first estimate `(b, l, h, w)` to the cube."""
        height, width = x.shape[2:]
        x = pad_to_multiple(x, self.multiple)
        skips: list[Tensor] = []
        for encoder in self.encoders:
            skips.append(encoder(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for level in reversed(range(len(self.decoders))):
            x = self.decoders[level](x, skips[level])
            if level < len(self.attentions):
                x = self.attentions[level](x)
        return self.leave(x).sigmoid()[..., :height, :width]


RES2NET = {
    "enter.project": "conv_init", "enter.norm": "bn_init", "convolutions": "convs", "norms": "bns",
    "leave.project": "conv_end", "leave.norm": "bn_end",
}  # fmt: skip


@reference("mst", Res2Net)
def _res2net(module: Res2Net) -> Table:
    return RES2NET


@reference("mst", TSANet)
def _tsa_net(module: TSANet) -> dict[str, str]:
    """Levels count from 1."""
    table = {
        "leave": "conv_last", "bottom.0.0": "bottom1.0", "bottom.1.0": "bottom2.0",
    }  # fmt: skip
    for level in range(len(module.encoders)):
        theirs = f"tconv_down{level + 1}"
        second = {"0": "0"} if level < 2 else RES2NET
        table |= {f"encoders.{level}.0.0": f"{theirs}.layer1.0"}
        table |= under(f"encoders.{level}.1", f"{theirs}.layer2", second)
    for level in range(len(module.decoders)):
        ours, theirs = f"decoders.{level}", f"tconv_up{level + 1}"
        table |= {f"{ours}.enlarge": f"{theirs}.layer1.0", f"{ours}.leave.0": f"{theirs}.layer3.0"}
        table |= under(f"{ours}.mix", f"{theirs}.layer2", RES2NET)
    for level, attention in enumerate(module.attentions):
        assert isinstance(attention, TSABlock)
        table |= under(f"attentions.{level}", f"transform{level + 1}", block_names(attention))
    return table
