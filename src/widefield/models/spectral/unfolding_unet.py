# SPDX-License-Identifier: Apache-2.0
"""The U-Net that GAP-Net and ADMM-Net denoise with at every stage.

Papers  GAP-net for Snapshot Compressive Imaging, arXiv:2012.08364; the form of the toolbox caiyuanhao1998/MST.
Facts   no normalisation, two max-poolings, skips by concatenation; the answer is the input plus a tanh, so no
        value moves by more than 1.
Differs pads to a multiple of 8 where its two poolings need 4, as the toolbox does: the zeros that convolutions
        meet beyond the padding are then as far away as in training. Maps smaller than the padding are padded too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.models.spectral.network import pad_to_multiple
from widefield.weights.reference import reference


def double_convolution(in_channels: int, out_channels: int) -> nn.Sequential:
    """Two 3x3 convolutions, a ReLU after each: `(b, in, h, w) -> (b, out, h, w)`."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.ReLU(),
    )


class UnfoldingUNet(nn.Module):
    """`x + tanh(U(x))`.

    Shape: `(b, bands, h, w) -> (b, bands, h, w)`, of any size.

    Args:
        bands: of the cube.
        widths: channels of the levels, the first at full size, each further one at half the size.

    Raises:
        ValueError: no level, or a width below 1.
    """

    def __init__(self, bands: int, *, widths: Sequence[int] = (32, 64, 128)) -> None:
        super().__init__()
        if not widths:
            raise ValueError("UnfoldingUNet: widths must name the channels of one level at least, got none")
        require_positive("UnfoldingUNet", bands=bands, **{f"widths[{i}]": width for i, width in enumerate(widths)})
        self.encode = nn.ModuleList(double_convolution(a, b) for a, b in pairwise((bands, *widths)))
        steps = [(wide, narrow) for narrow, wide in pairwise(widths)][::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for wide, narrow in steps)
        self.decode = nn.ModuleList(double_convolution(2 * narrow, narrow) for _, narrow in steps)
        self.leave = nn.Conv2d(widths[0], bands, 1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        x = pad_to_multiple(x, 2 ** len(self.encode))
        first, *deeper = self.encode
        levels = [first(x)]
        for encode in deeper:
            levels.append(encode(F.max_pool2d(levels[-1], 2)))  # half the size, twice the channels
        features = levels.pop()
        for rise, decode in zip(self.rise, self.decode, strict=True):
            features = decode(torch.cat([F.relu(rise(features)), levels.pop()], 1))
        return (x + self.leave(features).tanh())[..., :height, :width]


def unet_table(unet: UnfoldingUNet, ours: str = "", theirs: str = "") -> dict[str, str]:
    """Names of a U-Net that stands at the prefix `ours` here and at `theirs` there."""
    table: dict[str, str] = {f"{ours}leave": f"{theirs}conv_last"}
    deepest = len(unet.encode)
    for level in range(deepest):
        for layer in (0, 2):
            table[f"{ours}encode.{level}.{layer}"] = f"{theirs}dconv_down{level + 1}.d_conv.{layer}"
    for step in range(deepest - 1):
        level = deepest - 1 - step
        table[f"{ours}rise.{step}"] = f"{theirs}upsample{level}.0"
        for layer in (0, 2):
            table[f"{ours}decode.{step}.{layer}"] = f"{theirs}dconv_up{level}.d_conv.{layer}"
    return table


@reference("mst", UnfoldingUNet)
def _unet(module: UnfoldingUNet) -> dict[str, str]:
    return unet_table(module)
