# SPDX-License-Identifier: Apache-2.0
"""Attention by distance: weights exp(-|a_i - b_j|^2 / 2 h^2), as softmax attention on vectors one entry longer.

|a - b|^2 = |a|^2 - 2 a.b + |b|^2, and the softmax over j does not see |a|^2: [a, 1] . [b, -|b|^2 / 2] is what is
left. No n x m map of distances is written down that `attention` does not write.
"""

from __future__ import annotations

import torch
from torch import Tensor

from widefield.attention.sdpa import attention, attention_matrix


def gaussian_attention(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """`sum_j w_ij v_j / sum_j w_ij` with `w_ij = exp(-|a_i - b_j|^2 / 2)`.

    Args:
        a: `(batch, d, n)`, over the bandwidth.
        b: `(batch, d, m)`, over the bandwidth; may be `a` itself.
        v: `(batch, e, m)`.

    Returns:
        `(batch, e, n)`.
    """
    return attention(*queries_keys(a, b), v)


def gaussian_matrix(a: Tensor, b: Tensor, *, rows: Tensor | None = None) -> Tensor:
    """The weights themselves, each row summing to 1: `(batch, n, m)`, or of chosen queries only."""
    return attention_matrix(*queries_keys(a, b), rows=rows)


def queries_keys(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors one longer, `(batch, d + 1, n)` and `(.., m)`, with products `(|a_i|^2 - |a_i - b_j|^2) / 2`.

    Both are taken from the mean of b: distances do not see a common shift, rounding does, where squares cancel.
    """
    centre = b.mean(-1, keepdim=True).detach()
    q = torch.cat([a - centre, torch.ones_like(a[:, :1])], 1)
    # What the square keeps for backward is then what the products keep as well.
    b = q[:, :-1] if a is b else b - centre
    return q, torch.cat([b, -0.5 * b.square().sum(1, keepdim=True)], 1)
