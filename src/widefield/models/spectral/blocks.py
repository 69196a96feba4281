# SPDX-License-Identifier: Apache-2.0
"""What the reconstruction transformers share: the block, its feed-forward, the U it stands in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from widefield.core.fused import add_to, convolve_gelu, lay_channels_last, serves
from widefield.core.pointwise import Pointwise

# Rows of a strip of the feed-forward.
ROWS = 16


class ChannelNorm(nn.LayerNorm):
    """Layer norm of the channels of every position, on `(b, c, h, w)`."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


def depthwise(channels: int, size: int, *, bias: bool = False) -> nn.Conv2d:
    """A convolution of each channel with its own square kernel, padded with zeros."""
    return nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels, bias=bias)


class FeedForward(nn.Module):
    """1x1 to `factor` times the width, GELU, depthwise 3x3, GELU, 1x1 back, no biases; shape kept."""

    def __init__(self, channels: int, factor: int = 4) -> None:
        super().__init__()
        self.widen = Pointwise(channels, factor * channels, bias=False)
        self.spread = depthwise(factor * channels, 3)
        self.narrow = Pointwise(factor * channels, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = convolve_gelu(x, self.widen.weight[:, :, None, None])
        return self.narrow(convolve_gelu(x, self.spread.weight, padding=1))


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`; without the first norm where the paper has none.

    What guides the attention (a mask, an error map) is handed on to it.
    """

    def __init__(self, channels: int, attention: nn.Module, *, first_norm: bool) -> None:
        super().__init__()
        self.first_norm = ChannelNorm(channels) if first_norm else nn.Identity()
        self.attention = attention
        self.second_norm = ChannelNorm(channels)
        self.feed_forward = FeedForward(channels)

    def forward(self, x: Tensor, *guides: Tensor) -> Tensor:
        x = add_to(self.attention(self.first_norm(x), *guides), x)
        return self._fed_in_strips(x) if serves(x) else x + self.feed_forward(self.second_norm(x))

    def _fed_in_strips(self, x: Tensor) -> Tensor:
        """`x + feed_forward(norm(x))` in the memory of x, by rows: what is four times wider stays cached."""
        height, waiting = x.shape[2], x[:, :, :0]
        for top in range(0, height, ROWS):
            bottom = min(top + ROWS, height)
            first, end = max(top - 1, 0), min(bottom + 1, height)  # the 3x3 sees a row above and one below
            strip = self.feed_forward(self.second_norm(x[:, :, first:end]))[:, :, top - first : bottom - first]
            # The strip before is added only now: this one had to see its last row as it was.
            x[:, :, top - waiting.shape[2] : top] += waiting
            waiting = strip
        x[:, :, height - waiting.shape[2] :] += waiting
        return x


class Blocks(nn.Module):
    """Blocks one after the other, with the same guides."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, *guides: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, *guides)
        return x


Build = Callable[[int], nn.Module]


def halve(channels: int) -> nn.Module:
    """Half the map, twice the channels."""
    return nn.Conv2d(channels, 2 * channels, 4, 2, padding=1, bias=False)


def double(channels: int) -> nn.Module:
    """Twice the map, to so many channels from twice as many."""
    return nn.ConvTranspose2d(2 * channels, channels, 2, 2)


def merge(channels: int) -> nn.Module:
    """Two maps of so many channels to one."""
    return Pointwise(2 * channels, channels, bias=False)


class UShape(nn.Module):
    """Blocks on the way down, at the bottom and on the way up; each level halves the map and doubles the channels.

    Args:
        channels: at the top.
        levels: how often the map is halved. Height and width must be multiples of `2**levels`.
        blocks: builds the blocks of a level from its number and its channels.
        additive: skips are added; else concatenated and fused by a 1x1.
        down: builds what halves a map of so many channels and doubles them (None: a 4x4 convolution).
        up: what doubles the map and leaves so many channels, half of what it gets (None: a transposed 2x2).
        fuse: what takes the map and its skip, so many channels each, to one (None: a 1x1).
    """

    def __init__(
        self,
        channels: int,
        levels: int,
        blocks: Callable[[int, int], nn.Module],
        *,
        additive: bool = False,
        down: Build | None = None,
        up: Build | None = None,
        fuse: Build | None = None,
    ) -> None:
        super().__init__()
        self.levels, self.additive = levels, additive
        down, up, fuse = down or halve, up or double, fuse or merge
        widths = [channels << level for level in range(levels + 1)]
        self.down_blocks = nn.ModuleList(blocks(i, widths[i]) for i in range(levels))
        self.downs = nn.ModuleList(down(widths[i]) for i in range(levels))
        self.bottom = blocks(levels, widths[-1])
        upwards = range(levels - 1, -1, -1)
        self.ups = nn.ModuleList(up(widths[i]) for i in upwards)
        self.fusions = nn.ModuleList(nn.Identity() if additive else fuse(widths[i]) for i in upwards)
        self.up_blocks = nn.ModuleList(blocks(i, widths[i]) for i in upwards)

    def forward(self, x: Tensor, guides: Sequence[Sequence[Tensor]] | None = None) -> Tensor:
        """`(b, c, h, w)` to the same; `guides[level]` go to the blocks of that level."""
        guides = guides or [()] * (self.levels + 1)
        x = lay_channels_last(x)
        skips = []
        for level in range(self.levels):
            x = self.down_blocks[level](x, *guides[level])
            skips.append(x)
            x = self.downs[level](x)
        x = self.bottom(x, *guides[self.levels])
        for i, level in enumerate(range(self.levels - 1, -1, -1)):
            x = self.ups[i](x)
            x = x + skips[level] if self.additive else self.fusions[i](x, skips[level])
            x = self.up_blocks[i](x, *guides[level])
        return x


def u_names(levels: int, *, ours: str = "", per_level: int = 2) -> dict[str, str]:
    """The toolbox's names of a `UShape`: blocks, then what follows them, as numbered members of a list."""
    table = {f"{ours}bottom": "bottleneck"}
    for i in range(levels):
        table[f"{ours}down_blocks.{i}"] = f"encoder_layers.{i}.0"
        table[f"{ours}downs.{i}"] = f"encoder_layers.{i}.1"
        table[f"{ours}ups.{i}"] = f"decoder_layers.{i}.0"
        table[f"{ours}fusions.{i}"] = f"decoder_layers.{i}.1"
        table[f"{ours}up_blocks.{i}"] = f"decoder_layers.{i}.{per_level}"
    return table


def nested(
    outer: dict[str, str], inner: Callable[[nn.Module], dict[str, str]], module: nn.Module
) -> dict[str, str]:
    """A table whose entries are modules with tables of their own."""
    table: dict[str, str] = {}
    for ours, theirs in outer.items():
        part = module.get_submodule(ours)
        if isinstance(part, Blocks):
            for j, block in enumerate(part.blocks):
                here, there = (f"{name}.blocks.{j}".lstrip(".") for name in (ours, theirs))
                table |= {f"{here}.{a}": f"{there}.{b}" for a, b in inner(block).items()}
        else:
            table[ours] = theirs
    return table


FEED_FORWARD = {"widen": "net.0", "spread": "net.2", "narrow": "net.4"}


def crop(x: Tensor, height: int, width: int) -> Tensor:
    """The upper left corner of `(b, c, h, w)`."""
    return x[..., :height, :width]


def reset_linear_(module: nn.Module) -> None:
    """1x1 weights from a normal of deviation 0.02, cut at two; biases zero: the start of these transformers."""
    for part in module.modules():
        if isinstance(part, Pointwise):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
