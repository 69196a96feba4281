# SPDX-License-Identifier: Apache-2.0
"""The half-shuffle transformer (HST), the denoiser of DAUHST: a U-Net of half-shuffle blocks.

Paper   Degradation-Aware Unfolding Half-Shuffle Transformer for Spectral Compressive Imaging, NeurIPS 2022,
        arXiv:2205.10102.
Facts   677 352 parameters at the published size, a third of them position tables.
Differs pads to what the windows need at the lowest level, 32, where the authors pad to 16 and fail at half of the
        sizes; equal wherever theirs runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.models.spectral.half_shuffle import WINDOW, HalfShuffleBlock, Pair, below, block_table
from widefield.models.spectral.network import pad_to_multiple
from widefield.weights.reference import reference


class HalfShuffleTransformer(nn.Module):
    """HST: a U-Net of half-shuffle blocks, plus its own first input channels.

    Shape: `(b, in_channels, h, w) -> (b, out_channels, h, w)`, of any size.

    Args:
        in_channels: of the input; the first `out_channels` of them are added to the answer.
        out_channels: of the answer.
        channels: width of the first level and of every head; each further level has twice the heads.
        layers: of the blocks of each level.
        size: height and width of the map that the shuffled tables are made for.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        channels: int = 28,
        layers: Sequence[int] = (1, 1, 1),
        size: Pair = (256, 310),
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("HalfShuffleTransformer: layers must name the layers of one level at least, got none")
        if not 1 <= out_channels <= in_channels:
            raise ValueError(
                f"HalfShuffleTransformer adds its first out_channels inputs to the answer; got {in_channels} "
                f"inputs for {out_channels} outputs"
            )
        require_positive("HalfShuffleTransformer", channels=channels, height=size[0], width=size[1])
        deepest = len(layers) - 1
        self.out_channels = out_channels
        self.multiple = max(16, WINDOW << deepest)  # every level holds whole windows; the authors' 16 at least

        def block(level: int) -> HalfShuffleBlock:
            rows, columns = (-(-side // self.multiple) * self.multiple // (WINDOW << level) for side in size)
            return HalfShuffleBlock(
                channels << level, 1 << level, channels, grid=(rows, columns), layers=layers[level]
            )

        widths = [channels << level for level in range(deepest + 1)]
        up = list(pairwise(reversed(widths)))
        self.enter = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.encode = nn.ModuleList(block(level) for level in range(deepest))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, stride=2, padding=1, bias=False) for a, b in pairwise(widths))
        self.bottleneck = block(deepest)
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in up)
        self.fuse = nn.ModuleList(nn.Conv2d(a, b, 1, bias=False) for a, b in up)
        self.decode = nn.ModuleList(block(level) for level in reversed(range(deepest)))
        self.leave = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        x = pad_to_multiple(x, self.multiple)
        features = self.enter(x)
        skips = []
        for encode, down in zip(self.encode, self.down, strict=True):
            skips.append(encode(features))
            features = down(skips[-1])  # half the size, twice the channels
        features = self.bottleneck(features)
        for up, fuse, decode in zip(self.up, self.fuse, self.decode, strict=True):
            features = decode(fuse(torch.cat([up(features), skips.pop()], 1)))
        return (self.leave(features) + x[:, : self.out_channels])[..., :height, :width]


@reference("mst", HalfShuffleTransformer)
def transformer_table(module: HalfShuffleTransformer) -> dict[str, str]:
    table = {"enter": "embedding", "leave": "mapping"}
    blocks = {"bottleneck": "bottleneck"}
    for i in range(len(module.encode)):
        table |= {f"down.{i}": f"encoder_layers.{i}.1"}
        table |= {f"up.{i}": f"decoder_layers.{i}.0", f"fuse.{i}": f"decoder_layers.{i}.1"}
        blocks |= {f"encode.{i}": f"encoder_layers.{i}.0", f"decode.{i}": f"decoder_layers.{i}.2"}
    for ours, theirs in blocks.items():
        block = module.get_submodule(ours)
        assert isinstance(block, HalfShuffleBlock)
        table |= below(f"{ours}.", f"{theirs}.", block_table(block))
    return table
