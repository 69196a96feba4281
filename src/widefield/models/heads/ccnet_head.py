# SPDX-License-Identifier: Apache-2.0
"""The segmentation head of CCNet: recurrent criss-cross attention between 3x3 convolutions, beside the input.

Paper   CCNet: Criss-Cross Attention for Semantic Segmentation, ICCV 2019, arXiv:1811.11721.
Facts   cost of three 3x3 convolutions (c -> c/4, c/4 -> c/4, 5c/4 -> width) and of R passes at c/4 channels.
Differs the authors' classifier takes 512 channels whatever the width; here it takes the width. Their norms are
        in-place ABN, batch norm and a leaky ReLU of slope 0.01.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widefield.attention import CrissCrossAttention
from widefield.core.branch import DilatedBranch
from widefield.core.norm import NormName
from widefield.core.pointwise import Pointwise
from widefield.weights.reference import Table, reference


class CCNetHead(nn.Module):
    """Recurrent criss-cross attention (RCCA) at a quarter of the channels, fused with the input, classified.

    Shape: `(b, channels, h, w) -> (b, num_classes, h, w)`.

    Args:
        channels: of the input; 2048 in the paper.
        num_classes: of the output.
        inner: width of the attention (None: a quarter of the channels, at least 1).
        width: before the classifier; 512 as published.
        recurrence: passes of the attention.
        gate: initial scale of the attention; 0 as published.
        dropout: of whole channels before the classifier, in training.
        norm: after each 3x3.
        slope: of the activation below zero.

    Raises:
        ValueError: a width or a number of classes below 1.
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        inner: int | None = None,
        width: int = 512,
        recurrence: int = 2,
        gate: float = 0.0,
        dropout: float = 0.1,
        norm: NormName = "batch",
        slope: float = 0.01,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        inside = max(1, channels // 4) if inner is None else inner
        if min(channels, inside, width, num_classes) < 1:
            raise ValueError(
                f"CCNetHead: channels, inner, width and num_classes must be positive, got {channels}, {inner}, "
                f"{width} and {num_classes}"
            )
        self.channels, self.num_classes = channels, num_classes
        self.enter = DilatedBranch(channels, inside, norm=norm, slope=slope)
        self.attention = CrissCrossAttention(inside, recurrence=recurrence, gate=gate)
        self.leave = DilatedBranch(inside, inside, norm=norm, slope=slope)
        self.fuse = DilatedBranch(channels + inside, width, norm=norm, slope=slope)
        self.dropout = nn.Dropout2d(dropout)
        self.classify = Pointwise(width, num_classes)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(f"CCNetHead takes (b, {self.channels}, h, w), got the shape {tuple(x.shape)}")
        context = self.leave(self.attention(self.enter(x)))
        return self.classify(self.dropout(self.fuse(torch.cat([x, context], 1))))

    def open_gate_(self, value: float = 1.0) -> bool:
        """Sets the scale of the attention."""
        return self.attention.open_gate_(value)


@reference("ccnet", CCNetHead)
def ccnet_head(module: CCNetHead) -> Table:
    """RCCAModule: conva, cca, convb, and bottleneck with norm, dropout and classifier in one Sequential."""
    table = {
        "attention.query": "cca.query_conv",
        "attention.key": "cca.key_conv",
        "attention.value": "cca.value_conv",
        "attention.gate": "cca.gamma",
        "classify": "bottleneck.3",
    }
    for ours, theirs in {"enter": "conva", "leave": "convb", "fuse": "bottleneck"}.items():
        table[f"{ours}.weight"] = f"{theirs}.0.weight"
        table[f"{ours}.norm"] = f"{theirs}.1"
    return table
