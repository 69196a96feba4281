# SPDX-License-Identifier: Apache-2.0
"""Point-wise spatial attention: no position asks another; each predicts its weights from itself alone.

    f = ReLU(norm(W_f x)),  a = W_a ReLU(norm(W_h f)),  both on a reduced map
    collect      o_i = sum_j softmax_j(a_i[j - i]) f_j        where the receiver looks
    distribute   o_i = sum_j softmax_j(a_j[i - j]) f_j        where the sender goes
    y = [x, ReLU(norm(W_o [o of each direction]))]

Paper   PSANet: Point-wise Spatial Attention Network for Scene Parsing, ECCV 2018.
Facts   cost m d M + m^2 d for m reduced positions, width d and a mask of M offsets, of which those that leave the
        map cost nothing; memory neither m x m nor m x M. Output of twice the channels.
Differs any map runs: the reduced one is brought back to the size of the input, where the published one comes back
        to a multiple of the factor plus one; the two are equal where that is the size of the input. Offsets beyond
        the mask have the logit 0 and take part in the softmax, as published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from widefield.attention.non_local_linear import dot_product, linear_is_cheaper
from widefield.attention.predicted import predicted_attention, predicted_cost, predicted_logits
from widefield.attention.sdpa import attention
from widefield.core import layout
from widefield.core.branch import PointwiseBranch
from widefield.core.context import Context
from widefield.core.cost import Cost
from widefield.core.errors import require_positive, unknown
from widefield.core.layout import Space
from widefield.core.norm import NormName
from widefield.core.numerics import float32_island, widen
from widefield.core.registry import register
from widefield.core.resample import resize, resize_cost, resize_matrix

TITLE = "PSANet: Point-wise Spatial Attention Network for Scene Parsing"
DIRECTIONS = {"collect": ("collect",), "distribute": ("distribute",), "both": ("collect", "distribute")}


def pair(owner: str, option: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Height and width from a pair or from one number for both."""
    sides = (value, value) if isinstance(value, int) else tuple(value)
    if len(sides) != 2:
        raise ValueError(f"{owner}: {option} must be one number or (height, width), got {value!r}")
    require_positive(owner, **{f"{option} height": sides[0], f"{option} width": sides[1]})
    return sides


class Predictor(nn.Module):
    """One direction: the features, and the hidden ones from which their weights are predicted."""

    def __init__(self, channels: int, inner: int, outputs: int, *, norm: NormName) -> None:
        super().__init__()
        self.reduce = PointwiseBranch(channels, inner, norm=norm)
        self.hidden = PointwiseBranch(inner, inner, norm=norm)
        self.weight = nn.Parameter(torch.empty(outputs, inner))
        nn.init.uniform_(self.weight, -(inner**-0.5), inner**-0.5)  # as torch starts a convolution


class PSANetBase(Context):
    """Both directions on a reduced map; a subclass says what the predicted numbers stand for."""

    space_dims = (2,)

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None,
        direction: str,
        outputs: int,
        shrink: int,
        softmax: bool,
        divisor: float | None,
        norm: NormName,
    ) -> None:
        super().__init__(channels, out_channels=2 * channels)
        if direction not in DIRECTIONS:
            raise unknown("direction", direction, DIRECTIONS)
        require_positive(type(self).__name__, inner=inner, shrink=shrink)
        self.inner = max(1, channels // 4) if inner is None else inner
        self.directions, self.shrink, self.softmax = DIRECTIONS[direction], shrink, softmax
        self.divisor = outputs if divisor is None else divisor
        self.parts: Any = nn.ModuleDict(
            {name: Predictor(channels, self.inner, outputs, norm=norm) for name in self.directions}
        )
        self.project = PointwiseBranch(len(self.directions) * self.inner, channels, norm=norm)

    def attend(self, hidden: Tensor, weight: Tensor, features: Tensor, space: Space, direction: str) -> Tensor:
        """`(b, inner, m)` features gathered with the weights that `(b, inner, m)` hidden ones predict."""
        raise NotImplementedError

    def logits(self, hidden: Tensor, weight: Tensor, space: Space, direction: str) -> Tensor:
        """`(b, m, m)`, receivers by senders."""
        raise NotImplementedError

    def pairs_cost(self, space: Space) -> int:
        """Multiply-adds of `attend` for one sample."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            y = self.back(self.project(self.gather(tokens, space)), space)
            y = torch.cat([x, layout.to_map(y, space).to(x.dtype)], 1)
        return layout.like(y, x)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.back(self.gather(tokens, space), space)

    def gather(self, tokens: Tensor, space: Space) -> Tensor:
        """What both directions bring, `(b, directions inner, m)`, on the reduced map."""
        small, found = self.reduced(space), []
        for direction, part in self.parts.items():
            features = self.resized(part.reduce(tokens), space, small)
            found.append(self.attend(part.hidden(features), part.weight, features, small, direction))
        gathered = torch.cat(found, 1) if len(found) > 1 else found[0]
        return gathered if self.divisor == 1 else gathered / self.divisor

    def reduced(self, space: Space) -> Space:
        return tuple((size - 1) // self.shrink + 1 for size in space)

    def resized(self, tokens: Tensor, source: Space, target: Space) -> Tensor:
        """Bilinear, corners on corners; every s-th position where the factor divides."""
        if self.shrink == 1:
            return tokens
        return resize(layout.to_map(tokens, source), target, align_corners=True).flatten(2)

    def back(self, tokens: Tensor, space: Space) -> Tensor:
        """From the reduced map to the whole one."""
        return self.resized(tokens, self.reduced(space), space)

    def operator(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """`(b, n, n)` through reduction and back; the mean of the two directions."""
        self._check(x)
        with float32_island(x):
            tokens, space = layout.to_positions(widen(x))
            small, found = self.reduced(space), []
            for direction, part in self.parts.items():
                hidden = part.hidden(self.resized(part.reduce(tokens), space, small))
                logits = self.logits(hidden, part.weight.to(hidden.dtype), small, direction)
                found.append(logits.softmax(-1) if self.softmax else logits)
            weights = torch.stack(found).mean(0) / self.divisor
            back = resize_matrix(small, space, tokens, align_corners=True)
            back = back if rows is None else back[rows.to(back.device)]
            return back @ weights @ resize_matrix(space, small, tokens, align_corners=True)

    def cost(self, shape: tuple[int, ...]) -> Cost:
        space = tuple(shape[2:])
        small, directions = self.reduced(space), len(self.directions)
        around = directions * self.channels * self.inner * (math.prod(space) + math.prod(small))
        back = self.channels * resize_cost(small, space) if self.shrink > 1 else 0
        return Cost(
            shape[0] * (around + back + self.mixing_cost(space)),
            self.trainable(),
        )

    def mixing_cost(self, space: Space) -> int:
        small = self.reduced(space)
        down = self.inner * resize_cost(space, small) if self.shrink > 1 else 0
        hidden = math.prod(small) * self.inner**2
        return len(self.directions) * (down + hidden + self.pairs_cost(small))


@register(
    "psanet",
    family="attention",
    title=TITLE,
    paper="ECCV 2018",
    year=2018,
    row_sum=1.0,
    complexity="n^2",
    limits={"dimensions": "a mask of rows and columns: two dimensions"},
)
class PSANet(PSANetBase):
    """Weights predicted for every offset of an over-complete mask, so for a map of any size: `[x, gathered]`.

    Shape: `(b, channels, h, w) -> (b, 2 channels, h, w)`.

    Args:
        channels: of the input.
        inner: width of features and hidden ones (None: a quarter of the channels, as the paper's 512 of 2048).
        direction: "collect", "distribute" or "both".
        mask: odd height and width of the mask of offsets, or one number; 59 covers a reduced map of 30.
        shrink: factor of the reduced map.
        softmax: over the senders; without it the predicted numbers are the weights.
        divisor: of the weights (None: the number of offsets).
        norm: after every 1x1 but the last predicting one.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        direction: str = "both",
        mask: int | Sequence[int] = 59,
        shrink: int = 2,
        softmax: bool = True,
        divisor: float | None = 1.0,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.mask = pair("PSANet", "mask", mask)
        if not all(side % 2 for side in self.mask):
            raise ValueError(f"PSANet: mask must have odd sides, so that it has a middle, got {mask!r}")
        super().__init__(
            channels, inner=inner, direction=direction, outputs=math.prod(self.mask), shrink=shrink,
            softmax=softmax, divisor=divisor, norm=norm,
        )  # fmt: skip
        self.to(device=device, dtype=dtype)

    def attend(self, hidden: Tensor, weight: Tensor, features: Tensor, space: Space, direction: str) -> Tensor:
        return predicted_attention(
            hidden, weight.to(hidden.dtype).unflatten(0, self.mask), features, space,
            distribute=direction == "distribute", normalise=self.softmax,
        )  # fmt: skip

    def logits(self, hidden: Tensor, weight: Tensor, space: Space, direction: str) -> Tensor:
        return predicted_logits(
            hidden, weight.unflatten(0, self.mask), space, distribute=direction == "distribute"
        )

    def pairs_cost(self, space: Space) -> int:
        return predicted_cost(space, self.mask, self.inner, self.inner)


@register(
    "psanet-compact", family="attention", title=TITLE, paper="ECCV 2018", year=2018,
    fixed_size=True, row_sum=1.0, complexity="n^2",
    limits={"dimensions": "a mask of rows and columns: two dimensions"},
)  # fmt: skip
class PSANetCompact(PSANetBase):
    """Weights predicted for every position of a map of one size: `[x, gathered]`.

    Shape: `(b, channels, h, w) -> (b, 2 channels, h, w)`, h and w as built.

    Args:
        channels: of the input.
        size: height and width of the map, or one number.
        inner, direction, shrink, softmax, norm: as `psanet`.
        divisor: of the weights (None: the number of positions of the reduced map).
    """

    def __init__(
        self,
        channels: int,
        *,
        size: int | Sequence[int] = 60,
        inner: int | None = None,
        direction: str = "both",
        shrink: int = 2,
        softmax: bool = True,
        divisor: float | None = 1.0,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.size = pair("PSANetCompact", "size", size)
        require_positive("PSANetCompact", shrink=shrink)
        outputs = math.prod((side - 1) // shrink + 1 for side in self.size)
        super().__init__(
            channels, inner=inner, direction=direction, outputs=outputs, shrink=shrink, softmax=softmax,
            divisor=divisor, norm=norm,
        )  # fmt: skip
        self.to(device=device, dtype=dtype)

    def queries_keys(self, hidden: Tensor, weight: Tensor, direction: str) -> tuple[Tensor, Tensor]:
        """`(b, inner, m)` of receivers and of senders: one side is predicted from, the other is learned."""
        learned = weight.to(hidden.dtype).mT.expand_as(hidden)
        return (hidden, learned) if direction == "collect" else (learned, hidden)

    def attend(self, hidden: Tensor, weight: Tensor, features: Tensor, space: Space, direction: str) -> Tensor:
        queries, keys = self.queries_keys(hidden, weight, direction)
        if self.softmax:
            return attention(queries, keys, features)
        return dot_product(queries, keys, features) * features.shape[-1]

    def logits(self, hidden: Tensor, weight: Tensor, space: Space, direction: str) -> Tensor:
        queries, keys = self.queries_keys(hidden, weight, direction)
        return queries.mT @ keys

    def pairs_cost(self, space: Space) -> int:
        m = math.prod(space)
        if not self.softmax and linear_is_cheaper(m, m, self.inner, self.inner):
            return 2 * m * self.inner**2
        return 2 * m * m * self.inner

    def _check(self, x: Tensor) -> None:
        super()._check(x)
        if tuple(x.shape[2:]) != self.size:
            (h, w), (height, width) = self.size, x.shape[2:]
            raise ValueError(
                f"PSANetCompact was built for maps of {h} x {w}, got {height} x {width}; resize the map, build "
                f"with size=({height}, {width}), or take psanet, which runs on any size"
            )
