# SPDX-License-Identifier: Apache-2.0
"""A small plain backbone that trains from scratch in a minute on a CPU, and sees a neighbourhood only."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widefield.core.norm import make_norm
from widefield.weights.backbones import Backbone

_STRIDES = (2, 4, 8, 16)


class PlainFeatures(nn.Module):
    """Stages of 3x3 convolution, norm, ReLU; each stage halves the map and doubles the channels.

    Args:
        width: channels of the first stage.
        depth: convolutions a stage; the first has stride 2.
        output_stride: 2, 4, 8 or 16: one stage each factor of two.
        in_chans: channels of the input.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(self, *, width: int = 32, depth: int = 2, output_stride: int = 4, in_chans: int = 3) -> None:
        super().__init__()
        if output_stride not in _STRIDES:
            raise ValueError(f"the plain backbone has an output stride of 2, 4, 8 or 16, got {output_stride}")
        if width < 1 or depth < 1:
            raise ValueError(f"the plain backbone needs width and depth of at least 1, got {width} and {depth}")
        stages = _STRIDES.index(output_stride) + 1
        self.depth = depth
        self.channels = [width << i for i in range(stages)]
        self.reductions = [2 << i for i in range(stages)]
        self.stages = nn.ModuleList()
        for before, after in zip([in_chans, *self.channels], self.channels, strict=False):
            layers: list[nn.Module] = []
            for i in range(depth):
                conv = nn.Conv2d(after if i else before, after, 3, 1 if i else 2, padding=1, bias=False)
                nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
                layers += [conv, make_norm("batch", after), nn.ReLU()]
            self.stages.append(nn.Sequential(*layers))
        self.checkpointing = False

    @property
    def receptive_field(self) -> int:
        """Width in pixels of the square that one output position depends on."""
        return 1 + sum(2 * (r // 2) + 2 * r * (self.depth - 1) for r in self.reductions)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Computes stages again in the backward pass instead of keeping their activations."""
        self.checkpointing = enable

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for stage in self.stages:
            if self.checkpointing and self.training:
                x = cast(Tensor, checkpoint(stage, x, use_reentrant=False))
            else:
                x = stage(x)
            features.append(x)
        return features


def plain_backbone(*, width: int = 32, depth: int = 2, output_stride: int = 4, in_chans: int = 3) -> Backbone:
    """The plain backbone, with its normalisation of 0..255 pictures.

    With the defaults an output position sees 19 x 19 pixels (`backbone.features.receptive_field`): in the
    embedded scenes of 48 x 48 that is its own cell and parts of the eight around it. It cannot see a cue
    further away, so what a segmenter on top of it gains over `none` comes from the context module.

    Raises:
        ValueError: an argument out of range.
    """
    features = PlainFeatures(width=width, depth=depth, output_stride=output_stride, in_chans=in_chans)
    return Backbone(
        features,
        mean=[127.5] * in_chans,
        std=[127.5] * in_chans,
        channels=features.channels,
        reductions=features.reductions,
    )
