# SPDX-License-Identifier: Apache-2.0
"""MST: spectral-wise attention guided by the coded aperture.

Paper   Mask-guided Spectral-wise Transformer for Efficient Hyperspectral Image Reconstruction, CVPR 2022,
        arXiv:2111.07910.
Facts   attention over channels: linear in the number of pixels.
*differs*: the code takes the rows of a 256 x 256 scene as its measure for where each channel of a mask feature
begins, so that other sizes fail or are read with a wrong step; here the step decides. Each sample has its own mask
(the code reads the first sample's for the whole batch). No norm stands before the attention, as in the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.fused import add_to, convolve_gelu, lay_channels_last, multiply_to, serves
from widefield.core.numerics import float32_island, inverse_length, widen
from widefield.core.pointwise import Pointwise
from widefield.imaging import disperse, first_estimate, undisperse
from widefield.models.spectral.blocks import (
    FEED_FORWARD,
    Block,
    Blocks,
    UShape,
    crop,
    depthwise,
    nested,
    u_names,
)
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.weights.reference import reference


def spectral_attention(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    """Channels attend to channels: `softmax_j(s k_i . q_j) v_j`, q and k of unit length over the positions.

    Args:
        q, k, v: `(b, g, d, n)`.
        temperature: s, `(g, 1, 1)`.

    Returns:
        `(b, g, d, n)`, in the dtype of v. The keys play the part of queries, as published.
    """
    with float32_island(v):
        q, k = widen(q), widen(k)
        # The lengths divide d x d products, not copies of q and k; without a direction there is nothing to divide.
        of_q, of_k = inverse_length(q, -1).mT, inverse_length(k, -1)
        products = torch.where((of_q > 0) & (of_k > 0), k @ q.mT, 0.0)
        weights = (products * of_k * of_q * temperature.to(q.dtype)).softmax(-1)  # (b, g, d, d)
        # Transposed, so that the channels of a position stay together in memory.
        return (widen(v).mT @ weights.mT).mT.to(v.dtype)


def channel_crop(x: Tensor, width: int, step: float) -> Tensor:
    """`(b, c, h, w')` to `(b, c, h, width)`: channel i from column `floor(i step)`, where its band lies."""
    if serves(x) and (cropped := _skewed(x, width, step)) is not None:
        return cropped
    starts = (torch.arange(x.shape[1], device=x.device) * step).floor().long()
    columns = starts[:, None] + torch.arange(width, device=x.device)
    columns = columns.clamp(max=x.shape[-1] - 1)
    return x.gather(-1, columns[None, :, None].expand(x.shape[0], -1, x.shape[2], -1))


def _skewed(x: Tensor, width: int, step: float) -> Tensor | None:
    """`channel_crop` by strides: where the step, or one over it, is a whole number and no channel leaves x."""
    b, c, h, _ = x.shape
    together = max(1, round(1 / step)) if step > 0 else c  # channels that begin at the same column
    columns = round(step * together)
    if columns != step * together or c % together or int((c - 1) * step) + width > x.shape[-1]:
        return None
    of_b, of_c, of_h, of_w = x.stride()
    strides = (of_b, of_c * together + of_w * columns, of_c, of_h, of_w)
    view = x.as_strided((b, c // together, together, h, width), strides, x.storage_offset())
    cropped = x.new_empty((b, h, width, c)).movedim(-1, 1)
    cropped.unflatten(1, (-1, together)).copy_(view)
    return cropped


class MaskGuide(nn.Module):
    """`u = W m;  u + u sigmoid(conv5(W' u))`, cut where the bands lie: `(b, c, h, w')` to `(b, c, h, width)`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = Pointwise(channels, channels)
        self.mix = Pointwise(channels, channels)
        self.spread = depthwise(channels, 5, bias=True)

    def forward(self, mask: Tensor, width: int, step: float) -> Tensor:
        u = self.enter(mask)
        gate = torch.sigmoid(self.spread(self.mix(u)))
        return channel_crop(add_to(multiply_to(gate, u), u), width, step)


class Position(nn.Sequential):
    """Depthwise 3x3, GELU, depthwise 3x3, without biases."""

    def __init__(self, channels: int) -> None:
        super().__init__(depthwise(channels, 3), nn.GELU(), depthwise(channels, 3))

    def forward(self, input: Tensor) -> Tensor:
        first, _, second = self
        assert isinstance(first, nn.Conv2d)
        return second(convolve_gelu(input, first.weight, padding=1))


class SpectralAttention(nn.Module):
    """S-MSA, with mask guidance MM where `guided`: the values are weighted by what the mask lets through.

    Shape: `(b, channels, h, w)`, and a mask feature `(b or 1, channels, h, w')`, to `(b, channels, h, w)`.

    Args:
        channels: in and out.
        heads: of `head_width` channels each (None: `channels // heads`).
        step: columns between the bands of neighbouring channels of the mask feature.
        guided: whether there is a mask.
    """

    def __init__(
        self, channels: int, heads: int, *, head_width: int | None = None, step: float = 0.0, guided: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.step = heads, step
        inner = heads * (channels // heads if head_width is None else head_width)
        self.query = Pointwise(channels, inner, bias=False)
        self.key = Pointwise(channels, inner, bias=False)
        self.value = Pointwise(channels, inner, bias=False)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.project = Pointwise(inner, channels)
        self.position = Position(channels)
        self.guide = MaskGuide(channels) if guided else None

    def forward(self, x: Tensor, *masks: Tensor) -> Tensor:
        value = self.value(x)
        weighted = value
        if self.guide is not None:
            weighted = multiply_to(self.guide(masks[0], x.shape[-1], self.step), value)
        q, k, v = (t.flatten(2).unflatten(1, (self.heads, -1)) for t in (self.query(x), self.key(x), weighted))
        y = spectral_attention(q, k, v, self.temperature).movedim(-1, 1).flatten(2)  # (b, n, c)
        y = self.project(y.mT.unflatten(-1, x.shape[2:]))
        return add_to(y, self.position(value))


@network(
    {
        "mst-s": {"blocks": (2, 2, 2)},
        "mst-m": {"blocks": (2, 4, 4)},
        "mst-l": {"blocks": (4, 7, 5)},
    },
    title="Mask-guided Spectral-wise Transformer for Efficient Hyperspectral Image Reconstruction",
    paper="arXiv:2111.07910", year=2022, input="H", mask="Phi",
)  # fmt: skip
class MST(SnapshotNetwork):
    """Mask-guided spectral-wise transformer: a U of spectral attention that mask features guide.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor. The width at the top is the number of bands.
        blocks: at each level, the bottom last.
    """

    def __init__(self, bands: int = 28, step: int = 2, *, blocks: Sequence[int] = (2, 2, 2)) -> None:
        super().__init__(bands, step)
        self.blocks = tuple(blocks)
        if len(self.blocks) < 2 or min(self.blocks) < 1:
            raise ValueError(f"MST: blocks takes two or more positive numbers, one a level, got {blocks!r}")
        levels = len(self.blocks) - 1
        self.embed = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        self.mask_downs = nn.ModuleList(
            nn.Conv2d(bands << i, bands << (i + 1), 4, 2, padding=1, bias=False) for i in range(levels)
        )
        self.u = UShape(bands, levels, self._blocks)
        self.map = nn.Conv2d(bands, bands, 3, padding=1, bias=False)

    def _blocks(self, level: int, width: int) -> Blocks:
        # A channel of level i stands for 1 / 2^i of a band, on a map 1 / 2^i as wide.
        step = self.step / 4**level
        return Blocks([
            Block(width, SpectralAttention(width, 1 << level, step=step, guided=True), first_norm=False)
            for _ in range(self.blocks[level])
        ])  # fmt: skip

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        self.check(y, phi)
        return self.body(first_estimate(y, self.bands, self.step), phi)

    def body(self, x: Tensor, phi: Tensor) -> Tensor:
        """From the first estimate `(b, l, h, w)` and the mask to the cube."""
        height, width = x.shape[2:]
        multiple = 1 << (len(self.blocks) - 1)
        x = pad_to_multiple(x, multiple)
        mask = self._fitted(phi if phi.dim() == 4 else phi[None], (height, width), multiple)
        masks = [lay_channels_last(mask.to(x.dtype))]
        for down in self.mask_downs:
            masks.append(down(masks[-1]))
        features = F.leaky_relu(self.embed(x), 0.1)
        features = self.u(features, [(mask,) for mask in masks])
        return crop(self.map(features) + x, height, width)

    def _fitted(self, phi: Tensor, size: tuple[int, int], multiple: int) -> Tensor:
        """The mask of the padded scene."""
        if all(edge % multiple == 0 for edge in size):
            return phi
        return disperse(pad_to_multiple(undisperse(phi, self.step), multiple), self.step)


ATTENTION = {
    "query": "to_q", "key": "to_k", "value": "to_v", "temperature": "rescale", "project": "proj",
    "position": "pos_emb",
}  # fmt: skip
GUIDE = {"enter": "conv1", "mix": "conv2", "spread": "depth_conv"}


def attention_names(module: Any) -> dict[str, str]:
    """Of a `SpectralAttention`."""
    guide = {f"guide.{a}": f"mm.{b}" for a, b in GUIDE.items()} if module.guide is not None else {}
    return ATTENTION | guide


def block_names(block: Any) -> dict[str, str]:
    """Of a block: attention without a norm, feed-forward behind one."""
    table = {f"attention.{a}": f"0.{b}" for a, b in attention_names(block.attention).items()}
    table |= {f"feed_forward.{a}": f"1.fn.{b}" for a, b in FEED_FORWARD.items()}
    return table | {"second_norm": "1.norm"}


@reference("mst", SpectralAttention)
def _attention(module: SpectralAttention) -> dict[str, str]:
    return attention_names(module)


@reference("mst", MaskGuide)
def _guide(module: MaskGuide) -> dict[str, str]:
    return GUIDE


@reference("mst", MST)
def _mst(module: MST) -> dict[str, str]:
    levels = len(module.blocks) - 1
    table = nested(u_names(levels, ours="u."), block_names, module)
    # Behind the down-sampling of features stands that of the mask.
    table |= {f"mask_downs.{i}": f"encoder_layers.{i}.2" for i in range(levels)}
    return table | {"embed": "embedding", "map": "mapping"}
