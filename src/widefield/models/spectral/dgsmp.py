# SPDX-License-Identifier: Apache-2.0
"""DGSMP: gradient steps under a Gaussian scale mixture prior; a network reads its means and weights from the cube.

    x <- x - 2 delta (A^T (A x - y) + w (x - u))      A and A^T learned: convolutions, then shift and sum
    u = spectral(vertical(horizontal(x)))             seven taps each, of their own at every place

Paper   Deep Gaussian Scale Mixture Prior for Spectral Compressive Imaging, CVPR 2021, arXiv:2103.07152.
Facts   convolutions: linear in the number of pixels. The mask is not used: the operator learns it.
*differs*: any size (the code takes squares whose side is a multiple of 16): the features are padded by reflection
for the U and its output cut back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.core.numerics import float32_island, unit, widen
from widefield.core.pointwise import Pointwise
from widefield.imaging import disperse, first_estimate, shift_back
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.weights.reference import Table, reference

TAPS = 7


def convolutions(*channels: int, last: bool = True) -> nn.Sequential:
    """3x3 convolutions from each number of channels to the next, ReLU behind each, or behind all but the last."""
    layers: list[nn.Module] = []
    for a, b in pairwise(channels):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


class Residual(nn.Module):
    """`x + f(x)`, twice, f two 3x3 convolutions with ReLU between: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolutions(channels, channels, channels, last=False)
        self.second = convolutions(channels, channels, channels, last=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        return x + self.second(x)


class LearnedOperator(nn.Sequential):
    """What stands for the coding of A, or of its transpose: `(b, bands, h, w)` to the same."""

    def __init__(self, bands: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(bands, channels, 3, padding=1),
            nn.LeakyReLU(),
            Residual(channels),
            Residual(channels),
            nn.Conv2d(channels, bands, 3, padding=1),
            nn.LeakyReLU(),
        )


class Generator(nn.Sequential):
    """Two 3x3 convolutions with ReLU, and a 1x1."""

    def __init__(self, in_channels: int, width: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, out_channels, 3, padding=1),
            nn.ReLU(),
            Pointwise(out_channels, out_channels),
        )


class PriorNetwork(nn.Module):
    """A U of five levels from features to the weights w and the taps of the three filters.

    Shape: `(b, widths[0], h, w)`, height and width multiples of 16, to w `(b, bands, h, w)` and three times taps
    `(b, 7, bands, h, w)`, of unit length over the 7.
    """

    def __init__(self, bands: int, widths: Sequence[int]) -> None:
        super().__init__()
        narrow, middle, wide = widths
        levels = (narrow, middle, middle, wide, wide)
        self.bands = bands
        self.encoders = nn.ModuleList(
            convolutions(a, b, b) for a, b in zip((narrow, *levels), levels, strict=False)
        )
        self.decoders = nn.ModuleList(
            convolutions(levels[i] + levels[i + 1], levels[i], levels[i]) for i in (3, 2, 1, 0)
        )
        self.weigh = Generator(narrow, narrow, bands)
        self.filters = nn.ModuleList(
            Generator(narrow + middle, TAPS * bands, TAPS * bands) for _ in ("horizontal", "vertical", "spectral")
        )

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        skips: list[Tensor] = []
        for encode in self.encoders:
            x = encode(F.avg_pool2d(skips[-1], 2) if skips else x)
            skips.append(x)
        x, joined = skips.pop(), skips[0]
        for decode in self.decoders:
            joined = torch.cat([skips.pop(), F.interpolate(x, scale_factor=2, mode="bilinear")], 1)
            x = decode(joined)
        # The filters are made of what enters the last decoder, the weights of what leaves it.
        weights = self.weigh(x)
        taps = [generate(joined).unflatten(1, (TAPS, self.bands)) for generate in self.filters]
        with float32_island(x):
            return weights, [unit(widen(tap), 1).to(x.dtype) for tap in taps]


def filtered(x: Tensor, taps: Tensor, dim: int, *, mode: str) -> Tensor:
    """`sum_k taps[:, k] x shifted by k - 3` along `dim` of `(b, l, h, w)`: every place has taps of its own."""
    half = TAPS // 2
    margins = [0, 0] * (3 - dim) + [half, half] + [0, 0] * (dim - 1)  # from the last axis on
    padded = F.pad(x[:, None], margins, mode=mode)[:, 0]
    return (padded.unfold(dim, TAPS, 1).movedim(-1, 1) * taps).sum(1)


@network(
    {"dgsmp": {}}, title="Deep Gaussian Scale Mixture Prior for Spectral Compressive Imaging",
    paper="arXiv:2103.07152", year=2021, input="Y", mask="none",
)  # fmt: skip
class DGSMP(SnapshotNetwork):
    """Unrolled gradient steps with a learned operator and a learned Gaussian scale mixture prior, shared by all.

    Shape: measurement `(b, h, w')`, and a mask that is checked if given and not used, to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        stages: gradient steps. Their features are densely connected; step lengths are their own.
        widths: of the U's levels: the first, the second and third, the two last. The operator has the second.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self, bands: int = 28, step: int = 2, *, stages: int = 4, widths: tuple[int, int, int] = (32, 64, 128)
    ) -> None:
        super().__init__(bands, step)
        require_positive("DGSMP", stages=stages)
        if len(widths) != 3 or min(widths) < 1:
            raise ValueError(f"DGSMP: widths takes three positive numbers, got {widths!r}")
        self.forward_operator = LearnedOperator(bands, widths[1])
        self.transpose = LearnedOperator(bands, widths[1])
        self.prior = PriorNetwork(bands, widths)
        self.look = nn.Conv2d(bands, widths[0], 3, padding=1)
        self.connections = nn.ModuleList(Pointwise((i + 1) * widths[0], widths[0]) for i in range(stages))
        self.lengths = nn.ParameterList(nn.Parameter(torch.empty(1)) for _ in range(stages))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier normal weights, no biases, step lengths about 0.1: as published."""
        for part in self.modules():
            if isinstance(part, nn.Conv2d | Pointwise):
                nn.init.xavier_normal_(part.weight)
                assert part.bias is not None
                nn.init.zeros_(part.bias)
        for length in self.lengths:
            nn.init.normal_(length, 0.1, 0.01)

    def forward(self, y: Tensor, phi: Tensor | None = None) -> Tensor:
        self.check(y, phi)
        x = first_estimate(y, self.bands, self.step)
        y = 2 / self.bands * y
        features: list[Tensor] = []
        for connect, length in zip(self.connections, self.lengths, strict=True):
            misfit = disperse(self.forward_operator(x), self.step).sum(1) - y
            data = self.transpose(shift_back(misfit, self.bands, self.step))
            features.append(self.look(x))
            w, taps = self._prior(connect(*features))
            x = x - 2 * length.to(x.dtype) * (data + w * (x - self.means(x, taps)))
        return x

    def means(self, x: Tensor, taps: Sequence[Tensor]) -> Tensor:
        """u, the local means: edges repeated in space, zeros beyond the first and the last band."""
        horizontal, vertical, spectral = taps
        u = filtered(filtered(x, horizontal, 3, mode="replicate"), vertical, 2, mode="replicate")
        return filtered(u, spectral, 1, mode="constant")

    def _prior(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        height, width = x.shape[2:]
        w, taps = self.prior(pad_to_multiple(x, 16))
        return w[..., :height, :width], [tap[..., :height, :width] for tap in taps]


@reference("mst", DGSMP)
def _dgsmp(module: DGSMP) -> Table:
    table: dict[str, str] = {"look": "conv"}
    for ours, theirs in (("forward_operator", "A"), ("transpose", "AT")):
        table |= {f"{ours}.{i}": f"{theirs}.{i}" for i in (0, 4)}
        table |= {f"{ours}.{i}.first": f"{theirs}.{i}.block1" for i in (2, 3)}
        table |= {f"{ours}.{i}.second": f"{theirs}.{i}.block2" for i in (2, 3)}
    table |= {f"prior.encoders.{i}": f"Encoding.E{i + 1}" for i in range(5)}
    table |= {f"prior.decoders.{i}": f"Decoding.D{i + 1}" for i in range(4)}
    table |= {f"prior.filters.{i}": f"Decoding.filter_g_{i + 1}" for i in range(3)}
    for i in range(len(module.lengths)):
        table |= {f"connections.{i}": f"Den_con{i + 1}", f"lengths.{i}": f"delta_{i}"}
    return table | {"prior.weigh": "Decoding.w_generator"}
