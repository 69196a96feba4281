# SPDX-License-Identifier: Apache-2.0
"""TSA-Net: a U-Net whose decoder attends along rows, columns and bands, one after the other.

    V   g heads of values, (c, h, w) each, on a map halved as often as the level asks
    Y = B (R V C^T)         R, C, B = softmax(Q K^T / sqrt(d)) over rows, columns, bands, of each head
    y = x + aggregate(Y)    at the last level, B = (softmax(..) + (1 + cos(pi (i - j) / (c - 1))) / 2) / sqrt(1.1)

Paper   End-to-End Low Cost Compressive Spectral Imaging with Spatial-Spectral Self-Attention, ECCV 2020. No arXiv.
Facts   cost g c h w (h + w + c) for each attention; its maps are h x h, w x w and c x c, never hw x hw.
*differs*: queries and keys come from linear layers over the pixels of a row, a column or a whole band, so that the
original takes one image size. Here a line or a band of another size is first brought to the size these layers are
built for: averaged where it is longer, interpolated where it is shorter. At `size` nothing is resampled. Scenes are
padded by reflection to multiples of 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.branch import normalise_and_rectify
from widefield.core.errors import require_positive
from widefield.core.norm import BatchNorm
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.resample import along, interpolation_matrix, pooling_matrix
from widefield.imaging import first_estimate, undisperse
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.weights.reference import Table, reference

SMALLEST = 13  # pixels that two 5-tap convolutions of stride 2 need


def smoothness(bands: int) -> Tensor:
    """`(bands, bands)`: how alike bands i and j are taken to be, `(1 + cos(pi (i - j) / (bands - 1))) / 2`."""
    i = torch.arange(bands, dtype=torch.float64)
    return (0.5 + 0.5 * torch.cos(math.pi * (i - i[:, None]) / max(bands - 1, 1))).float()


def fit(x: Tensor, size: int, axis: int) -> Tensor:
    """An axis of `x` brought to `size`: averaged where it is longer, interpolated linearly where it is shorter."""
    given = x.shape[axis]
    if given == size:
        return x
    resample = pooling_matrix(size, given, x) if given > size else interpolation_matrix(size, given, False, x)
    return along(x, resample, axis)


def attention_map(q: Tensor, k: Tensor, width: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(width))`, float32 at least: `(b, g, n, d)` twice to `(b, g, n, n)`."""
    with float32_island(q):
        q, k = widen(q), widen(k)
        return (q @ k.mT / width.to(q.dtype).sqrt()).softmax(-1)


class ConvolutionNorm(nn.Module):
    """`relu(norm(conv(x)))`; the convolution has a bias, as published."""

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int],
        padding: int | tuple[int, int],
    ) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(in_channels, channels, kernel, stride, padding)
        self.norm = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return normalise_and_rectify(self.convolve(x), self.norm, 0.0)


class PointwiseNorm(nn.Module):
    """`norm(W x)`, `(b, in, h, w)` to `(b, channels, h, w)`."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.project = Pointwise(in_channels, channels, bias=False)
        self.norm = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.project(x))


class LineFeature(nn.Module):
    """`features` numbers of each row and head: `(b, c, h, w)` to `(b, g, h / 2^m, features)`, m the sum of `halve`.

    Args:
        channels: c.
        heads: g.
        length: w that the linear layer is built for.
        features: of a row.
        halve: for each of two convolutions, whether it halves the rows; both halve the columns.
    """

    def __init__(self, channels: int, heads: int, length: int, features: int, halve: tuple[int, int]) -> None:
        super().__init__()
        self.length = length
        self.convolve = nn.Sequential(*(
            ConvolutionNorm(width, heads, (1 + 2 * m, 5), (1 + m, 2), (m, 2))
            for width, m in zip((channels, heads), halve, strict=True)
        ))  # fmt: skip
        self.project = nn.Linear(-(-length // 4), features)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.convolve(fit(x, self.length, -1))).relu()


class BandFeature(nn.Module):
    """`features` numbers of each band and head: `(b, c, h, w)` to `(b, g, c, features)`.

    Args:
        channels: c, the bands.
        heads: g.
        size: h and w that the linear layer is built for; at least 13, below that a band is enlarged.
        features: of a band.
    """

    def __init__(self, channels: int, heads: int, size: tuple[int, int], features: int) -> None:
        super().__init__()
        self.heads, self.size = heads, tuple(max(edge, SMALLEST) for edge in size)
        self.convolve = nn.Sequential(*(ConvolutionNorm(channels, channels, 5, 2, 0) for _ in range(2)))
        pixels = math.prod(((edge - 5) // 2 - 4) // 2 + 1 for edge in self.size)
        self.project = nn.Linear(pixels, heads * features)

    def forward(self, x: Tensor) -> Tensor:
        for axis, edge in enumerate(self.size, start=2):
            x = fit(x, edge, axis)
        y = self.project(self.convolve(x).flatten(2)).relu()  # (b, c, g features)
        return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class TSABlock(nn.Module):
    """Spatial-spectral self-attention (TSA): rows, columns and bands.

    Shape: `(b, in_channels, h, w) -> (b, channels, h, w)`.

    Args:
        in_channels: of the input.
        channels: of the output; the bands of the spectral attention.
        heads: of all three attentions.
        size: h and w that the linear layers are built for. Any size is taken.
        features: of a row or column, and of a band.
        halve: for each of two steps, whether rows and columns attend on a map half as large.
        smooth: add the fixed smoothness to the attention of the bands.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        heads: int = 8,
        size: tuple[int, int],
        features: tuple[int, int],
        halve: tuple[int, int] = (0, 0),
        smooth: bool = False,
    ) -> None:
        super().__init__()
        (height, width), (spatial, spectral) = size, features
        require_positive("TSABlock", heads=heads, height=height, width=width, spatial=spatial, spectral=spectral)
        self.heads, self.channels = heads, channels
        self.enter = PointwiseNorm(in_channels, channels)
        self.row_query = LineFeature(channels, heads, width, spatial, halve)
        self.row_key = LineFeature(channels, heads, width, spatial, halve)
        self.column_query = LineFeature(channels, heads, height, spatial, halve)
        self.column_key = LineFeature(channels, heads, height, spatial, halve)
        self.band_query = BandFeature(channels, heads, size, spectral)
        self.band_key = BandFeature(channels, heads, size, spectral)
        self.value = PointwiseNorm(channels, heads * channels)
        steps = sum(halve)
        self.down = nn.Sequential(
            *(ConvolutionNorm(channels << i, channels << i + 1, 3, 2, 1) for i in range(steps))
        )
        scale = 1 << steps
        self.up = nn.ConvTranspose2d(channels * scale, channels, scale, scale) if steps else nn.Identity()
        self.aggregate = Pointwise(heads * channels, channels)
        # Constants that published states hold.
        self.register_buffer("spatial_width", torch.tensor(float(spatial)))
        self.register_buffer("spectral_width", torch.tensor(float(spectral)))
        self.register_buffer("gate", torch.tensor(1.0))
        self.register_buffer("smoothness", smoothness(channels)[None] if smooth else None)
        self.register_buffer("smoothness_scale", torch.tensor(1.1) if smooth else None)

    spatial_width: Tensor
    spectral_width: Tensor
    gate: Tensor
    smoothness: Tensor | None
    smoothness_scale: Tensor | None

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """R `(b, g, h', h')`, C `(b, g, w', w')` and B `(b, g, c, c)` of a map that has entered."""
        rows = attention_map(self.row_query(x), self.row_key(x), self.spatial_width)
        columns = attention_map(self.column_query(x.mT), self.column_key(x.mT), self.spatial_width)
        bands = attention_map(self.band_query(x), self.band_key(x), self.spectral_width)
        if self.smoothness is not None and self.smoothness_scale is not None:
            bands = (bands + self.smoothness.to(bands.dtype)) / self.smoothness_scale.to(bands.dtype).sqrt()
        return rows.to(x.dtype), columns.to(x.dtype), bands.to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.enter(x))

    def mix(self, x: Tensor) -> Tensor:
        """`x + aggregate(B (R V C^T))` of a map that has entered."""
        rows, columns, bands = self.maps(x)
        v = self.value(x).unflatten(1, (self.heads, -1)).flatten(0, 1)  # (b g, c, h, w)
        v = self.down(v).unflatten(0, (-1, self.heads))  # (b, g, c', h', w')
        v = (v.flatten(2, 3) @ columns.mT).unflatten(2, v.shape[2:4])
        v = rows[:, :, None] @ v
        v = self.up(v.flatten(0, 1))[..., : x.shape[2], : x.shape[3]]
        v = bands @ v.flatten(2).unflatten(0, (-1, self.heads))  # (b, g, c, n)
        return x + self.gate.to(x.dtype) * self.aggregate(v.flatten(1, 2)).unflatten(2, x.shape[2:])


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
                f"TSANet: features takes {len(HALVE)} pairs and size one, got {tuple(features)!r} and {tuple(size)!r}"
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
        self.decoders = nn.ModuleList(
            Decoder(deep, wide) for wide, deep in zip(widths[:-1], widths[1:], strict=True)
        )
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


def _nested(outer: Table, ours: str, theirs: str) -> Table:
    return {f"{ours}.{a}": f"{theirs}.{b}" for a, b in outer.items() if isinstance(b, str)}


RES2NET: Table = {
    "enter.project": "conv_init", "enter.norm": "bn_init", "convolutions": "convs", "norms": "bns",
    "leave.project": "conv_end", "leave.norm": "bn_end",
}  # fmt: skip
FEATURE: Table = {
    "convolve.0.convolve": "conv1.0", "convolve.0.norm": "conv1.1",
    "convolve.1.convolve": "conv2.0", "convolve.1.norm": "conv2.1", "project": "fully.0",
}  # fmt: skip
AXES = {"row": "x", "column": "y", "band": "lambda"}


@reference("mst", Res2Net)
def _res2net(module: Res2Net) -> Table:
    return RES2NET


@reference("mst", TSABlock)
def _block(module: TSABlock) -> Table:
    table = {
        "spatial_width": "uSpatial", "spectral_width": "uSpectral", "gate": "gamma", "smoothness": "mask",
        "smoothness_scale": "attn_scale", "up": "up_sample", "aggregate": "aggregation",
        "enter.project": "preproc.0", "enter.norm": "preproc.1", "value.project": "value.0", "value.norm": "value.1",
    }  # fmt: skip
    for i in range(len(module.down)):
        table |= {f"down.{i}.convolve": f"down_sample.{i}.0", f"down.{i}.norm": f"down_sample.{i}.1"}
    for role in ("query", "key"):
        for axis, theirs in AXES.items():
            table |= _nested(FEATURE, f"{axis}_{role}", f"{role}_{theirs}")
    return table


@reference("mst", TSANet)
def _tsa_net(module: TSANet) -> Table:
    """Levels count from 1."""
    table: dict[str, str | tuple[str, ...] | None] = {
        "leave": "conv_last", "bottom.0.0": "bottom1.0", "bottom.1.0": "bottom2.0",
    }  # fmt: skip
    for level, encoder in enumerate(module.encoders):
        theirs = f"tconv_down{level + 1}"
        second = {"0": "0"} if level < 2 else RES2NET
        table |= {f"encoders.{level}.0.0": f"{theirs}.layer1.0"}
        table |= _nested(second, f"encoders.{level}.1", f"{theirs}.layer2")
    for level in range(len(module.decoders)):
        ours, theirs = f"decoders.{level}", f"tconv_up{level + 1}"
        table |= {f"{ours}.enlarge": f"{theirs}.layer1.0", f"{ours}.leave.0": f"{theirs}.layer3.0"}
        table |= _nested(RES2NET, f"{ours}.mix", f"{theirs}.layer2")
    for level, attention in enumerate(module.attentions):
        table |= _nested(_block(attention), f"attentions.{level}", f"transform{level + 1}")
    return table
