# SPDX-License-Identifier: Apache-2.0
"""HDNet: a residual trunk with one spatial-spectral attention in its middle, trained in two domains.

    SDL   y = x (sigmoid(W_u W_v X p) + sigmoid(softmax_n(x . W_k^T W_q mean(x))))      p = softmax_n(w . x)
    EFF   each quarter of the channels:  y = x + x softmax_n(a),  a = one map made of that quarter

Paper   HDNet: High-resolution Dual-domain Learning for Spectral Compressive Imaging, CVPR 2022, arXiv:2203.02149.
Facts   linear in the number of pixels. No mask: the network learns what one fixed mask does.
*differs*: pooled vectors are projected, not the maps they are pooled from: the same numbers, as pooling is linear.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.core.norm import BatchNorm
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.imaging import first_estimate
from widefield.models.spectral.frequency_loss import frequency_domain_loss
from widefield.models.spectral.network import SnapshotNetwork, network
from widefield.weights.reference import Table, reference

FREQUENCY_WEIGHT = 0.7  # of the frequency loss, beside the weight of 0.7 that it has inside


class SDLAttention(nn.Module):
    """Spatial-spectral domain learning: a gate for each channel and a gate for each position, added.

    Shape: `(b, channels, h, w) -> (b, channels, h, w)`.

    Args:
        channels: of the input; half of them inside.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(1, channels // 2)
        self.channel_query = Pointwise(channels, 1, bias=False)
        self.channel_value = Pointwise(channels, inner, bias=False)
        self.channel_up = Pointwise(inner, channels, bias=False)
        self.position_query = Pointwise(channels, inner, bias=False)
        self.position_key = Pointwise(channels, inner, bias=False)
        for projection in (self.channel_query, self.channel_value, self.position_query, self.position_key):
            nn.init.kaiming_normal_(projection.weight)

    def forward(self, x: Tensor) -> Tensor:
        with float32_island(x):
            tokens = widen(x).flatten(2)  # (b, c, n)
            pooled = tokens @ self.channel_query(tokens).softmax(-1).mT  # (b, c, 1)
            channels = self.channel_up(self.channel_value(pooled)).sigmoid()
            query = self.position_query(tokens.mean(-1, keepdim=True))
            positions = (
                (query.mT @ self.position_key.weight.to(query.dtype) @ tokens).softmax(-1).sigmoid()
            )  # (b, 1, n)
            y = tokens * (channels + positions)
        return y.unflatten(2, x.shape[2:]).to(x.dtype)


class SpatialWeight(nn.Module):
    """`x + x softmax_n(a)`, one map a for all channels: 1x1 each, norm, ReLU, 3x3 maximum, 1x1, norm, ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.each = nn.Conv2d(channels, channels, 1, groups=channels)
        self.each_norm = BatchNorm(channels, momentum=0.9)
        self.peak = nn.MaxPool2d(3, 1, padding=1)
        self.merge = Pointwise(channels, 1)
        self.merge_norm = BatchNorm(1)

    def forward(self, x: Tensor) -> Tensor:
        peaks = self.peak(self.each_norm(self.each(x)).relu())
        scores = self.merge_norm(self.merge(peaks)).relu()  # (b, 1, h, w)
        weights = widen(scores).flatten(2).softmax(-1).unflatten(2, scores.shape[2:])
        return x + x * weights.to(x.dtype)


class EFF(nn.Module):
    """Efficient feature fusion: each of `splits` groups of channels weighs the positions by itself.

    Shape: `(b, channels, h, w) -> (b, channels, h, w)`.

    Args:
        channels: of the input.
        splits: groups.

    Raises:
        ValueError: channels that do not divide into so many groups.
    """

    def __init__(self, channels: int, splits: int = 4) -> None:
        super().__init__()
        require_positive("EFF", channels=channels, splits=splits)
        if channels % splits:
            raise ValueError(
                f"EFF: {channels} channels do not divide into {splits} equal groups; choose other splits"
            )
        self.groups = nn.ModuleList(SpatialWeight(channels // splits) for _ in range(splits))

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(len(self.groups), 1)
        return torch.cat([group(part) for group, part in zip(self.groups, parts, strict=True)], 1)


class ResidualBlock(nn.Module):
    """`x + conv(relu(conv(x)))`, 3x3: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x).relu_())


@network(
    {"hdnet": {}},
    title="HDNet: High-resolution Dual-domain Learning for Spectral Compressive Imaging",
    paper="arXiv:2203.02149", year=2022, input="H", mask="none",
)  # fmt: skip
class HDNet(SnapshotNetwork):
    """High-resolution dual-domain learning network.

    Shape: measurement `(b, h, w')` to `(b, l, h, w)`; the mask is checked where given, and not used.

    Args:
        bands, step: of the cube and the sensor.
        features: width of the trunk.
        blocks: residual blocks before the attention, and after it.
        splits: groups of `EFF`.

    Raises:
        ValueError: an option below 1, or features that do not divide into the groups.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        features: int = 64,
        blocks: tuple[int, int] = (16, 15),
        splits: int = 4,
    ) -> None:
        super().__init__(bands, step)
        before, after = blocks
        require_positive("HDNet", features=features)
        if min(before, after) < 0:
            raise ValueError(f"HDNet: blocks takes two numbers of blocks, 0 or more, got {blocks!r}")
        self.head = nn.Conv2d(bands, features, 3, padding=1)
        self.before = nn.Sequential(*(ResidualBlock(features) for _ in range(before)))
        self.attention = SDLAttention(features)
        self.fusion = EFF(features, splits)
        self.after = nn.Sequential(*(ResidualBlock(features) for _ in range(after)))
        self.leave = nn.Conv2d(features, features, 3, padding=1)
        self.tail = nn.Conv2d(features, bands, 3, padding=1)

    def forward(self, y: Tensor, phi: Tensor | None = None) -> Tensor:
        self.check(y, phi)
        return self.body(first_estimate(y, self.bands, self.step))

    def body(self, x: Tensor) -> Tensor:
        """From the first estimate `(b, l, h, w)` to the cube."""
        x = self.head(x)
        deep = self.after(self.fusion(self.attention(self.before(x))))
        return self.tail(x + self.leave(deep))

    def training_loss(
        self, y: Tensor, phi: Tensor | None, truth: Tensor, criterion: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The criterion and 0.7 times the frequency loss (`frequency_domain_loss`), as published."""
        x = self(y, phi)
        return criterion(x, truth) + FREQUENCY_WEIGHT * frequency_domain_loss(x, truth)


SDL = {
    "channel_query": "conv_q_right", "channel_value": "conv_v_right", "channel_up": "conv_up",
    "position_query": "conv_q_left", "position_key": "conv_v_left",
}  # fmt: skip
WEIGHT = {"each": "conv_dws", "each_norm": "bn_dws", "merge": "conv_point", "merge_norm": "bn_point"}


@reference("mst", SDLAttention)
def _attention(module: SDLAttention) -> Table:
    return SDL


@reference("mst", EFF)
def _fusion(module: EFF) -> Table:
    groups = range(len(module.groups))
    return {f"groups.{i}.{ours}": f"subspaces.{i}.{theirs}" for i in groups for ours, theirs in WEIGHT.items()}


@reference("mst", HDNet)
def _hdnet(module: HDNet) -> Table:
    """The body is one sequence: blocks, attention, fusion, blocks, convolution."""
    before, after = len(module.before), len(module.after)
    table = {"head": "head.0", "tail": "tail.0", "leave": f"body.{before + 2 + after}"}
    table |= {f"attention.{ours}": f"body.{before}.{theirs}" for ours, theirs in SDL.items()}
    table |= {f"fusion.{ours}": f"body.{before + 1}.{theirs}" for ours, theirs in _fusion(module.fusion).items()}
    for part, start, number in (("before", 0, before), ("after", before + 2, after)):
        for i in range(number):
            table[f"{part}.{i}.first"] = f"body.{start + i}.body.0"
            table[f"{part}.{i}.second"] = f"body.{start + i}.body.2"
    return table
