# SPDX-License-Identifier: Apache-2.0
"""MLP-Mixer: one two-layer map over the tokens, shared by all channels, then one over the channels.

    u = x + M_S(LN(x)^T)^T,   y = u + M_C(LN(u))

Paper   MLP-Mixer: An all-MLP Architecture for Vision, NeurIPS 2021, arXiv:2105.01601, equation 1.
Facts   cost 2 n d hidden_tokens + 2 n d hidden multiply-adds: linear in n, since the token map's hidden width is a
        multiple of d, not of n. The number of tokens is fixed. Both norms run over the channels.
Differs `resize` interpolates the token map; the paper, for whole factors, copies it along a block diagonal. GELU
        is exact unless asked otherwise; the authors' Flax has the tanh form.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.mixing.layers import (
    Block,
    FeedForward,
    Residual,
    layer_norm,
    over_tokens,
    replace_linear_,
)
from widefield.mixing.registry import register_mixer
from widefield.mixing.resampling import FixedTokens


class TokenMixing(FixedTokens):
    """`M_S(x^T)^T`, a two-layer map along the tokens: `(b, tokens, d) -> (b, tokens, d)`, any d.

    Args:
        tokens: n, fixed; `resize` gives the map of another grid.
        hidden: width in between; it does not depend on n.
        tanh_gelu: GELU as in Flax.
        dropout: behind the activation and at the end, in training.

    Raises:
        ValueError: at the call, another number of tokens.
    """

    def __init__(self, tokens: int, hidden: int, *, tanh_gelu: bool = False, dropout: float = 0.0) -> None:
        super().__init__(tokens)
        require_positive("TokenMixing", hidden=hidden)
        self.hidden, self.dropout = hidden, dropout
        self.map = FeedForward(tokens, hidden, tanh_gelu=tanh_gelu, scheme="lecun")

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        enter, leave = self.map.enter, self.map.leave
        hidden = self._drop(F.gelu(over_tokens(x, enter.weight, enter.bias), approximate=self.map.approximate))
        return self._drop(over_tokens(hidden, leave.weight, leave.bias))

    def multiply_adds(self, tokens: int, width: int) -> int:
        """Of one sample of so many tokens of that width."""
        return 2 * tokens * width * self.hidden

    def resample_(self, to_new: Tensor, to_old: Tensor) -> None:
        replace_linear_(self.map.enter, columns=to_old)
        replace_linear_(self.map.leave, rows=to_new)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


@register_mixer(
    "mlp-mixer", title="MLP-Mixer: An all-MLP Architecture for Vision", paper="arXiv:2105.01601", year=2021,
    fixed_size=True, prefix_tokens=0, positions="none", growing_drop_path=False, zero_head=True,
)  # fmt: skip
class MixerBlock(Block):
    """`u = x + M_S(LN(x)^T)^T`, `y = u + M_C(LN(u))`: `(b, tokens, width) -> (b, tokens, width)`.

    Args:
        width: of a token.
        tokens: n, fixed.
        hidden_tokens: of the token map; None: half the *width*, as published.
        hidden: of the channel map; None: four times the width.
        tanh_gelu: GELU as in Flax.
        dropout, drop_path: in training.
    """

    def __init__(
        self,
        width: int,
        tokens: int,
        *,
        hidden_tokens: int | None = None,
        hidden: int | None = None,
        tanh_gelu: bool = False,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        hidden_tokens = max(width // 2, 1) if hidden_tokens is None else hidden_tokens
        mixing = TokenMixing(tokens, hidden_tokens, tanh_gelu=tanh_gelu, dropout=dropout)
        forward = FeedForward(
            width, 4 * width if hidden is None else hidden, tanh_gelu=tanh_gelu, dropout=dropout, scheme="lecun"
        )
        super().__init__(
            token=Residual(layer_norm(width), mixing, width, drop_path=drop_path),
            channel=Residual(layer_norm(width), forward, width, drop_path=drop_path),
        )
