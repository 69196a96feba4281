# SPDX-License-Identifier: Apache-2.0
"""The block of the Vision Transformer and of DeiT: multi-head self-attention, then a two-layer map.

    y = x + MSA(LN(x)),   z = y + M(LN(y)),   MSA(x) = W_o concat_i softmax(Q_i K_i^T / sqrt d) V_i

Not to be confused with `widefield.attention`: this is the sequence form, on tokens.

Paper   An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale, ICLR 2021, arXiv:2010.11929,
        equations 2, 3 and 5 to 8; Training data-efficient image transformers & distillation through attention,
        ICML 2021, arXiv:2012.12877.
Facts   cost 4 n d^2 + 2 n^2 d + 2 n d hidden multiply-adds; any number of tokens; a permutation of the tokens
        permutes the output.
Differs weights start as DeiT's (truncated normal, std 0.02), not as the Vision Transformer's own Xavier uniform.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.mixing.layers import Block, FeedForward, Residual, initialise_, layer_norm
from widefield.mixing.registry import register_mixer


def split_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """`(b, n, 3 d)`, split as (3, heads, d / heads), to three of `(b, heads, n, d / heads)`."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


class SelfAttention(nn.Module):
    """`W_o concat_i softmax(Q_i K_i^T / sqrt d) V_i`: `(b, n, width) -> (b, n, width)`, any n.

    Args:
        width: of a token.
        heads: that divide the width; None: one for every 64 channels.
        qkv_bias: whether queries, keys and values have a bias.
        dropout: at the end, in training.

    Raises:
        ValueError: heads that do not divide the width.
    """

    def __init__(
        self, width: int, heads: int | None = None, *, qkv_bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        require_positive("SelfAttention", width=width, heads=heads)
        self.width, self.heads, self.dropout = width, heads or max(width // 64, 1), dropout
        if width % self.heads:
            raise ValueError(
                f"SelfAttention: {self.heads} heads do not divide the width {width}; choose a divisor"
            )
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.project = nn.Linear(width, width)
        initialise_(self.qkv, "normal")
        initialise_(self.project, "normal")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.heads)
        y = F.scaled_dot_product_attention(q, k, v)  # (b, heads, n, d)
        y = self.project(y.transpose(1, 2).flatten(2))
        return F.dropout(y, self.dropout) if self.training and self.dropout else y

    def operator(self, x: Tensor) -> Tensor:
        """The attention weights, `(b, heads, n, n)`: row i is what token i averages the others with."""
        q, k, _ = split_heads(self.qkv(x), self.heads)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)

    def multiply_adds(self, tokens: int, width: int) -> int:
        """Of one sample of so many tokens of that width."""
        return 4 * tokens * width**2 + 2 * tokens**2 * width


@register_mixer(
    "attention", title="An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
    paper="arXiv:2010.11929", year=2021, fixed_size=False, prefix_tokens=1, positions="table",
)  # fmt: skip
class AttentionBlock(Block):
    """`y = x + MSA(LN(x))`, `z = y + M(LN(y))`: `(b, n, width) -> (b, n, width)`, any n.

    Args:
        width: of a token.
        heads, qkv_bias: of the attention.
        hidden: of the two-layer map; None: four times the width.
        tanh_gelu: GELU as in Flax, for weights that come from there.
        scale: start of LayerScale on both branches; None: none.
        dropout, drop_path: in training.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        hidden: int | None = None,
        qkv_bias: bool = True,
        tanh_gelu: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        attention = SelfAttention(width, heads, qkv_bias=qkv_bias, dropout=dropout)
        forward = FeedForward(width, 4 * width if hidden is None else hidden, tanh_gelu=tanh_gelu, dropout=dropout)
        super().__init__(
            token=Residual(layer_norm(width), attention, width, scale=scale, drop_path=drop_path),
            channel=Residual(layer_norm(width), forward, width, scale=scale, drop_path=drop_path),
        )
