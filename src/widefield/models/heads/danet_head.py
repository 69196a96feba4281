# SPDX-License-Identifier: Apache-2.0
"""The segmentation head of DANet: a position branch, a channel branch, their sum; three supervised outputs.

Paper   Dual Attention Network for Scene Segmentation, CVPR 2019, arXiv:1809.02983.
Facts   cost of four 3x3 convolutions (two c -> c/4, two c/4 -> c/4) and of both attentions at c/4 channels.
Differs not at all from the authors' code, whose names `load_reference(..., source="danet")` takes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from widefield.attention import ChannelAttention, PositionAttention
from widefield.core.branch import DilatedBranch
from widefield.core.norm import NormName
from widefield.core.pointwise import Pointwise
from widefield.weights.reference import Table, reference


class DANetOutput(NamedTuple):
    """Logits `(b, num_classes, h, w)` of the sum and of each branch; the loss is the sum of three."""

    fused: Tensor
    position: Tensor
    channel: Tensor


class DANetHead(nn.Module):
    """Dual attention between 3x3 convolutions, at a quarter of the channels.

    Shape: `(b, channels, h, w)` to three `(b, num_classes, h, w)`.

    Args:
        channels: of the input; 2048 in the paper.
        num_classes: of the outputs.
        width: of the branches (None: a quarter of the channels, at least 1).
        gate: initial scale of both attentions; 0 as published.
        dropout: of whole channels before each classifier, in training.
        norm: after each 3x3.

    Raises:
        ValueError: a width or a number of classes below 1.
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        width: int | None = None,
        gate: float = 0.0,
        dropout: float = 0.1,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        inner = max(1, channels // 4) if width is None else width
        if channels < 1 or inner < 1 or num_classes < 1:
            raise ValueError(
                f"DANetHead: channels, width and num_classes must be positive, got {channels}, {width} and "
                f"{num_classes}"
            )
        self.channels, self.num_classes = channels, num_classes
        self.position_in = DilatedBranch(channels, inner, norm=norm)
        self.position = PositionAttention(inner, gate=gate)
        self.position_out = DilatedBranch(inner, inner, norm=norm)
        self.channel_in = DilatedBranch(channels, inner, norm=norm)
        self.channel = ChannelAttention(inner, gate=gate)
        self.channel_out = DilatedBranch(inner, inner, norm=norm)
        self.dropout = nn.Dropout2d(dropout)
        self.classify_position = Pointwise(inner, num_classes)
        self.classify_channel = Pointwise(inner, num_classes)
        self.classify_fused = Pointwise(inner, num_classes)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> DANetOutput:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(f"DANetHead takes (b, {self.channels}, h, w), got the shape {tuple(x.shape)}")
        position = self.position_out(self.position(self.position_in(x)))
        channel = self.channel_out(self.channel(self.channel_in(x)))
        return DANetOutput(
            fused=self.classify_fused(self.dropout(position + channel)),
            position=self.classify_position(self.dropout(position)),
            channel=self.classify_channel(self.dropout(channel)),
        )

    def open_gate_(self, value: float = 1.0) -> bool:
        """Sets the scales of both attentions."""
        return self.position.open_gate_(value) and self.channel.open_gate_(value)


@reference("danet", DANetHead)
def danet_head(module: DANetHead) -> Table:
    """conv5a, sa, conv51, conv6 for positions; conv5c, sc, conv52, conv7 for channels; conv8 for the sum."""
    table = {
        "classify_position": "conv6.1",
        "classify_channel": "conv7.1",
        "classify_fused": "conv8.1",
    }
    for ours, theirs in (("position", "sa"), ("channel", "sc")):
        table[f"{ours}.query"] = f"{theirs}.query_conv"
        table[f"{ours}.key"] = f"{theirs}.key_conv"
        table[f"{ours}.value"] = f"{theirs}.value_conv"
        table[f"{ours}.gate"] = f"{theirs}.gamma"
    stages = {"position_in": "conv5a", "position_out": "conv51", "channel_in": "conv5c", "channel_out": "conv52"}
    for ours, theirs in stages.items():
        table[f"{ours}.weight"] = f"{theirs}.0.weight"
        table[f"{ours}.norm"] = f"{theirs}.1"
    return table
