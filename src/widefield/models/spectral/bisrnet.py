# SPDX-License-Identifier: Apache-2.0
"""BiSRNet: a U-shaped network whose convolutions multiply signs.

    y = RPReLU(s sign(W) * sign(k x + b)) + x       s = mean |W| of each output channel

Paper   Binarized Spectral Compressive Imaging, NeurIPS 2023, arXiv:2305.10299.
Facts   convolutions: linear in the number of pixels. Backward, the sign of an activation is tanh(beta x), beta
        learned; that of a weight is the weight itself within [-1, 1].
*differs*: the signs are computed in floating point, as in the code: this reproduces the numbers, not the speed of
1-bit hardware. Table rows of 0.036 M and 1.18 G count a 1-bit weight and operation at a discount; the network has
0.659 M weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.pointwise import Pointwise
from widefield.imaging import first_estimate, undisperse
from widefield.models.spectral.blocks import Blocks, ChannelNorm, UShape, crop, u_names
from widefield.models.spectral.network import SnapshotNetwork, network, pad_to_multiple
from widefield.weights.reference import Table, reference


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """`hard` forward, the gradient of `soft` backward."""
    return hard.detach() + (soft - soft.detach())


class Affine(nn.Module):
    """`k x + b`, one k and one b a channel: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class RPReLU(nn.Module):
    """`PReLU(x + b) + c`, slope, b and c a channel: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.prelu = nn.PReLU(channels)
        self.after = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.prelu(x + self.before) + self.after


class BinaryConv(nn.Module):
    """The unit: affine, sign, convolution by signs, RPReLU, and its input: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int, size: int, *, groups: int = 1) -> None:
        super().__init__()
        self.affine = Affine(channels)
        self.beta = nn.Parameter(torch.ones(1))
        self.conv = nn.Conv2d(channels, channels, size, padding=size // 2, groups=groups, bias=False)
        self.activation = RPReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        z = self.affine(x)
        signs = straight_through(z.sign(), torch.tanh(z * self.beta))
        w = self.conv.weight
        weight = straight_through(w.abs().mean((1, 2, 3), keepdim=True) * w.sign(), w.clamp(-1, 1))
        z = F.conv2d(signs, weight, padding=self.conv.padding, groups=self.conv.groups)
        return self.activation(z) + x


class Widened(nn.Module):
    """Two units side by side on the same input: `(b, c, h, w)` to `(b, 2c, h, w)`, halved first where told to."""

    def __init__(self, channels: int, size: int = 1, *, downsample: bool = False) -> None:
        super().__init__()
        self.downsample = downsample
        self.first, self.second = BinaryConv(channels, size), BinaryConv(channels, size)

    def forward(self, x: Tensor) -> Tensor:
        if self.downsample:
            x = F.avg_pool2d(x, 2)
        return torch.cat([self.first(x), self.second(x)], 1)


class Narrowed(nn.Module):
    """The mean of two units, one for each half of the channels: `(b, 2c, h, w)` to `(b, c, h, w)`, doubled first
    where told to. Parts given one by one are put together along the channels."""

    def __init__(self, channels: int, size: int = 1, *, upsample: bool = False) -> None:
        super().__init__()
        self.upsample = upsample
        self.first, self.second = BinaryConv(channels, size), BinaryConv(channels, size)

    def forward(self, *parts: Tensor) -> Tensor:
        x = torch.cat(parts, 1)
        if self.upsample:
            x = F.interpolate(x, scale_factor=2, mode="bilinear")
        first, second = x.chunk(2, 1)
        return (self.first(first) + self.second(second)) / 2


class BinaryBlock(nn.Module):
    """`x + feed_forward(norm(x))`, four times as wide within: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.feed_forward = nn.Sequential(
            Widened(channels),
            Widened(2 * channels),
            RPReLU(4 * channels),
            BinaryConv(4 * channels, 3, groups=channels),
            RPReLU(4 * channels),
            Narrowed(2 * channels),
            Narrowed(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.feed_forward(self.norm(x))


class BinaryBody(nn.Module):
    """A U of binary blocks between two binary 3x3 convolutions, and its input.

    Shape: `(b, channels, h, w)` to the same; height and width multiples of `2**levels`.

    Args:
        channels: in, out and at the top of the U.
        blocks: at each level, the bottom last.
    """

    def __init__(self, channels: int, blocks: Sequence[int] = (1, 1, 1)) -> None:
        super().__init__()
        self.embed = BinaryConv(channels, 3)
        self.u = UShape(
            channels,
            len(blocks) - 1,
            lambda level, width: Blocks([BinaryBlock(width) for _ in range(blocks[level])]),
            down=lambda width: Widened(width, 3, downsample=True),
            up=lambda width: Narrowed(width, 3, upsample=True),
            fuse=Narrowed,
        )
        self.map = BinaryConv(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(self.u(self.embed(x))) + x


@network(
    {"bisrnet": {}}, title="Binarized Spectral Compressive Imaging", paper="arXiv:2305.10299", year=2023,
    input="H", mask="Mask",
)  # fmt: skip
class BiSRNet(SnapshotNetwork):
    """First estimate and mask fused by a 1x1, a 3x3, binary bodies, a 3x3; these three are of full precision.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        stages: bodies, one after the other.
        blocks: at each level of each, the bottom last.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self, bands: int = 28, step: int = 2, *, stages: int = 1, blocks: Sequence[int] = (1, 1, 1)
    ) -> None:
        super().__init__(bands, step)
        self.blocks = tuple(blocks)
        if stages < 1 or len(self.blocks) < 2 or min(self.blocks) < 1:
            raise ValueError(
                f"BiSRNet: stages must be at least 1 and blocks two or more positive numbers, one a level; got "
                f"{stages} and {blocks!r}"
            )
        self.fuse = Pointwise(2 * bands, bands)
        self.enter = nn.Conv2d(bands, bands, 3, padding=1, bias=False)
        self.stages = nn.ModuleList(BinaryBody(bands, self.blocks) for _ in range(stages))
        self.leave = nn.Conv2d(bands, bands, 3, padding=1, bias=False)

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        self.check(y, phi)
        x = first_estimate(y, self.bands, self.step)
        height, width = x.shape[2:]
        x = self.fuse(x, undisperse(phi, self.step).to(x.dtype).expand_as(x))
        # 8 as published, though two levels need 4 only.
        x = pad_to_multiple(x, max(8, 1 << (len(self.blocks) - 1)))
        z = self.enter(x)
        for stage in self.stages:
            z = stage(z)
        return crop(self.leave(z) + x, height, width)


ACTIVATION = {"before": "pr_bias0.bias", "prelu": "pr_prelu", "after": "pr_bias1.bias"}
UNIT = {
    "affine.scale": "move0.k", "affine.shift": "move0.b", "beta": "binary_activation.beta", "conv": "binary_conv",
    **{f"activation.{a}": f"relu.{b}" for a, b in ACTIVATION.items()},
}  # fmt: skip
PAIR = {"first": "biconv_1", "second": "biconv_2"}


def _names(module: nn.Module, ours: str, theirs: str) -> dict[str, str]:
    """Of everything in `module`, itself named so."""
    if isinstance(module, BinaryConv | RPReLU):
        inner = UNIT if isinstance(module, BinaryConv) else ACTIVATION
        return {f"{ours}{a}": f"{theirs}{b}" for a, b in inner.items()}
    if isinstance(module, nn.LayerNorm):
        return {ours.removesuffix("."): theirs.removesuffix(".")}
    table: dict[str, str] = {}
    for name, part in module.named_children():
        new = {**PAIR, "feed_forward": "fn.net"}.get(name, name)
        table |= _names(part, f"{ours}{name}.", f"{theirs}{new}.")
    return table


@reference("mst", BinaryConv, Widened, Narrowed, BinaryBlock)
def _unit(module: nn.Module) -> Table:
    return _names(module, "", "")


@reference("mst", BinaryBody)
def _body(module: BinaryBody) -> dict[str, str]:
    table: dict[str, str] = {}
    outer = u_names(module.u.levels, ours="u.") | {"embed": "embedding", "map": "mapping"}
    for ours, theirs in outer.items():
        table |= _names(module.get_submodule(ours), f"{ours}.", f"{theirs}.")
    return table


@reference("mst", BiSRNet)
def _whole(module: BiSRNet) -> Table:
    table = {"fuse": "fution", "enter": "conv_in", "leave": "conv_out"}
    for i, stage in enumerate(module.stages):
        assert isinstance(stage, BinaryBody)
        table |= {f"stages.{i}.{a}": f"body.{i}.{b}" for a, b in _body(stage).items()}
    return table
