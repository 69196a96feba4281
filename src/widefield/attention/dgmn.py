# SPDX-License-Identifier: Apache-2.0
"""Dynamic graph message passing: each position gathers from few neighbours, sampled at displacements it predicts.

    m_p = sum_t w_p,t a_p,t x(p + r t + d_p,t)          t in a 3 x 3 grid; one message for each rate r

    dgmn        y = x + sum_r g_r m^r               w raw, a softmax over t; both predicted at the sampled places
    dgmn-fast   y = x + f([z, m^1, ..., m^r](z))    z a narrow projection; w softmax, a sigmoid, from a plain 3x3

Paper   Dynamic Graph Message Passing Networks, CVPR 2020, arXiv:1908.06955.
Facts   cost of 9 c (18 + 9 g + 9) n a rate in predictions, g groups of channels; 9 samples a rate elementwise.
        Weights reach as far as the displacements; those of dgmn sum to nothing fixed.
Differs in the released configuration of dgmn the modulation of the last rate is read from the last nine filters,
        so that nine predicted channels go unused: shared_modulation=True. In dgmn-fast without modulation the
        published slice of filters fits one group only; here it fits all. Without its random shuffle of groups. As
        published, a neighbour outside the map sends nothing and keeps its share of a softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.attention.sampling import sampled_sum, sampled_taps
from widefield.attention.windows import window, window_sum
from widefield.core import layout
from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.errors import NoOperator, unknown
from widefield.core.gates import scalar_gate
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.registry import register

TITLE, PAPER = "Dynamic Graph Message Passing Networks", "arXiv:1908.06955"
TAPS = 9
SAMPLINGS = {"deformatt": 18, "deform": 18, "none": 0}  # offsets predicted: a row and a column a tap


def places(offsets: Tensor, rate: int) -> tuple[Tensor, Tensor]:
    """Rows and columns `(b, h, w, 9)` of the displaced 3 x 3 grid around each position.

    Args:
        offsets: `(b, 18, h, w)`, a row and a column displacement for each tap in turn.
        rate: spacing of the grid.
    """
    h, w = offsets.shape[2:]
    down, right = offsets.unflatten(1, (TAPS, 2)).permute(2, 0, 3, 4, 1)
    grid = torch.tensor(window(3, 2, rate), dtype=offsets.dtype, device=offsets.device).T
    i = torch.arange(h, dtype=offsets.dtype, device=offsets.device)[:, None, None]
    j = torch.arange(w, dtype=offsets.dtype, device=offsets.device)[:, None]
    return down + i + grid[0], right + j + grid[1]


def message(x: Tensor, weights: Tensor, offsets: Tensor | None, rate: int) -> Tensor:
    """Weighted sum of nine neighbours: `(b, c, h, w)`.

    Args:
        x: `(b, c, h, w)`.
        weights: `(b, g, 9, h, w)`, for g groups of channels.
        offsets: as `places`; None for the plain grid.
        rate: spacing of the grid.
    """
    if offsets is None:
        return window_sum(weights, x, window(3, 2, rate))
    return sampled_sum(weights.permute(0, 3, 4, 1, 2), x.movedim(1, -1), *places(offsets, rate)).movedim(-1, 1)


def dilated(x: Tensor, weight: Tensor, rate: int) -> Tensor:
    """Bias-free 3x3 convolution of a rate that keeps the size."""
    return F.conv2d(x, weight.to(x.dtype), padding=rate, dilation=rate)


def _kernel(out_channels: int, in_channels: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(out_channels, in_channels, 3, 3))
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight


class MessageBase(Context):
    """The checks that both have in common, and why there is no operator."""

    space_dims = (2,)

    def __init__(self, channels: int, *, rates: Sequence[int], groups: int, sampling: str, width: int) -> None:
        super().__init__(channels)
        name = type(self).__name__
        if not rates or min(rates) < 1:
            raise ValueError(f"{name}: rates must be one or more positive integers, got {rates!r}")
        if groups < 1 or width % groups:
            raise ValueError(f"{name}: groups must divide the {width} channels that are sampled, got {groups}")
        if sampling not in SAMPLINGS:
            raise unknown("sampling", sampling, SAMPLINGS)
        self.rates, self.groups, self.sampling = tuple(rates), groups, sampling

    @property
    def modulated(self) -> bool:
        """Whether a second factor weighs each neighbour."""
        return self.sampling == "deformatt"

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Refused: every rate and group has weights of its own, over sampled places."""
        raise NoOperator(
            f"{type(self).__name__} has {len(self.rates)} rates and {self.groups} groups of channels, each with "
            "weights of its own over places between positions, and no matrix for all"
        )


@register(
    "dgmn",
    family="attention",
    title=TITLE,
    paper=PAPER,
    year=2020,
    complexity="n",
    limits={"dimensions": "offsets along rows and columns: two dimensions"},
)
class DynamicGraphMessages(MessageBase):
    """`x + sum_r gate_r m^r`: messages from sampled neighbours at several rates, as the released models have them.

    Shape: `(b, channels, h, w) -> (b, channels, h, w)`.

    Args:
        channels: of the input.
        rates: spacings of the neighbours' grids, one message each.
        groups: of channels, with filters of their own; must divide the channels.
        sampling: "deformatt", displaced and modulated neighbours; "deform", displaced; "none", the plain grid.
            Without modulation the filters are a softmax over the neighbours.
        shared_modulation: the last rate's modulation is that of its last group's filters, as in the released code.
        gate: initial value of each rate's learned scale; 1 as published.
    """

    def __init__(
        self,
        channels: int,
        *,
        rates: Sequence[int] = (1, 4, 8, 12),
        groups: int = 4,
        sampling: str = "deformatt",
        shared_modulation: bool = False,
        gate: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, rates=rates, groups=groups, sampling=sampling, width=channels)
        self.shared_modulation = shared_modulation
        filters = TAPS * groups + (TAPS if self.modulated else 0)
        offsets = SAMPLINGS[sampling]
        self.filters = nn.ParameterList(_kernel(filters, channels) for _ in self.rates)
        self.offsets = nn.ParameterList(_kernel(offsets, channels) for _ in self.rates if offsets)
        self.gates = nn.ParameterList(scalar_gate(gate) for _ in self.rates)
        self.to(device=device, dtype=dtype)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        # With the channel last in memory a sample reads whole vectors.
        x = layout.to_map(layout.exchanged(tokens).mT if self.offsets else tokens, space)
        total = sum(gate * self.message(i, x) for i, gate in enumerate(self.gates))
        assert isinstance(total, Tensor)
        return total.flatten(2)

    def message(self, i: int, x: Tensor) -> Tensor:
        """m of rate i: `(b, c, h, w)`."""
        rate, kernel = self.rates[i], self.filters[i].to(x.dtype)
        if not self.offsets:
            return message(x, dilated(x, kernel, rate).unflatten(1, (self.groups, TAPS)).softmax(2), None, rate)
        offsets = dilated(x, self.offsets[i], rate)
        taps = x.movedim(1, -1) @ kernel.flatten(2).permute(1, 2, 0).flatten(1)
        filters = sampled_taps(taps.unflatten(3, (TAPS, -1)), *places(offsets, rate)).movedim(-1, 1)
        return message(x, self.weights(i, filters), offsets, rate)

    def weights(self, i: int, filters: Tensor) -> Tensor:
        """`(b, 9 g [+ 9], h, w)` predictions of rate i to weights `(b, g, 9, h, w)`."""
        raw = filters[:, : TAPS * self.groups].unflatten(1, (self.groups, TAPS))
        if not self.modulated:
            return raw.softmax(2)
        shared = self.shared_modulation and i == len(self.rates) - 1
        modulation = raw[:, -1] if shared else filters[:, -TAPS:]
        return raw * modulation.softmax(1).unsqueeze(1)

    def mixing_cost(self, space: Space) -> int:
        return math.prod(space) * sum(p.numel() for p in (*self.filters, *self.offsets))

    def open_gate_(self, value: float = 1.0) -> bool:
        with torch.no_grad():
            for gate in self.gates:
                gate.fill_(value)
        return True


@register(
    "dgmn-fast",
    family="attention",
    title=TITLE,
    paper=PAPER,
    year=2020,
    complexity="n",
    limits={"dimensions": "offsets along rows and columns: two dimensions"},
)
class DynamicGraphMessagesFast(MessageBase):
    """Messages among narrow features, concatenated and projected back; the residual only ever adds.

    Shape: `(b, channels, h, w) -> (b, channels, h, w)`.

    Args:
        channels: of the input.
        inner: width of the features that are passed (None: a quarter of the channels, at least 1).
        rates, sampling: as `dgmn`. Filters are a softmax over the neighbours, the modulation a sigmoid.
        groups: of inner channels, with filters of their own; must divide them.
        norm: after each 1x1.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        rates: Sequence[int] = (1, 4, 8, 12),
        groups: int = 1,
        sampling: str = "deformatt",
        norm: NormName = "group",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = max(1, channels // 4) if inner is None else inner
        if width < 1:
            raise ValueError(f"DynamicGraphMessagesFast: inner must be a positive number of channels, got {inner}")
        super().__init__(channels, rates=rates, groups=groups, sampling=sampling, width=width)
        self.inner = width
        predicted = TAPS * groups + SAMPLINGS[sampling] + (TAPS if self.modulated else 0)
        self.reduce = PointwiseBranch(channels, width, norm=norm)
        self.predict = nn.ParameterList(_kernel(predicted, width) for _ in self.rates)
        self.fuse = PointwiseBranch((len(self.rates) + 1) * width, width, norm=norm)
        self.expand = PointwiseBranch(width, channels, norm=norm)
        self.to(device=device, dtype=dtype)

    def enter(self, tokens: Tensor) -> Tensor:
        return self.reduce(tokens)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        z = layout.to_map(tokens, space)
        messages = [self.message(i, z).flatten(2) for i in range(len(self.rates))]
        return torch.cat([tokens, *messages], 1)

    def message(self, i: int, z: Tensor) -> Tensor:
        """m of rate i: `(b, inner, h, w)`."""
        rate, split = self.rates[i], TAPS * self.groups
        found = dilated(z, self.predict[i], rate)
        weights = found[:, :split].unflatten(1, (self.groups, TAPS)).softmax(2)
        if self.modulated:
            weights = weights * found[:, -TAPS:].sigmoid().unsqueeze(1)
        offsets = found[:, split : split + 2 * TAPS] if SAMPLINGS[self.sampling] else None
        return message(z, weights, offsets, rate)

    def leave(self, context: Tensor) -> Tensor:
        return self.expand(self.fuse(context))

    def mixing_cost(self, space: Space) -> int:
        return math.prod(space) * sum(p.numel() for p in self.predict)
