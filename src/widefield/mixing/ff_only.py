# SPDX-License-Identifier: Apache-2.0
"""Feed-forward only: a Vision Transformer with a two-layer map over the tokens where attention was.

    y = x + M_D(LN(x)),   z^T = y^T + M_N(LN_N(y^T))

Not to be confused with MLP-Mixer: here the channel map comes first, the second norm runs over the *tokens* of each
channel, the token map is four times as wide as there are tokens, and a class token takes part in it.

Paper   Do You Even Need Attention? A Stack of Feed-Forward Layers Does Surprisingly Well on ImageNet, 2021,
        arXiv:2105.02723, and its code.
Facts   cost 8 n d^2 + 8 n^2 d multiply-adds as published: quadratic in n. The number of tokens is fixed.
Differs the hidden width of the token map is an option; the code's ignored options (heads, biases) do not exist.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widefield.core.errors import require_positive
from widefield.mixing.layers import EPSILON, Block, FeedForward, Residual, layer_norm, replace_linear_
from widefield.mixing.registry import register_mixer
from widefield.mixing.resampling import FixedTokens


@torch.no_grad()
def resample_norm_(norm: nn.LayerNorm, to_new: Tensor) -> None:
    """Scale and shift of a norm over the tokens, interpolated."""
    for name in ("weight", "bias"):
        old = getattr(norm, name)
        setattr(norm, name, nn.Parameter((to_new @ old.double()).to(old.dtype)))
    norm.normalized_shape = (to_new.shape[0],)


class TokenFeedForward(FixedTokens):
    """`M_N(LN_N(x^T))^T`, norm and map along the tokens: `(b, tokens, d) -> (b, tokens, d)`, any d.

    Args:
        tokens: n, fixed; `resize` gives the map of another grid (up to the norm's statistics, which are then taken
            over the new tokens).
        hidden: width in between; None: four times the tokens, as published.
        dropout: behind the activation and at the end, in training.

    Raises:
        ValueError: at the call, another number of tokens.
    """

    def __init__(self, tokens: int, hidden: int | None = None, *, dropout: float = 0.0) -> None:
        super().__init__(tokens)
        require_positive("TokenFeedForward", hidden=hidden)
        self.norm = nn.LayerNorm(tokens, eps=EPSILON)
        self.map = FeedForward(tokens, 4 * tokens if hidden is None else hidden, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.map(self.norm(x.mT)).mT

    def multiply_adds(self, tokens: int, width: int) -> int:
        """Of one sample of so many tokens of that width."""
        return 2 * tokens * width * self.map.enter.out_features

    def resample_(self, to_new: Tensor, to_old: Tensor) -> None:
        resample_norm_(self.norm, to_new)
        replace_linear_(self.map.enter, columns=to_old)
        replace_linear_(self.map.leave, rows=to_new)


@register_mixer(
    "ff-only",
    title="Do You Even Need Attention? A Stack of Feed-Forward Layers Does Surprisingly Well on ImageNet",
    paper="arXiv:2105.02723", year=2021, fixed_size=True, prefix_tokens=1, positions="map",
)  # fmt: skip
class FeedForwardOnlyBlock(Block):
    """`y = x + M_D(LN(x))`, `z^T = y^T + M_N(LN_N(y^T))`: `(b, tokens, width) -> (b, tokens, width)`.

    Args:
        width: of a token.
        tokens: n, fixed, the class token included.
        hidden: of the channel map; None: four times the width.
        hidden_tokens: of the token map; None: four times the *tokens*, as published.
        dropout, drop_path: in training (the published command has a dropout of 0.1).
    """

    def __init__(
        self,
        width: int,
        tokens: int,
        *,
        hidden: int | None = None,
        hidden_tokens: int | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        channels = FeedForward(width, 4 * width if hidden is None else hidden, dropout=dropout)
        mixing = TokenFeedForward(tokens, hidden_tokens, dropout=dropout)
        super().__init__(
            channel=Residual(layer_norm(width), channels, width, drop_path=drop_path),
            token=Residual(nn.Identity(), mixing, width, drop_path=drop_path),
        )
