# SPDX-License-Identifier: Apache-2.0
"""What the networks of tokens share: the two-layer map over channels or tokens, the residual branch, the block.

Tokens are `(b, n, d)`: n tokens of width d. A *mixer* is any map of them to their own shape; a *block* is a chain
of residual branches, in the order in which its paper has them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.mixing.resampling import FixedTokens

EPSILON = 1e-6  # of the layer norms of every paper here but one; torch's own default is 1e-5

Space = tuple[int, ...]


def over_tokens(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear map along the token axis: `(b, n, d)` to `(b, m, d)`, weight `(m, n)`, bias `(m,)`."""
    # One product a sample writes (b, m, d) directly; a plain linear map would transpose twice.
    return torch.baddbmm(bias.to(x.dtype)[:, None], weight.to(x.dtype).expand(x.shape[0], -1, -1), x)


def drop_samples(y: Tensor, rate: float) -> Tensor:
    """Stochastic depth (arXiv:1603.09382): whole samples become zero at `rate`, the others are scaled up."""
    keep = torch.empty(y.shape[0], *[1] * (y.dim() - 1), dtype=y.dtype, device=y.device).bernoulli_(1 - rate)
    return y * keep / (1 - rate)


def initialise_(linear: nn.Linear, scheme: str) -> None:
    """Zero bias, and weights "normal" (truncated, std 0.02: ViT, DeiT and their kin) or "lecun" (variance
    1 / fan-in, the default of Flax: MLP-Mixer)."""
    if scheme == "normal":
        nn.init.trunc_normal_(linear.weight, std=0.02)
    else:
        nn.init.trunc_normal_(linear.weight, std=linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class FeedForward(nn.Module):
    """`W_2 GELU(W_1 x + b_1) + b_2` on the channels of each token: `(b, n, width) -> (b, n, width)`.

    Args:
        width: of a token.
        hidden: width in between.
        tanh_gelu: the tanh approximation of GELU, as Flax has it by default; exact otherwise. They differ by some
            1e-3, so weights that were trained with one do not give the last digits with the other.
        dropout: behind the activation and at the end, in training.
        scheme: of the initialisation, see `initialise_`.
    """

    def __init__(
        self, width: int, hidden: int, *, tanh_gelu: bool = False, dropout: float = 0.0, scheme: str = "normal"
    ) -> None:
        super().__init__()
        require_positive(type(self).__name__, width=width, hidden=hidden)
        self.approximate = "tanh" if tanh_gelu else "none"
        self.dropout = dropout
        self.enter, self.leave = nn.Linear(width, hidden), nn.Linear(hidden, width)
        initialise_(self.enter, scheme)
        initialise_(self.leave, scheme)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self._drop(F.gelu(self.enter(x), approximate=self.approximate))
        return self._drop(self.leave(hidden))

    def multiply_adds(self, tokens: int, width: int) -> int:
        """Of one sample of so many tokens of that width."""
        return 2 * tokens * width * self.enter.out_features

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


class Residual(nn.Module):
    """`x + gamma * f(norm(x))`: one branch of a block.

    Args:
        norm: in front of f.
        branch: f, a map of tokens `(b, n, d)` to their own shape; it also gets the space where it has a true
            attribute `spatial`.
        width: d.
        scale: start of gamma, one number a channel (LayerScale, arXiv:2103.17239); None: no gamma.
        drop_path: rate of stochastic depth, in training.
    """

    def __init__(
        self,
        norm: nn.Module,
        branch: nn.Module,
        width: int,
        *,
        scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= drop_path < 1:
            raise ValueError(f"drop_path must be at least 0 and below 1, got {drop_path}")
        self.norm, self.branch, self.width, self.drop_path = norm, branch, width, drop_path
        self.gamma = None if scale is None else nn.Parameter(torch.full((width,), float(scale)))

    def forward(self, x: Tensor, space: Space | None = None) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != self.width:
            raise ValueError(f"this block takes tokens (b, n, {self.width}), got {tuple(x.shape)}")
        y = self.norm(x)
        y = self.branch(y, space) if getattr(self.branch, "spatial", False) else self.branch(y)
        if self.gamma is not None:
            y = y * self.gamma
        if self.training and self.drop_path:
            y = drop_samples(y, self.drop_path)
        return x + y


class Block(nn.Sequential):
    """Residual branches in a row, `(b, n, d) -> (b, n, d)`.

    Args:
        branches: by name ("token", "channel"), in their order.
    """

    def __init__(self, **branches: Residual) -> None:
        super().__init__(OrderedDict(branches))

    def forward(self, input: Tensor, space: Space | None = None) -> Tensor:
        """Args: tokens `(b, n, d)`, and for spatial branches the height and width of the patches among them."""
        for branch in self:
            input = branch(input, space)
        return input

    def multiply_adds(self, tokens: int) -> int:
        """Of one sample of so many tokens.

        Raises:
            AttributeError: a branch does not say what it costs.
        """
        return sum(part.branch.multiply_adds(tokens, part.width) for part in self.branches())

    def branches(self) -> list[Any]:
        """The residual branches, in their order."""
        return list(self)


def layer_norm(width: int) -> nn.LayerNorm:
    """Over the channels of a token."""
    return nn.LayerNorm(width, eps=EPSILON)


class TokenLinear(FixedTokens):
    """One linear map along the token axis, the same for every channel: `(b, tokens, d) -> (b, tokens, d)`.

    Args:
        tokens: n, fixed; `resize` gives the map of another grid.

    Raises:
        ValueError: at the call, another number of tokens.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.linear = nn.Linear(tokens, tokens)
        initialise_(self.linear, "normal")

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return over_tokens(x, self.linear.weight, self.linear.bias)

    def multiply_adds(self, tokens: int, width: int) -> int:
        """Of one sample of so many tokens of that width."""
        return tokens * tokens * width

    def resample_(self, to_new: Tensor, to_old: Tensor) -> None:
        replace_linear_(self.linear, rows=to_new, columns=to_old)


@torch.no_grad()
def replace_linear_(linear: nn.Linear, *, rows: Tensor | None = None, columns: Tensor | None = None) -> None:
    """`W <- rows W columns`, `b <- rows b`."""
    weight, bias = linear.weight.double(), linear.bias
    if columns is not None:
        weight = weight @ columns
    if rows is not None:
        weight = rows @ weight
        if bias is not None:
            linear.bias = nn.Parameter((rows @ bias.double()).to(bias.dtype))
    linear.weight = nn.Parameter(weight.to(linear.weight.dtype))
    linear.out_features, linear.in_features = linear.weight.shape
