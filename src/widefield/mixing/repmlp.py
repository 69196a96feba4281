# SPDX-License-Identifier: Apache-2.0
"""RepMLP (2021): a map over positions *and* channels of each partition, beside convolutions.

    x' = x + FC(ReLU(FC(BN(pool(x)))))             one number a partition and channel
    y  = BN(W vec(x')) + sum_k BN_k(F_k * x')      in each partition

Not to be confused with `RepMLPBlock` of 2022: here the map is grouped over channels and not shared, and the global
part adds instead of multiplying.

Paper   RepMLP: Re-parameterizing Convolutions into Fully-connected Layers for Image Recognition, 2021,
        arXiv:2105.01883.
Facts   cost c_out (c_in / g) n h w + 2 (c p q)^2 / reduction multiply-adds on n positions in p x q partitions of
        h x w. The size of the map is fixed, by the global perceptron; with one partition there is none of that.
Differs merging returns a new block (the code deletes modules in place). There is no `resize`: the two maps over
        all partitions of all channels know no grid to interpolate on that keeps their groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.core.norm import BatchNorm
from widefield.mixing.reparameterise import check_kernels, convolution_matrix, norm_scale_shift, sum_kernels
from widefield.mixing.repmlp_block import (
    from_partitions,
    local_branches,
    merge_error,
    pairs,
    refuse_merge,
    to_partitions,
)


class RepMLP(nn.Module):
    """Global, partition and local perceptron: `(b, channels, *size) -> (b, out_channels, *size)`.

    Args:
        channels: c, of the input.
        size: (H, W) of the map, fixed.
        partition: (h, w), which tile the map.
        out_channels: o; None: as the input.
        kernels: of the convolutions, odd; they are padded inside a partition.
        groups: g, of map and convolutions; they divide both numbers of channels.
        reduction: of the global perceptron's hidden width.
        merged: build the merged form at once, for weights that were saved merged.

    Attributes:
        merge_error: as of `RepMLPBlock`.

    Raises:
        ValueError: partitions that do not tile the map, groups that do not divide, even kernels; at the call, a
            map of another size.
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        partition: tuple[int, int],
        *,
        out_channels: int | None = None,
        kernels: Sequence[int] = (1, 3, 5),
        groups: int = 1,
        reduction: int = 1,
        merged: bool = False,
    ) -> None:
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        (height, width), (h, w) = size, partition
        require_positive("RepMLP", channels=channels, out_channels=out_channels, height=height, width=width)
        require_positive("RepMLP", h=h, w=w, groups=groups, reduction=reduction)
        check_kernels("RepMLP", kernels)
        if height % h or width % w:
            raise ValueError(f"RepMLP: partitions of {h} x {w} do not tile a map of {height} x {width}")
        if channels % groups or out_channels % groups:
            raise ValueError(
                f"RepMLP: {groups} groups do not divide {channels} channels in and {out_channels} out"
            )
        self.channels, self.out_channels = channels, out_channels
        self.size, self.partition = (height, width), (h, w)
        self.kernels, self.groups = tuple(kernels), groups
        self.squeeze = self.excite = self.pooled_norm = None
        if (height, width) != (h, w):
            all_parts = channels * (height // h) * (width // w)
            self.squeeze = nn.Linear(all_parts, max(all_parts // reduction, 1))
            self.excite = nn.Linear(max(all_parts // reduction, 1), all_parts)
            self.pooled_norm = None if merged else BatchNorm(channels)
        self.weight = nn.Parameter(torch.empty(out_channels * h * w, channels // groups * h * w))
        nn.init.orthogonal_(self.weight)
        self.bias = nn.Parameter(torch.zeros(out_channels * h * w)) if merged else None
        self.norm = None if merged else BatchNorm(out_channels * h * w)
        self.local = None if merged else local_branches(channels, out_channels, kernels, groups)
        self.merge_error: float | None = None

    @property
    def merged(self) -> bool:
        """Whether this is the merged form."""
        return self.local is None

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or tuple(x.shape[1:]) != (self.channels, *self.size):
            raise ValueError(
                f"this RepMLP takes maps (b, {self.channels}, {self.size[0]}, {self.size[1]}), whose size is "
                f"fixed; got {tuple(x.shape)}"
            )
        parts = to_partitions(x, self.partition)  # (b, p, q, c, h, w)
        parts = parts + self.summary(parts)
        y = self.mix(parts.flatten(0, 2))
        return from_partitions(y.unflatten(0, parts.shape[:3]))

    def summary(self, parts: Tensor) -> Tensor:
        """The global perceptron: `(b, p, q, c, h, w)` to `(b, p, q, c, 1, 1)`."""
        if self.squeeze is None or self.excite is None:
            return parts.new_zeros(())
        pooled = parts.mean((4, 5)).movedim(3, 1)  # (b, c, p, q)
        if self.pooled_norm is not None:
            pooled = self.pooled_norm(pooled)
        y = self.excite(torch.relu(self.squeeze(pooled.flatten(1))))
        return y.unflatten(1, pooled.shape[1:]).movedim(1, 3)[..., None, None]

    def mix(self, x: Tensor) -> Tensor:
        """Partition and local perceptron on `(rows, c, h, w)`, a row a partition."""
        h, w = self.partition
        weight = self.weight.to(x.dtype).unflatten(0, (self.groups, -1))
        grouped = x.flatten(1).unflatten(1, (self.groups, -1))
        y = torch.einsum("rgi,goi->rgo", grouped, weight).flatten(1)
        if self.bias is not None:
            return (y + self.bias.to(x.dtype)).unflatten(1, (self.out_channels, h, w))
        assert self.norm is not None
        assert self.local is not None
        y = self.norm(y).unflatten(1, (self.out_channels, h, w))
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
        h, w = self.partition
        scale, bias = norm_scale_shift(self.norm)
        weight = self.weight.double() * scale[:, None]
        if self.kernels:
            kernel, more = sum_kernels(pairs(self.local))
            weight = weight + convolution_matrix(kernel, (h, w), self.groups)
            bias = bias + more.repeat_interleave(h * w)
        dtype = self.weight.dtype
        merged = deepcopy(self)
        merged.norm = merged.local = merged.pooled_norm = None
        merged.weight, merged.bias = nn.Parameter(weight.to(dtype)), nn.Parameter(bias.to(dtype))
        if self.pooled_norm is not None and merged.squeeze is not None:
            first = merged.squeeze
            scale, shift = (
                t.repeat_interleave(first.in_features // self.channels) for t in norm_scale_shift(self.pooled_norm)
            )
            old = first.weight.double()
            first.bias = nn.Parameter((first.bias.double() + old @ shift).to(dtype))
            first.weight = nn.Parameter((old * scale).to(dtype))
        if self.weight.device.type != "meta":
            merged.merge_error = merge_error(self, merged, self.weight, (2, self.channels, *self.size))
        return merged

    def multiply_adds(self) -> int:
        """Of one sample."""
        n, (h, w) = self.size[0] * self.size[1], self.partition
        local = 0 if self.merged else sum(k * k for k in self.kernels)
        total = 0 if self.squeeze is None else 2 * self.squeeze.in_features * self.squeeze.out_features
        return total + self.out_channels * (self.channels // self.groups) * n * (h * w + local)
