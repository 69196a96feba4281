# SPDX-License-Identifier: Apache-2.0
"""gMLP: a two-layer map over the channels with a gate in the middle that looks along the tokens.

    [u, v] = GELU(U LN(x)),   y = x + V (u * (W LN(v) + b))

Paper   Pay Attention to MLPs, NeurIPS 2021, arXiv:2105.08050, equations 1 to 4.
Facts   cost n d hidden + n^2 hidden / 2 + n d hidden / 2 multiply-adds. The number of tokens is fixed. The gate
        starts as an identity: W near zero (std 1e-6), b one.
Differs nothing known. The norm inside the gate has torch's epsilon, 1e-5, that of the block 1e-6, as in timm.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive
from widefield.mixing.layers import Block, Residual, TokenLinear, initialise_, layer_norm
from widefield.mixing.registry import register_mixer


def gate(x: Tensor, norm: nn.Module, along: nn.Module) -> Tensor:
    """`u * along(norm(v))` of the two halves of the channels: `(b, n, 2 e) -> (b, n, e)`."""
    u, v = x.chunk(2, -1)
    return u * along(norm(v))


class SpatialGating(nn.Module):
    """`V (u * (W LN(v) + b))`, `[u, v] = GELU(U x)`: `(b, tokens, width) -> (b, tokens, width)`.

    Args:
        width: of a token.
        tokens: n, fixed.
        hidden: of U; even, since one half gates the other; None: six times the width, as published.
        tanh_gelu: GELU as in Flax.
        dropout: behind the activation and at the end, in training.

    Raises:
        ValueError: an odd hidden width; at the call, another number of tokens.
    """

    def __init__(
        self,
        width: int,
        tokens: int,
        hidden: int | None = None,
        *,
        tanh_gelu: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = 6 * width if hidden is None else hidden
        require_positive("SpatialGating", width=width, tokens=tokens, hidden=hidden)
        if hidden % 2:
            raise ValueError(f"SpatialGating: hidden must be even, one half gates the other; got {hidden}")
        self.approximate, self.dropout = "tanh" if tanh_gelu else "none", dropout
        self.enter, self.leave = nn.Linear(width, hidden), nn.Linear(hidden // 2, width)
        self.norm = nn.LayerNorm(hidden // 2)
        self.along = TokenLinear(tokens)
        initialise_(self.enter, "lecun")
        initialise_(self.leave, "lecun")
        nn.init.normal_(self.along.linear.weight, std=1e-6)
        nn.init.ones_(self.along.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self._drop(F.gelu(self.enter(x), approximate=self.approximate))
        return self._drop(self.leave(gate(hidden, self.norm, self.along)))

    def multiply_adds(self, tokens: int, width: int) -> int:
        """Of one sample of so many tokens of that width."""
        half = self.leave.in_features
        return 3 * tokens * width * half + self.along.multiply_adds(tokens, half)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


@register_mixer(
    "gmlp", title="Pay Attention to MLPs", paper="arXiv:2105.08050", year=2021, fixed_size=True, prefix_tokens=0,
    positions="none", growing_drop_path=False, zero_head=True,
)  # fmt: skip
class GatedBlock(Block):
    """`y = x + V (u * (W LN(v) + b))`, `[u, v] = GELU(U LN(x))`: `(b, tokens, width) -> (b, tokens, width)`.

    Args:
        width: of a token.
        tokens: n, fixed.
        hidden: of U; None: six times the width.
        tanh_gelu: GELU as in Flax.
        dropout, drop_path: in training.
    """

    def __init__(
        self,
        width: int,
        tokens: int,
        *,
        hidden: int | None = None,
        tanh_gelu: bool = False,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        gating = SpatialGating(width, tokens, hidden, tanh_gelu=tanh_gelu, dropout=dropout)
        super().__init__(token=Residual(layer_norm(width), gating, width, drop_path=drop_path))
