# SPDX-License-Identifier: Apache-2.0
"""Attention only: a Vision Transformer with a second attention where the two-layer map was.

    y = x + MSA(LN(x)),   z^T = y^T + MSA_N(LN_N(y^T))        over the features: "attention-only"
    y = x + MSA(LN(x)),   z   = y   + MSA(LN(y))              over the tokens:   "attention-only-plain"

Paper   Do You Even Need Attention? A Stack of Feed-Forward Layers Does Surprisingly Well on ImageNet, 2021,
        arXiv:2105.02723, its ablation; no code was published. The text ("over the feature dimension") and the
        printed 4.0 million parameters speak for the first reading.
Facts   over the features: cost of that half 4 n^2 d + 2 n d^2 multiply-adds, the number of tokens is fixed. Over
        the tokens: any number of them.
Differs 197 tokens, a prime, allow one head over the features only; here the number of heads is an option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from widefield.mixing.attention import SelfAttention
from widefield.mixing.ff_only import resample_norm_
from widefield.mixing.layers import EPSILON, Block, Residual, layer_norm, replace_linear_
from widefield.mixing.registry import register_mixer
from widefield.mixing.resampling import FixedTokens

TITLE = "Do You Even Need Attention? A Stack of Feed-Forward Layers Does Surprisingly Well on ImageNet"


class FeatureAttention(FixedTokens):
    """`MSA_N(LN_N(x^T))^T`, the features attend to each other: `(b, tokens, d) -> (b, tokens, d)`, any d.

    Args:
        tokens: n, fixed; the width of what attends.
        heads: that divide the tokens.
        qkv_bias: whether queries, keys and values have a bias.
        dropout: at the end, in training.

    Raises:
        ValueError: heads that do not divide the tokens; at the call, another number of tokens.
    """

    def __init__(self, tokens: int, *, heads: int = 1, qkv_bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__(tokens)
        self.norm = nn.LayerNorm(tokens, eps=EPSILON)
        self.attention = SelfAttention(tokens, heads, qkv_bias=qkv_bias, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.attention(self.norm(x.mT)).mT  # features are the sequence: (b, d, n)

    def multiply_adds(self, tokens: int, width: int) -> int:
        """Of one sample of so many tokens of that width."""
        return self.attention.multiply_adds(width, tokens)

    def resize(self, old: Sequence[int], new: Sequence[int], *, prefix: int = 0) -> Self:
        """As `FixedTokens.resize`; the queries are scaled, so that the logits keep their size.

        Raises:
            ValueError: several heads, each of which owns some of the old tokens.
        """
        if self.attention.heads > 1:
            raise ValueError(
                f"FeatureAttention with {self.attention.heads} heads cannot be resized: each head owns some "
                "of the tokens, which another grid does not have; build it with heads=1"
            )
        return super().resize(old, new, prefix=prefix)

    @torch.no_grad()
    def resample_(self, to_new: Tensor, to_old: Tensor) -> None:
        resample_norm_(self.norm, to_new)
        # A scalar product over n' tokens is n'/n times as large, its divisor sqrt(n'/n): sqrt(n/n') is left over.
        n, wide = self.tokens, to_new.shape[0]
        scales = ((n / wide) ** 0.5, 1.0, 1.0)
        rows = torch.block_diag(*(scale * to_new for scale in scales))
        replace_linear_(self.attention.qkv, rows=rows, columns=to_old)
        replace_linear_(self.attention.project, rows=to_new, columns=to_old)
        self.attention.width = wide


@register_mixer(
    "attention-only", title=TITLE, paper="arXiv:2105.02723", year=2021, fixed_size=True, prefix_tokens=1,
    positions="table",
)  # fmt: skip
class AttentionOnlyBlock(Block):
    """`y = x + MSA(LN(x))`, `z^T = y^T + MSA_N(LN_N(y^T))`: `(b, tokens, width) -> (b, tokens, width)`.

    Args:
        width: of a token.
        tokens: n, fixed, the class token included.
        heads: over the tokens; None: one for every 64 channels.
        feature_heads: over the features; they divide the tokens.
        qkv_bias: of both attentions.
        dropout, drop_path: in training.
    """

    def __init__(
        self,
        width: int,
        tokens: int,
        *,
        heads: int | None = None,
        feature_heads: int = 1,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        attention = SelfAttention(width, heads, qkv_bias=qkv_bias, dropout=dropout)
        features = FeatureAttention(tokens, heads=feature_heads, qkv_bias=qkv_bias, dropout=dropout)
        super().__init__(
            token=Residual(layer_norm(width), attention, width, drop_path=drop_path),
            channel=Residual(nn.Identity(), features, width, drop_path=drop_path),
        )


@register_mixer(
    "attention-only-plain", title=TITLE, paper="arXiv:2105.02723", year=2021, fixed_size=False, prefix_tokens=1,
    positions="table",
)  # fmt: skip
class AttentionOnlyPlainBlock(Block):
    """`y = x + MSA(LN(x))`, `z = y + MSA(LN(y))`: `(b, n, width) -> (b, n, width)`, any n.

    Args:
        width: of a token.
        heads: of both; None: one for every 64 channels.
        qkv_bias: of both.
        dropout, drop_path: in training.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        def branch() -> Residual:
            attention = SelfAttention(width, heads, qkv_bias=qkv_bias, dropout=dropout)
            return Residual(layer_norm(width), attention, width, drop_path=drop_path)

        super().__init__(token=branch(), second=branch())
