# SPDX-License-Identifier: Apache-2.0
"""Light-Ham: a segmentation head that is one Hamburger between two 1x1 convolutions.

Paper   Is Attention Better Than Matrix Decomposition?, ICLR 2021, arXiv:2109.04553; SegNeXt, NeurIPS 2022,
        arXiv:2209.08575, uses it as its decoder.
Differs the ports in mmsegmentation and SegNeXt back-propagate through all steps; that is gradient="unrolled".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.pointwise import Pointwise
from widefield.decomposition.hamburger import HamburgerNMF
from widefield.weights.reference import Table, reference


class LightHamHead(nn.Module):
    """Feature maps of several levels to logits at the size of the first.

    Levels are resized to the first (bilinear, corners not aligned), concatenated and squeezed to
    `ham_channels`; a Hamburger with NMF; aligned to `channels`; classified.

    Shape: `[(b, c_i, h_i, w_i), ...] -> (b, num_classes, h_0, w_0)`.

    Args:
        in_channels: c_i of each level.
        num_classes: of the logits.
        channels: before the classifier.
        ham_channels: inside (512 in the published models, 256 in the small ones).
        rank, steps, eval_steps, gradient, bases: of the Hamburger (rank 64, 6 training and 7 evaluation steps
            are published).
        groups: of the group norms; must divide both widths.
        dropout: before the classifier.

    Raises:
        ValueError: another number of levels than `in_channels` has, or groups that do not divide.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        *,
        channels: int = 256,
        ham_channels: int = 256,
        rank: int = 64,
        steps: int = 6,
        eval_steps: int | None = 7,
        gradient: str = "one_step",
        bases: str = "fixed",
        groups: int = 32,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if channels % groups or ham_channels % groups:
            raise ValueError(
                f"{groups} groups do not divide both channels={channels} and ham_channels={ham_channels}; "
                "choose a common divisor"
            )
        self.in_channels = tuple(in_channels)
        self.squeeze = Pointwise(sum(in_channels), ham_channels, bias=False)
        self.squeeze_norm = nn.GroupNorm(groups, ham_channels)
        self.hamburger = HamburgerNMF(
            ham_channels, rank=rank, steps=steps, eval_steps=eval_steps, gradient=gradient, bases=bases,
            norm=lambda c: nn.GroupNorm(groups, c),
        )  # fmt: skip
        self.align = Pointwise(ham_channels, channels, bias=False)
        self.align_norm = nn.GroupNorm(groups, channels)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = Pointwise(channels, num_classes)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        if len(levels) != len(self.in_channels):
            raise ValueError(f"built for {len(self.in_channels)} levels, got {len(levels)}")
        size = levels[0].shape[2:]
        x = torch.cat(
            [levels[0], *(F.interpolate(z, size=size, mode="bilinear", align_corners=False) for z in levels[1:])],
            1,
        )
        x = torch.relu(self.squeeze_norm(self.squeeze(x)))
        x = self.hamburger(x)
        x = torch.relu(self.align_norm(self.align(x)))
        return self.classifier(self.dropout(x))


@reference("mmseg", LightHamHead)
def mmseg(module: LightHamHead) -> Table:
    """LightHamHead of mmsegmentation and SegNeXt, with group norms."""
    return {
        "squeeze": "squeeze.conv",
        "squeeze_norm": "squeeze.gn",
        "hamburger.lower_bread": "hamburger.ham_in.conv",
        "hamburger.upper_bread": "hamburger.ham_out.conv",
        "hamburger.norm": "hamburger.ham_out.gn",
        "hamburger.ham.bases": None,
        "align": "align.conv",
        "align_norm": "align.gn",
        "classifier": "conv_seg",
    }
