# SPDX-License-Identifier: Apache-2.0
"""Attention without maps loses the rank of its tokens with depth (Dong et al., arXiv:2103.03404); maps keep it."""

from __future__ import annotations

import pytest
import torch

from widefield.measure.spectrum import effective_rank
from widefield.models.tokens import TokenClassifier


def ranks(mixer: str, seed: int) -> tuple[float, float]:
    """Mean effective rank of the tokens (64 x 64) after the first and after the last of twelve blocks."""
    torch.manual_seed(seed)
    model = TokenClassifier(
        10, image_size=32, patch=4, width=64, mixer=mixer, positions="none", prefix_tokens=0
    ).eval()  # fmt: skip
    for parameter in model.blocks.parameters():
        # Variance 1 / fan-in, so that a branch is as large as what it is added to; trained weights are not 0.02.
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    with torch.no_grad():
        _, maps = model.forward_intermediates(torch.randn(4, 3, 32, 32))
    first, last = (effective_rank(torch.linalg.svdvals(m.flatten(2).double())).mean() for m in (maps[0], maps[-1]))
    return first.item(), last.item()


@pytest.mark.parametrize("seed", range(3))
def test_attention_only_loses_rank_with_depth_and_feed_forward_only_does_not(seed):
    for mixer in ("attention-only", "attention-only-plain"):
        first, last = ranks(mixer, seed)
        assert last < 0.75 * first
    for mixer in ("ff-only", "mlp-mixer"):
        first, last = ranks(mixer, seed)
        assert last > 0.9 * first
