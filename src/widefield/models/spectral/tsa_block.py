# SPDX-License-Identifier: Apache-2.0
"""TSA: attention along rows, columns and bands, one after the other.

    V   g heads of values, (c, h, w) each, on a map halved as often as asked
    Y = B (R V C^T)         R, C, B = softmax(Q K^T / sqrt(d)) over rows, columns, bands, of each head
    y = x + aggregate(Y)    where smooth, B = (softmax(..) + (1 + cos(pi (i - j) / (c - 1))) / 2) / sqrt(1.1)

Paper   End-to-End Low Cost Compressive Spectral Imaging with Spatial-Spectral Self-Attention, ECCV 2020. No arXiv.
Facts   cost g c h w (h + w + c); the maps are h x h, w x w and c x c for each head, never hw x hw.
*differs*: queries and keys come from linear layers over the pixels of a row, a column or a whole band, so that the
original takes one image size. Here a line or a band of another size is first brought to the size these layers are
built for: averaged where it is longer, interpolated where it is shorter. At that size nothing is resampled.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from widefield.core.branch import normalise_and_rectify
from widefield.core.errors import require_positive
from widefield.core.norm import BatchNorm
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.core.resample import along, interpolation_matrix, pooling_matrix
from widefield.weights.reference import reference

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
    """`features` numbers of each row and head: `(b, c, h, w)` to `(b, g, h / 2^m, features)`, m = sum(halve).

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


def under(ours: str, theirs: str, table: dict[str, str]) -> dict[str, str]:
    """A table of a part, as the table of what holds it."""
    return {f"{ours}.{a}": f"{theirs}.{b}" for a, b in table.items()}


FEATURE = {
    "convolve.0.convolve": "conv1.0", "convolve.0.norm": "conv1.1",
    "convolve.1.convolve": "conv2.0", "convolve.1.norm": "conv2.1", "project": "fully.0",
}  # fmt: skip
AXES = {"row": "x", "column": "y", "band": "lambda"}


@reference("mst", TSABlock)
def block_names(module: TSABlock) -> dict[str, str]:
    """Rows are the original's x, columns its y."""
    table = {
        "spatial_width": "uSpatial", "spectral_width": "uSpectral", "gate": "gamma", "smoothness": "mask",
        "smoothness_scale": "attn_scale", "up": "up_sample", "aggregate": "aggregation",
        "enter.project": "preproc.0", "enter.norm": "preproc.1",
        "value.project": "value.0", "value.norm": "value.1",
    }  # fmt: skip
    for i in range(len(module.down)):
        table |= {f"down.{i}.convolve": f"down_sample.{i}.0", f"down.{i}.norm": f"down_sample.{i}.1"}
    for role in ("query", "key"):
        for axis, theirs in AXES.items():
            table |= under(f"{axis}_{role}", f"{role}_{theirs}", FEATURE)
    return table
