# SPDX-License-Identifier: Apache-2.0
"""Lambda-Net: a U-Net with one global attention, in the dispersed frame.

    x0 = conv([2 y / l, Phi])
    u = unet(x0)                       at a quarter of the size  x + g softmax(q^T k / sqrt(c / 8)) v
    cube = roll_back(refine(u) + x0)   refine: twice, a few maps of u's own, put beside it and fused

Paper   lambda-Net: Reconstruct Hyperspectral Images from a Snapshot Measurement, ICCV 2019. No arXiv.
        The form is that of the toolbox of MST (arXiv:2111.07910): a generator alone, no adversarial training.
Facts   the attention is quadratic in the pixels of the map at a quarter of the size, and never held whole.
*differs*: each sample may have its own mask. The size and cost that tables report (62.64 M parameters, 117.98 G)
are not those of the toolbox's network: that one, and so this, has 32.73 M and 32.2 G.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.attention.sdpa import attention
from widefield.core.errors import require_positive
from widefield.core.gates import scalar_gate
from widefield.core.pointwise import Pointwise
from widefield.imaging import roll_back
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.weights.reference import Table, reference

ATTENDED = 2  # level of the attention
REFINED = (6, 12)  # maps that the two refinements add


class LambdaNetAttention(nn.Module):
    """`x + g softmax(q^T k / sqrt(d)) v`, d an eighth of the channels, g learned and 1 at the start.

    Shape: `(b, channels, h, w) -> (b, channels, h, w)`.

    Args:
        channels: of the input.
        inner: d (None: an eighth of the channels, at least 1).
    """

    def __init__(self, channels: int, *, inner: int | None = None) -> None:
        super().__init__()
        require_positive("LambdaNetAttention", channels=channels, inner=inner)
        inner = max(1, channels // 8) if inner is None else inner
        self.scale = inner**-0.5
        self.query = Pointwise(channels, inner, bias=False)
        self.key = Pointwise(channels, inner, bias=False)
        self.value = Pointwise(channels, channels, bias=False)
        self.gate = scalar_gate(1.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).flatten(2) for project in (self.query, self.key, self.value))
        return x + self.gate.to(x.dtype) * attention(q, k, v, scale=self.scale).unflatten(2, x.shape[2:])


class Convolutions(nn.Sequential):
    """3x3 convolutions with ReLU between them, none behind: `(b, c, h, w)` to `(b, channels, h, w)`."""

    def __init__(self, in_channels: int, channels: int, number: int) -> None:
        layers: list[nn.Module] = [nn.Conv2d(in_channels, channels, 3, padding=1)]
        for _ in range(number - 1):
            layers += [nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 3, padding=1)]
        super().__init__(*layers)


class Refinement(nn.Module):
    """`fuse([x, relu(look(x))])`, 3x3: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int, added: int) -> None:
        super().__init__()
        self.look = nn.Conv2d(channels, added, 3, padding=1)
        self.fuse = nn.Conv2d(channels + added, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fuse(torch.cat([x, self.look(x).relu()], 1))


@network(
    {"lambda-net": {}},
    title="lambda-Net: Reconstruct Hyperspectral Images from a Snapshot Measurement",
    paper="ICCV 2019", year=2019, input="Y", mask="Phi",
)  # fmt: skip
class LambdaNet(SnapshotNetwork):
    """U-Net with self-attention, as the toolbox trains it: 32.73 M parameters, not the 62.64 M that tables report.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        widths: of the levels, the top first; three or more. The last two levels have two convolutions, the others
            three; the attention stands in the third, on the way up.

    Raises:
        ValueError: fewer than three levels, or a width below 1.
    """

    def __init__(
        self, bands: int = 28, step: int = 2, *, widths: Sequence[int] = (32, 64, 128, 256, 512, 1024)
    ) -> None:
        super().__init__(bands, step)
        self.widths = tuple(widths)
        if len(self.widths) < 3 or min(self.widths) < 1:
            raise ValueError(
                f"LambdaNet: widths takes three or more positive numbers, one a level, got {widths!r}"
            )
        depths = [3 if level < len(self.widths) - 2 else 2 for level in range(len(self.widths))]
        self.fuse = nn.Conv2d(1 + bands, bands, 3, padding=1)
        self.downs = nn.ModuleList(map(Convolutions, (bands, *self.widths), self.widths, depths))
        self.raises = nn.ModuleList(nn.ConvTranspose2d(deep, wide, 2, 2) for wide, deep in pairwise(self.widths))
        self.ups = nn.ModuleList(
            Convolutions(2 * width, width, depth)
            for width, depth in zip(self.widths[:-1], depths[:-1], strict=True)
        )
        self.attention = LambdaNetAttention(self.widths[ATTENDED])
        self.refine = nn.Sequential(*(Refinement(self.widths[0], added) for added in REFINED))
        self.leave = nn.Conv2d(self.widths[0], bands, 1)

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        width = self.check(y, phi)
        given = torch.cat([2 / self.bands * y[:, None], phi.to(y.dtype).expand(len(y), -1, -1, -1)], 1)
        fused = self.fuse(given)  # (b, l, h, w')
        x = pad_to_multiple(fused, 1 << (len(self.widths) - 1))
        x = self.leave(self.refine(self.unet(x)))
        x = x[..., : y.shape[-2], : y.shape[-1]] + fused
        return roll_back(x, self.step)[..., :width]

    def unet(self, x: Tensor) -> Tensor:
        """`(b, l, h, w)` to `(b, widths[0], h, w)`."""
        skips: list[Tensor] = []
        for down in self.downs:
            x = down(F.max_pool2d(skips[-1], 2) if skips else x)
            skips.append(x)
        for level in reversed(range(len(self.ups))):
            x = self.ups[level](torch.cat([self.raises[level](x), skips[level]], 1))
            if level == ATTENDED:
                x = self.attention(x)
        return x


ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "gate": "gamma"}


@reference("mst", LambdaNetAttention)
def _attention(module: LambdaNetAttention) -> Table:
    return ATTENTION


@reference("mst", LambdaNet)
def _lambda_net(module: LambdaNet) -> Table:
    """Levels count from 1; the last two are double convolutions, and so named."""
    table = {"fuse": "conv_in", "leave": "conv_last5"}
    table |= {f"attention.{ours}": f"attention.{theirs}" for ours, theirs in ATTENTION.items()}
    for i, part in enumerate(("look", "fuse")):
        table |= {f"refine.{j}.{part}": f"conv_last{1 + 2 * j + i}" for j in range(len(REFINED))}
    for level in range(len(module.widths)):
        kind = "t_conv" if level < len(module.widths) - 2 else "d_conv"
        table[f"downs.{level}"] = f"conv_down{level + 1}.{kind}"
        table[f"ups.{level}"] = f"conv_up{level + 1}.{kind}"
        table[f"raises.{level}"] = f"upsample{level + 1}"
    return table
