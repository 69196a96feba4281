# SPDX-License-Identifier: Apache-2.0
"""RepMLPNet: a pyramid of RepMLP blocks and 1x1 feed-forwards.

    y = x + Rep(BN(x)),   z = y + FFN(BN(y)),   FFN = conv1x1, BN, GELU, conv1x1, BN

Paper   RepMLPNet: Hierarchical Vision MLP with Re-parameterized Locality, CVPR 2022, arXiv:2112.11081, and its
        code.
Facts   global within a partition; in the published networks one partition is the whole map, so their image size is
        fixed; other sizes must be tiled by the partitions of every stage.
Differs `merge` returns a new network.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from widefield.core.cost import Cost
from widefield.core.errors import require_positive
from widefield.core.norm import BatchNorm
from widefield.core.pointwise import Pointwise
from widefield.mixing.repmlp_block import RepMLPBlock, refuse_merge


def embedding(channels_in: int, channels_out: int, patch: int) -> nn.Sequential:
    """Convolution with kernel and stride `patch`, norm, ReLU."""
    conv = nn.Conv2d(channels_in, channels_out, patch, patch, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=BatchNorm(channels_out), relu=nn.ReLU()))


class RepMLPUnit(nn.Module):
    """`y = x + Rep(BN(x))`, `z = y + FFN(BN(y))`: `(b, c, h, w) -> (b, c, h, w)`."""

    def __init__(self, mixer: RepMLPBlock, expansion: int) -> None:
        super().__init__()
        c = mixer.channels
        self.first_norm, self.mixer, self.second_norm = BatchNorm(c), mixer, BatchNorm(c)
        self.enter, self.enter_norm = Pointwise(c, expansion * c, bias=False), BatchNorm(expansion * c)
        self.leave, self.leave_norm = Pointwise(expansion * c, c, bias=False), BatchNorm(c)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.mixer(self.first_norm(x))
        hidden = F.gelu(self.enter_norm(self.enter(self.second_norm(y))))
        return y + self.leave_norm(self.leave(hidden))


class RepMLPNet(nn.Module):
    """Stages of RepMLP units: `(b, in_channels, H, W) -> (b, num_classes)`.

    Args:
        num_classes: of the logits; 0: the pooled features are returned.
        in_channels: of the image.
        patch: edge of a patch of the first stage; each stage halves the map.
        channels, blocks, partitions, sharesets: one number a stage; partitions are square.
        kernels, reduction, interchanged: of the RepMLP blocks.
        expansion: of the feed-forwards.
        merged: build the merged form at once.
        device, dtype: of the parameters.

    Attributes:
        num_features: width of what the head reads.

    Raises:
        ValueError: lists of different lengths, numbers out of range; at the call, an image that does not fit.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
        patch: int = 4,
        channels: Sequence[int] = (64, 128, 256, 512),
        blocks: Sequence[int] = (2, 2, 6, 2),
        partitions: Sequence[int] = (56, 28, 14, 7),
        sharesets: Sequence[int] = (1, 4, 16, 128),
        kernels: Sequence[int] = (1, 3),
        reduction: int = 4,
        expansion: int = 4,
        interchanged: bool = False,
        merged: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("RepMLPNet", in_channels=in_channels, patch=patch, expansion=expansion)
        if not channels or len({len(channels), len(blocks), len(partitions), len(sharesets)}) != 1:
            raise ValueError(
                "RepMLPNet: channels, blocks, partitions and sharesets take one number a stage; got "
                f"{len(channels)}, {len(blocks)}, {len(partitions)} and {len(sharesets)}"
            )
        if not isinstance(num_classes, int) or num_classes < 0:
            raise ValueError(f"RepMLPNet: num_classes must be a whole number, 0 or more; got {num_classes!r}")
        self.in_channels, self.patch, self.partitions = in_channels, patch, tuple(partitions)
        self.num_features, self.merged, self.grad_checkpointing = channels[-1], merged, False
        edges = [in_channels, *channels]
        with torch.device(device or torch.get_default_device()):
            self.embeds = nn.ModuleList(
                embedding(edges[i], edges[i + 1], 2 if i else patch) for i in range(len(channels))
            )
            self.stages = nn.ModuleList(
                nn.Sequential(*(
                    RepMLPUnit(
                        RepMLPBlock(
                            c, (side, side), sharesets=shared, kernels=kernels, reduction=reduction,
                            interchanged=interchanged, merged=merged,
                        ),
                        expansion,
                    )
                    for _ in range(count)
                ))
                for c, count, side, shared in zip(channels, blocks, partitions, sharesets, strict=True)
            )  # fmt: skip
            self.norm = BatchNorm(channels[-1])
            self.head: nn.Module = nn.Identity()
        self.to(dtype=dtype)
        self.reset_classifier(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """The last stage's map, normalised: `(b, num_features, h, w)`."""
        self._check(x)
        for embed, stage in zip(self.embeds, self.stages, strict=True):
            x = embed(x)
            for unit in cast(nn.Sequential, stage):
                if self.grad_checkpointing and self.training and torch.is_grad_enabled():
                    again = checkpoint(unit, x, use_reentrant=False)
                    assert isinstance(again, Tensor)
                    x = again
                else:
                    x = unit(x)
        return self.norm(x)

    def forward_head(self, features: Tensor, *, pre_logits: bool = False) -> Tensor:
        """Logits of what `forward_features` returns; what the head reads with `pre_logits`."""
        pooled = features.mean((2, 3))
        return pooled if pre_logits else self.head(pooled)

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """A new head for so many classes; 0: none, the pooled features are returned."""
        self.num_classes = num_classes
        like = next(self.embeds.parameters())
        self.head = (
            nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            if num_classes
            else nn.Identity()
        )

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Computes each unit again in the backward pass; statistics of norms move once all the same."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters of one dimension or none."""
        return {name for name, p in self.named_parameters() if p.ndim <= 1}

    def merge(self) -> Self:
        """The merged form of every block, a new network in evaluation mode.

        Raises:
            ValueError: in training mode, or merged already.
        """
        refuse_merge(self, self.merged)
        copy = deepcopy(self)
        for unit in copy.modules():
            if isinstance(unit, RepMLPUnit):
                unit.mixer = unit.mixer.merge()
        copy.merged = True
        return copy

    def cost(self, shape: tuple[int, ...]) -> Cost:
        """Closed-form multiply-adds of one forward at `(b, in_channels, H, W)`, and parameters."""
        b, c, h, w = shape
        total = 0
        for embed, stage in zip(self.embeds, self.stages, strict=True):
            conv = cast(nn.Conv2d, embed.conv)
            edge = conv.kernel_size[0]
            h, w = h // edge, w // edge
            total += h * w * conv.out_channels * c * edge**2
            c = conv.out_channels
            for unit in cast(list[RepMLPUnit], stage):
                total += unit.mixer.multiply_adds((h, w)) + 2 * h * w * c * unit.enter.out_channels
        total += self.num_classes * self.num_features
        return Cost(b * total, sum(p.numel() for p in self.parameters() if p.requires_grad))

    def _check(self, x: Tensor) -> None:
        fine = x.dim() == 4 and x.shape[1] == self.in_channels and x.numel() > 0
        edge = self.patch
        for side in self.partitions:
            fine = fine and x.shape[2] % (edge * side) == 0 and x.shape[3] % (edge * side) == 0
            edge *= 2
        if not fine:
            tiles = [self.patch * side << i for i, side in enumerate(self.partitions)]
            raise ValueError(
                f"this RepMLPNet takes images (b, {self.in_channels}, h, w) with h and w multiples of "
                f"{', '.join(map(str, dict.fromkeys(tiles)))}, which its partitions tile; got {tuple(x.shape)}"
            )
