# SPDX-License-Identifier: Apache-2.0
"""CST: attend where the image is hard, and there only among tokens whose hashes are near.

    x = fuse([H, M])                       features, e = estimator(x)
    blocks: of the windows of 16 x 16 the half with the largest mean of e;
            t + to_out(SAH-MSA(norm(t)))   on the tokens t of each;  then x + feed_forward(norm(x)) everywhere
    cube = conv(U(features, e)) + x

Paper   Coarse-to-Fine Sparse Transformer for Hyperspectral Image Reconstruction, ECCV 2022, arXiv:2203.04845.
Facts   buckets of 64 tokens: linear in the number of pixels.
*differs*: in evaluation the random directions of the hashes are those drawn once, from a seed, so that a cube is
the same twice; the code draws them anew at every call, and so does training here. Any size (the code takes
multiples of 64, and two windows or more at a quarter of the size). Without selection there is no error map; the
code makes a random one that nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.core.numerics import float32_island, widen
from widefield.core.pointwise import Pointwise
from widefield.imaging import first_estimate, undisperse
from widefield.models.spectral.blocks import (
    FEED_FORWARD,
    Blocks,
    ChannelNorm,
    FeedForward,
    UShape,
    crop,
    depthwise,
    nested,
    reset_linear_,
    u_names,
)
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.weights.reference import Table, reference

Pair = tuple[int, int]


def spheric(x: Tensor) -> Tensor:
    """XBOX+: tokens `(..., n, d)` to `(..., n, d + 2)` of one length, that of the longest, and a zero."""
    squared = x.square().sum(-1, keepdim=True)
    rest = (squared.amax(-2, keepdim=True) - squared).clamp(min=0).sqrt()
    return torch.cat([x, rest, torch.zeros_like(rest)], -1)


def rows(x: Tensor, places: Tensor) -> Tensor:
    """`x[..., g, places[r, g], :]`: tokens `(g, n, d)` or `(r, g, n, d)` at `(r, g, n)`, to `(r, g, n, d)`."""
    groups, tokens = places.shape[-2:]
    firsts = torch.arange(x.shape[:-2].numel(), device=x.device).view(x.shape[:-2]) * tokens
    return x.flatten(0, -2)[(places + firsts[..., None]).flatten()].view(-1, groups, tokens, x.shape[-1])


class HashAttention(nn.Module):
    """SAH-MSA: tokens are sorted by a random projection, cut in buckets, and attend within their bucket.

    Several rounds of that are mixed, each token's by the softmax of its log-normalisers. Logits are not scaled.

    Shape: `(b, n, channels) -> (b, n, channels)`; n a multiple of the bucket.

    Args:
        channels: in and out; queries, keys and values are three times as wide.
        heads: which divide the channels; each hashes its own channels of the input.
        bucket: tokens in one.
        rounds: of hashing.
        seed: of the directions in evaluation; in training they are drawn anew, from torch's generator.

    Raises:
        ValueError: an option below 1, or heads that do not divide the channels.
    """

    directions: Tensor
    offsets: Tensor

    def __init__(self, channels: int, heads: int, *, bucket: int = 64, rounds: int = 2, seed: int = 0) -> None:
        super().__init__()
        require_positive("HashAttention", channels=channels, heads=heads, bucket=bucket, rounds=rounds)
        if channels % heads:
            raise ValueError(f"HashAttention: {heads} heads do not divide {channels} channels")
        self.heads, self.bucket, self.rounds = heads, bucket, rounds
        self.query = nn.Linear(channels, 3 * channels, bias=False)
        self.key = nn.Linear(channels, 3 * channels, bias=False)
        self.value = nn.Linear(channels, 3 * channels, bias=False)
        self.project = nn.Linear(3 * channels, channels, bias=False)
        generator, home = torch.Generator().manual_seed(seed), torch.empty(0).device
        wide = channels // heads + 2
        directions = torch.randn(wide, rounds, generator=generator, device="cpu")
        offsets = torch.rand(1, rounds, generator=generator, device="cpu")
        self.register_buffer("directions", directions.to(home), persistent=False)
        self.register_buffer("offsets", offsets.to(home), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        order = self.order(self._heads(x.detach()))  # (r, g, n), g samples and heads
        q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        with float32_island(v):
            q, k, v = (rows(widen(t), order).unflatten(2, (-1, self.bucket)) for t in (q, k, v))
            logits = q @ k.mT  # (r, g, buckets, bucket, bucket)
            weight = logits.logsumexp(-1, keepdim=True)
            y = ((logits - weight).exp() @ v).flatten(2, 3)
            back = order.argsort(-1)
            y, weight = rows(y, back), rows(weight.flatten(2, 3), back)
            y = (y * weight.softmax(0)).sum(0)  # (g, n, d)
        y = y.unflatten(0, (b, self.heads)).transpose(1, 2).reshape(b, n, -1)
        return self.project(y.to(x.dtype))

    def order(self, x: Tensor) -> Tensor:
        """The tokens of `(g, n, d)` by ascending hash, `(r, g, n)`."""
        with float32_island(x):
            x = spheric(widen(x))
            directions, offsets = self.directions, self.offsets
            if self.training:
                directions, offsets = torch.randn_like(directions), torch.rand_like(offsets)
            hashes = x @ directions.to(x.dtype) + offsets.to(x.dtype)
            return hashes.movedim(-1, 0).sort(dim=-1, stable=True).indices

    def _heads(self, x: Tensor) -> Tensor:
        """`(b, n, c)` to `(b heads, n, c / heads)`."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2).flatten(0, 1)


class HashBlock(nn.Module):
    """SAHAB: hash attention in windows, the hard half of them or all, then a feed-forward everywhere.

    Shape: `(b, channels, h, w)` and an error map `(b, 1, h, w)`, or none without selection, to
    `(b, channels, h, w)`; height and width multiples of the window.

    Args:
        channels: in and out.
        heads: of the attention.
        patch: its area is the bucket; windows are twice as high and wide.
        shift: rows and columns by which the windows are moved, round the edges.
        sparse: attend in the half of the windows where the error map has the largest mean (one at least).
        seed: of the hashes.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        patch: Pair = (8, 8),
        shift: int = 0,
        sparse: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.window: Pair = (2 * patch[0], 2 * patch[1])
        self.shift, self.sparse = shift, sparse
        self.first_norm = nn.LayerNorm(channels)
        self.attention = HashAttention(channels, heads, bucket=patch[0] * patch[1], seed=seed)
        self.second_norm = ChannelNorm(channels)
        self.feed_forward = FeedForward(channels)

    def forward(self, x: Tensor, *guides: Tensor) -> Tensor:
        tokens = self.cut(self._rolled(x, -self.shift))  # (b, windows, n, c)
        if self.sparse:
            error = self.cut(self._rolled(guides[0], -self.shift)).mean((2, 3))
            hard = error.topk(max(1, error.shape[1] // 2), 1).indices
            places = hard[..., None, None].expand(-1, -1, *tokens.shape[2:])
            tokens = tokens.scatter(1, places, self.attend(tokens.gather(1, places)))
        else:
            tokens = self.attend(tokens)
        x = self._rolled(self.joined(tokens, (x.shape[2], x.shape[3])), self.shift)
        return x + self.feed_forward(self.second_norm(x))

    def attend(self, tokens: Tensor) -> Tensor:
        """Each window for itself, `(b, windows, n, c)`."""
        flat = tokens.flatten(0, 1)
        return (flat + self.attention(self.first_norm(flat))).view_as(tokens)

    def cut(self, x: Tensor) -> Tensor:
        """`(b, c, h, w)` to windows `(b, windows, n, c)`."""
        high, wide = self.window
        x = x.unflatten(3, (-1, wide)).unflatten(2, (-1, high))  # b c nh high nw wide
        return x.permute(0, 2, 4, 3, 5, 1).flatten(1, 2).flatten(2, 3)

    def joined(self, tokens: Tensor, size: Pair) -> Tensor:
        """The inverse of `cut`."""
        (high, wide), (h, w) = self.window, size
        x = tokens.unflatten(2, (high, wide)).unflatten(1, (h // high, w // wide))
        return x.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)

    def _rolled(self, x: Tensor, shift: int) -> Tensor:
        return torch.roll(x, (shift, shift), (2, 3)) if shift else x


class Bottleneck(nn.Module):
    """Atrous spatial pyramid, no norms: 3x3 convolutions of two rates and the mean of the map, fused by a 1x1.

    `(b, channels, h, w)` to the same; dropout behind.
    """

    def __init__(self, channels: int, rates: Sequence[int] = (3, 6)) -> None:
        super().__init__()
        self.atrous = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=rate, dilation=rate, bias=False) for rate in rates
        )
        self.pooled = Pointwise(channels, channels, bias=False)
        self.fuse = Pointwise((len(rates) + 1) * channels, channels, bias=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(x.mean((2, 3), keepdim=True)).relu().expand_as(x)
        return self.dropout(self.fuse(*(conv(x).relu() for conv in self.atrous), pooled).relu())


class Inverted(nn.Module):
    """1x1 to `width`, depthwise 3x3, 1x1 to `out_channels`, leaky ReLU between; halves the map if told to."""

    def __init__(self, in_channels: int, width: int, out_channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.widen = Pointwise(in_channels, width, bias=False)
        self.spread = (
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False) if stride > 1 else depthwise(width, 3)
        )
        self.narrow = Pointwise(width, out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(F.leaky_relu(self.spread(F.leaky_relu(self.widen(x), 0.1)), 0.1))


class SparsityEstimator(nn.Module):
    """A small U: features, and a map of where the reconstruction will be wrong.

    Shape: `(b, in_channels, h, w)` to features `(b, channels, h, w)` and an error map `(b, 1, h, w)`, or to
    features alone where `sparse` is false; height and width multiples of 4.
    """

    def __init__(self, in_channels: int, channels: int, *, sparse: bool = True) -> None:
        super().__init__()
        self.sparse = sparse
        self.enter = Pointwise(in_channels, channels, bias=False)
        widths = [channels, 2 * channels, 4 * channels]
        self.downs = nn.ModuleList(Inverted(widths[i], widths[i + 1], widths[i + 1], stride=2) for i in range(2))
        self.bottleneck = Bottleneck(widths[2])
        self.raises = nn.ModuleList(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, 2) for i in (1, 0))
        self.ups = nn.ModuleList(Inverted(widths[i], widths[i + 1], widths[i]) for i in (1, 0))
        self.leave = nn.Conv2d(channels, channels + sparse, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = F.leaky_relu(self.enter(x), 0.1)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = down(x)
        x = self.bottleneck(x) + x
        for rise, up, skip in zip(self.raises, self.ups, reversed(skips), strict=True):
            x = up(rise(x)) + skip
        x = self.leave(x)
        return (x[:, :-1], x[:, -1:]) if self.sparse else (x, None)


@network(
    {
        "cst-s": {"blocks": (1, 1, 2)},
        "cst-m": {"blocks": (2, 2, 2)},
        "cst-l": {"blocks": (2, 4, 6), "estimators": 2},
        "cst-l-plus": {"blocks": (2, 4, 6), "estimators": 2, "sparse": False},
    },
    title="Coarse-to-Fine Sparse Transformer for Hyperspectral Image Reconstruction",
    paper="arXiv:2203.04845", year=2022, input="H", mask="Mask",
)  # fmt: skip
class CST(SnapshotNetwork):
    """Coarse-to-fine sparse transformer: windows chosen by an estimated error, tokens by their hashes.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor. The width at the top is the number of bands.
        blocks: at each level, the bottom last.
        estimators: one after the other in front; the last gives the error map.
        sparse: attend in the hard half of the windows; else in all, without an error map.
        seed: of the hashes in evaluation.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        blocks: Sequence[int] = (2, 2, 2),
        estimators: int = 1,
        sparse: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(bands, step)
        self.blocks, self.sparse, self.seed = tuple(blocks), sparse, seed
        if len(self.blocks) < 2 or min(self.blocks) < 1:
            raise ValueError(f"CST: blocks takes two or more positive numbers, one a level, got {blocks!r}")
        require_positive("CST", estimators=estimators)
        self.fuse = Pointwise(2 * bands, bands, bias=False)
        self.estimators = nn.ModuleList(
            SparsityEstimator(bands, bands, sparse=sparse and i == estimators - 1) for i in range(estimators)
        )
        self.u = UShape(bands, len(self.blocks) - 1, self._blocks, additive=True)
        self.leave = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        for part in self.u.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
        reset_linear_(self.u)

    def _blocks(self, level: int, width: int) -> Blocks:
        # The windows of every second block are moved by half a window.
        return Blocks([
            HashBlock(width, 1 << level, shift=8 * (i % 2), sparse=self.sparse, seed=self.seed)
            for i in range(self.blocks[level])
        ])  # fmt: skip

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        return self.with_error(y, phi)[0]

    def with_error(self, y: Tensor, phi: Tensor) -> tuple[Tensor, Tensor | None]:
        """The cube and the error map `(b, 1, h, w)` that chose the windows; None without selection."""
        self.check(y, phi)
        mask = undisperse(phi if phi.dim() == 4 else phi[None], self.step)
        return self.reconstruct(first_estimate(y, self.bands, self.step), mask)

    def reconstruct(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """From the first estimate and the mask of every band, `(b, l, h, w)` each, to cube and error map."""
        height, width = x.shape[2:]
        multiple = 16 << (len(self.blocks) - 1)
        x, mask = pad_to_multiple(x, multiple), pad_to_multiple(mask.to(x.dtype), multiple)
        x = self.fuse(x, mask.expand_as(x))
        features, error = x, None
        for estimator in self.estimators:
            features, error = estimator(features)
        errors = [] if error is None else [error]
        while errors and len(errors) < len(self.blocks):
            errors.append(F.avg_pool2d(errors[-1], 2))
        cube = self.leave(self.u(features, [(e,) for e in errors] or None)) + x
        return crop(cube, height, width), None if error is None else crop(error, height, width)

    def training_loss(
        self, y: Tensor, phi: Tensor, truth: Tensor, criterion: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The criterion, and 2 MSE between the error map and the mean absolute error of the cube, as published."""
        x, error = self.with_error(y, phi)
        loss = criterion(x, truth)
        if error is None:
            return loss
        return loss + 2 * F.mse_loss(error, (x.detach() - truth).abs().mean(1, keepdim=True))


ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "project": "to_out"}
ESTIMATOR = {
    "enter": "in_proj", "leave": "out_conv2", "bottleneck.pooled": "bottleneck.convs.2.1",
    "bottleneck.fuse": "bottleneck.project.0",
    **{f"bottleneck.atrous.{i}": f"bottleneck.convs.{i}.0" for i in range(2)},
    **{f"raises.{i}": f"decoder_layers.{i}.0" for i in range(2)},
    **{f"downs.{i}.{part}": f"encoder_layers.{i}.{j}"
       for i in range(2) for j, part in enumerate(("widen", "spread", "narrow"))},
    **{f"ups.{i}.{part}": f"decoder_layers.{i}.{j}"
       for i in range(2) for j, part in enumerate(("widen", "spread", "narrow"), 1)},
}  # fmt: skip


def block_names(block: Any) -> dict[str, str]:
    """Of a `HashBlock`."""
    table = {f"attention.{a}": f"attn.fn.{b}" for a, b in ATTENTION.items()}
    table |= {f"feed_forward.{a}": f"ffn.fn.{b}" for a, b in FEED_FORWARD.items()}
    return table | {"first_norm": "attn.norm", "second_norm": "ffn.norm"}


@reference("mst", HashAttention)
def _attention(module: HashAttention) -> Table:
    return ATTENTION


@reference("mst", HashBlock)
def _block(module: HashBlock) -> Table:
    return block_names(module)


@reference("mst", SparsityEstimator)
def _estimator(module: SparsityEstimator) -> Table:
    return ESTIMATOR


@reference("mst", CST)
def _cst(module: CST) -> Table:
    levels, several = len(module.blocks) - 1, len(module.estimators) > 1
    table = nested(u_names(levels, ours="u.", per_level=1), block_names, module)
    for i in range(len(module.estimators)):
        table |= {f"estimators.{i}.{a}": f"fe.{i}.{b}" if several else f"fe.{b}" for a, b in ESTIMATOR.items()}
    return table | {"fuse": "fution", "leave": "out_proj"}
