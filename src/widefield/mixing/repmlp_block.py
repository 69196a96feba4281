# SPDX-License-Identifier: Apache-2.0
"""RepMLPBlock (2022): one map over the positions of a partition, trained beside small convolutions, merged after.

    y = g * (BN(W x) + sum_k BN_k(F_k * x)),   g = sigmoid(W_2 ReLU(W_1 mean(x)))

Channel c uses map c mod s: groups of s channels share one set of s maps. Not to be confused with `RepMLP`, the
block of 2021, whose map also mixes channels.

Paper   RepMLPNet: Hierarchical Vision MLP with Re-parameterized Locality, CVPR 2022, arXiv:2112.11081.
Facts   cost c n h w multiply-adds on n positions in partitions of h x w. Between partitions only the gate looks.
        Merged and unmerged are equal in evaluation; merging adds a bias of s h w and saves time, not size.
Differs with several partitions and fewer sharesets than channels the authors' code reads its rows back in another
        order, which interchanges partitions and channel groups of the output; here they stay where they are unless
        `interchanged`. Merging returns a new block (the code deletes modules in place).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from typing import Self, cast

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.core.norm import BatchNorm
from widefield.mixing.reparameterise import (
    check_kernels,
    convolution_matrix,
    norm_scale_shift,
    relative_error,
    sum_kernels,
)
from widefield.mixing.resampling import interpolation


def to_partitions(x: Tensor, partition: tuple[int, int]) -> Tensor:
    """`(b, c, h p, w q)` to `(b, p, q, c, h, w)`: p x q partitions of h x w."""
    h, w = partition
    return x.unflatten(3, (-1, w)).unflatten(2, (-1, h)).permute(0, 2, 4, 1, 3, 5)


def from_partitions(x: Tensor) -> Tensor:
    """`(b, p, q, c, h, w)` back to `(b, c, h p, w q)`."""
    return x.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def check_partitions(owner: str, x: Tensor, channels: int, partition: tuple[int, int]) -> None:
    """Raises a ValueError for anything but `(b, channels, multiple of h, multiple of w)`."""
    h, w = partition
    if x.dim() != 4 or x.shape[1] != channels or x.shape[2] % h or x.shape[3] % w or not x.shape[2] * x.shape[3]:
        raise ValueError(
            f"{owner} takes (b, {channels}, h, w) with h a multiple of {h} and w of {w}, the size of a partition; "
            f"got {tuple(x.shape)}"
        )


def local_branches(channels_in: int, channels_out: int, kernels: Sequence[int], groups: int) -> nn.ModuleDict:
    """A convolution and its norm for each kernel."""
    return nn.ModuleDict({
        str(k): nn.Sequential(OrderedDict(
            conv=nn.Conv2d(channels_in, channels_out, k, padding=k // 2, groups=groups, bias=False),
            norm=BatchNorm(channels_out),
        ))
        for k in kernels
    })  # fmt: skip


def pairs(branches: nn.ModuleDict) -> list[tuple[nn.Conv2d, BatchNorm]]:
    """Convolutions with their norms."""
    return [(cast(nn.Conv2d, part.conv), cast(BatchNorm, part.norm)) for part in branches.values()]


def refuse_merge(block: nn.Module, merged: bool) -> None:
    """Raises a ValueError where `merge` makes no sense."""
    name = type(block).__name__
    if merged:
        raise ValueError(f"this {name} is merged already; merging has no second step")
    if block.training:
        raise ValueError(
            f"{name} in training mode normalises with the batch's statistics, which the merged form cannot; call "
            "eval() first"
        )


class RepMLPBlock(nn.Module):
    """`g * (BN(W x) + sum_k BN_k(F_k * x))`: `(b, channels, h, w) -> (b, channels, h, w)`.

    Args:
        channels: c, in and out.
        partition: (h, w); the map's height and width are multiples of it. Convolutions are padded inside it.
        sharesets: s, how many maps there are; it divides the channels. None: one a channel.
        kernels: of the convolutions, odd.
        reduction: of the gate's hidden width.
        interchanged: read partitions and channel groups back in the order of the authors' code, to run weights
            that were trained so; without effect with one partition or one map a channel.
        merged: build the merged form at once, for weights that were saved merged.

    Attributes:
        merge_error: of a block that `merge` made: its largest difference from what it was made of, on normal
            numbers, relative to the largest output; None otherwise.

    Raises:
        ValueError: sharesets that do not divide, even kernels; at the call, a map that partitions do not tile.
    """

    def __init__(
        self,
        channels: int,
        partition: tuple[int, int],
        *,
        sharesets: int | None = None,
        kernels: Sequence[int] = (1, 3),
        reduction: int = 4,
        interchanged: bool = False,
        merged: bool = False,
    ) -> None:
        super().__init__()
        sharesets = channels if sharesets is None else sharesets
        h, w = partition
        require_positive("RepMLPBlock", channels=channels, height=h, width=w, sharesets=sharesets)
        require_positive("RepMLPBlock", reduction=reduction)
        check_kernels("RepMLPBlock", kernels)
        if channels % sharesets:
            raise ValueError(f"RepMLPBlock: {sharesets} sharesets do not divide {channels} channels")
        self.channels, self.partition, self.sharesets = channels, (h, w), sharesets
        self.kernels, self.interchanged = tuple(kernels), interchanged
        self.squeeze = nn.Linear(channels, max(channels // reduction, 1))
        self.excite = nn.Linear(max(channels // reduction, 1), channels)
        self.weight = nn.Parameter(torch.empty(sharesets * h * w, h * w))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.bias = nn.Parameter(torch.zeros(sharesets * h * w)) if merged else None
        self.norm = None if merged else BatchNorm(sharesets)
        self.local = None if merged else local_branches(sharesets, sharesets, kernels, sharesets)
        self.merge_error: float | None = None

    @property
    def merged(self) -> bool:
        """Whether this is the merged form."""
        return self.local is None

    def forward(self, x: Tensor) -> Tensor:
        check_partitions("RepMLPBlock", x, self.channels, self.partition)
        parts = to_partitions(x, self.partition)  # (b, p, q, c, h, w)
        y = self.mix(parts.flatten(0, 2).unflatten(1, (-1, self.sharesets)).flatten(0, 1))
        if self.interchanged:
            b, p, q, c, h, w = parts.shape
            y = y.reshape(b, c // self.sharesets, p, q, self.sharesets, h, w).permute(0, 2, 3, 1, 4, 5, 6)
        y = from_partitions(y.reshape(parts.shape))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3))))))
        return y * gate[:, :, None, None]

    def mix(self, x: Tensor) -> Tensor:
        """The shared maps and the convolutions on `(rows, s, h, w)`, a row a partition and channel group."""
        h, w = self.partition
        weight = self.weight.to(x.dtype).unflatten(0, (self.sharesets, h * w))
        y = torch.einsum("rsm,som->rso", x.flatten(2), weight)
        if self.bias is not None:
            return (y + self.bias.to(x.dtype).unflatten(0, (self.sharesets, h * w))).unflatten(2, (h, w))
        assert self.norm is not None
        assert self.local is not None
        y = self.norm(y.unflatten(2, (h, w)))
        for branch in self.local.values():
            y = y + branch(x)
        return y

    @torch.no_grad()
    def merge(self) -> Self:
        """The merged form, a new block in evaluation mode; computed in float64. This one stays as it is.

        Raises:
            ValueError: in training mode, or merged already.
        """
        refuse_merge(self, self.merged)
        assert self.norm is not None
        assert self.local is not None
        s, (h, w) = self.sharesets, self.partition
        scale, shift = (t.repeat_interleave(h * w) for t in norm_scale_shift(self.norm))
        weight, bias = self.weight.double() * scale[:, None], shift
        if self.kernels:
            kernel, more = sum_kernels(pairs(self.local))
            weight = weight + convolution_matrix(kernel, (h, w), s)
            bias = bias + more.repeat_interleave(h * w)
        merged = deepcopy(self)
        merged.norm = merged.local = None
        merged.weight = nn.Parameter(weight.to(self.weight.dtype))
        merged.bias = nn.Parameter(bias.to(self.weight.dtype))
        if self.weight.device.type != "meta":
            merged.merge_error = merge_error(self.mix, merged.mix, self.weight, (2, s, h, w))
        return merged

    @torch.no_grad()
    def resize(self, partition: tuple[int, int]) -> Self:
        """A copy for partitions of another size: the maps are interpolated, norms and convolutions stay.

        Raises:
            ValueError: a merged block, whose maps hold convolutions that would be interpolated with them.
        """
        if self.merged:
            raise ValueError("a merged RepMLPBlock holds its convolutions in one matrix; resize first, then merge")
        copy = deepcopy(self)
        there, back = (
            interpolation(*pair).to(self.weight.device)
            for pair in ((self.partition, partition), (partition, self.partition))
        )
        maps = self.weight.double().unflatten(0, (self.sharesets, -1))
        copy.weight = nn.Parameter((there @ maps @ back).flatten(0, 1).to(self.weight.dtype))
        copy.partition = (partition[0], partition[1])
        return copy

    def multiply_adds(self, space: Sequence[int]) -> int:
        """Of one sample of that height and width."""
        n, (h, w) = space[0] * space[1], self.partition
        local = 0 if self.merged else sum(k * k for k in self.kernels)
        gate = 2 * self.channels * self.squeeze.out_features
        return self.channels * n * (h * w + local) + gate


def merge_error(before, after, like: Tensor, shape: tuple[int, ...]) -> float:
    """How far two maps are apart on normal numbers of a shape; the global generator is not used."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x.to(like.device, like.dtype)
    return relative_error(after(x).double(), before(x).double())
