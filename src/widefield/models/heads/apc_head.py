# SPDX-License-Identifier: Apache-2.0
"""The segmentation head of APCNet: adaptive context at several scales beside the features.

Paper   Adaptive Pyramid Context Network for Semantic Segmentation, CVPR 2019.
Facts   cost of one ACM a scale (see `acm.py`) and of a 3x3 over the concatenation.
Differs not at all from mmsegmentation's port, whose names `load_reference(..., source="mmseg")` takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from widefield.core.branch import DilatedBranch
from widefield.core.norm import NormName
from widefield.core.pointwise import Pointwise
from widefield.pooling import AdaptiveContext
from widefield.weights.pooling import acm_names
from widefield.weights.reference import Table, reference


class APCHead(nn.Module):
    """`classify(CNR3x3([x, ACM_s(x) for s in bins]))`.

    Shape: `(b, channels, h, w) -> (b, num_classes, h, w)`.

    Args:
        channels: of the input; 2048 in the paper.
        num_classes: of the output.
        width: of every context and of the 3x3; 512 in the paper.
        bins: cells along each axis, one adaptive context each.
        fusion: the last 1x1 of every context.
        dropout: of whole channels before the classifier, in training.
        norm: after every convolution.

    Raises:
        ValueError: a width, a bin or a number of classes below 1.
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        width: int = 512,
        bins: Sequence[int] = (1, 2, 3, 6),
        fusion: bool = True,
        dropout: float = 0.1,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if channels < 1 or width < 1 or num_classes < 1:
            raise ValueError(
                f"APCHead: channels, width and num_classes must be positive, got {channels}, {width} and "
                f"{num_classes}"
            )
        if not bins or min(bins) < 1:
            raise ValueError(f"APCHead: bins must be one or more positive integers, got {bins!r}")
        self.channels, self.num_classes = channels, num_classes
        self.contexts = nn.ModuleList(
            AdaptiveContext(channels, out_channels=width, bins=s, fusion=fusion, norm=norm) for s in bins
        )
        self.fuse = DilatedBranch(channels + len(bins) * width, width, norm=norm)
        self.dropout = nn.Dropout2d(dropout)
        self.classify = Pointwise(width, num_classes)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(f"APCHead takes (b, {self.channels}, h, w), got the shape {tuple(x.shape)}")
        views = [x, *(context(x) for context in self.contexts)]
        return self.classify(self.dropout(self.fuse(torch.cat(views, 1))))


@reference("mmseg", APCHead)
def apc_head(module: APCHead) -> Table:
    """acm_modules.<i>, bottleneck, conv_seg."""
    table = {"fuse.weight": "bottleneck.conv.weight", "fuse.norm": "bottleneck.bn", "classify": "conv_seg"}
    for i in range(len(module.contexts)):
        table |= acm_names(f"contexts.{i}.", f"acm_modules.{i}.")
    return table
