# SPDX-License-Identifier: Apache-2.0
"""ResMLP: one linear map over the tokens and a two-layer map over the channels, with affine maps for norms.

    u = x + g_1 (A Aff(x)),   y = u + g_2 M(Aff(u)),   Aff(x) = alpha x + beta

Paper   ResMLP: Feedforward networks for image classification with data-efficient training, 2021, arXiv:2105.03404,
        equations 1 to 3.
Facts   cost n^2 d + 2 n d hidden multiply-adds. The number of tokens is fixed. No statistics of the data are
        taken.
Differs LayerScale starts at 1e-4 at every depth, as timm has it; the authors: 0.1, 1e-5 and 1e-6 at 12, 24 and 36
        blocks. They keep the output's affine map after the blocks, as the network here does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widefield.mixing.layers import Block, FeedForward, Residual, TokenLinear
from widefield.mixing.registry import register_mixer


class Affine(nn.Module):
    """`alpha x + beta`, one pair a channel: `(..., width) -> (..., width)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.beta, self.alpha, x)


@register_mixer(
    "resmlp", title="ResMLP: Feedforward networks for image classification with data-efficient training",
    paper="arXiv:2105.03404", year=2021, fixed_size=True, prefix_tokens=0, positions="none",
    growing_drop_path=False, zero_head=True, norm=Affine,
)  # fmt: skip
class ResMLPBlock(Block):
    """`u = x + g_1 (A Aff(x))`, `y = u + g_2 M(Aff(u))`: `(b, tokens, width) -> (b, tokens, width)`.

    Args:
        width: of a token.
        tokens: n, fixed.
        hidden: of the channel map; None: four times the width.
        scale: start of LayerScale on both branches.
        dropout, drop_path: in training.
    """

    def __init__(
        self,
        width: int,
        tokens: int,
        *,
        hidden: int | None = None,
        scale: float = 1e-4,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        channels = FeedForward(width, 4 * width if hidden is None else hidden, dropout=dropout)
        super().__init__(
            token=Residual(Affine(width), TokenLinear(tokens), width, scale=scale, drop_path=drop_path),
            channel=Residual(Affine(width), channels, width, scale=scale, drop_path=drop_path),
        )
