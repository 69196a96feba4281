# SPDX-License-Identifier: Apache-2.0
"""Maps over tokens belong to one number of tokens; this is how they are carried over to another grid.

A resized mixer is `R f(S x)`: its tokens are interpolated to the old grid (S), mapped, and interpolated back (R).
R and S are multiplied into the weights. Prefix tokens (class, distillation) stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import require_positive


def interpolation(source: Sequence[int], target: Sequence[int], prefix: int = 0) -> Tensor:
    """`(prefix + n', prefix + n)` in float64: bilinear interpolation from one grid to another.

    Corners are not aligned; towards a coarser grid the triangle is widened (antialiasing), so every row sums to 1
    and every token of the finer grid is heard.
    """
    n = source[0] * source[1]
    each = torch.eye(n, dtype=torch.float64).reshape(n, 1, *source)
    patches = F.interpolate(each, size=tuple(target), mode="bilinear", align_corners=False, antialias=True)
    return torch.block_diag(torch.eye(prefix, dtype=torch.float64), patches.flatten(1).T)


class FixedTokens(nn.Module):
    """Base of mixers whose weights have one row or column a token.

    Args:
        tokens: n, with prefix tokens.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        require_positive(type(self).__name__, tokens=tokens)
        self.tokens = tokens

    def check(self, x: Tensor) -> None:
        """Raises a ValueError for anything but `(b, tokens, d)`."""
        if x.dim() != 3 or x.shape[1] != self.tokens:
            raise ValueError(
                f"{type(self).__name__} has weights for {self.tokens} tokens, (b, {self.tokens}, d), and got "
                f"{tuple(x.shape)}; carry it over to another grid with resize(old, new)"
            )

    def resize(self, old: Sequence[int], new: Sequence[int], *, prefix: int = 0) -> Self:
        """A copy for another grid of patches, its weights interpolated (bilinear, antialiased).

        Args:
            old, new: (height, width) of the grids. The old one is asked for, since a number of tokens does not
                tell.
            prefix: tokens in front of the patches.

        Raises:
            ValueError: the old grid has another number of tokens than this mixer.
        """
        if prefix + old[0] * old[1] != self.tokens:
            raise ValueError(
                f"{type(self).__name__} has {self.tokens} tokens; {prefix} in front of a grid of {old[0]} x "
                f"{old[1]} make {prefix + old[0] * old[1]}"
            )
        copy = deepcopy(self)
        device = next(self.parameters()).device
        there, back = (interpolation(*pair, prefix).to(device) for pair in ((old, new), (new, old)))
        copy.resample_(there, back)
        copy.tokens = prefix + new[0] * new[1]
        return copy

    def resample_(self, to_new: Tensor, to_old: Tensor) -> None:
        """Multiplies R `(n', n)` and S `(n, n')` into the weights, in place."""
        raise NotImplementedError
