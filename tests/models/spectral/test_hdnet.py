# SPDX-License-Identifier: Apache-2.0
"""HDNet's two gates and its loss, written out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from widefield.imaging import dispersed_mask
from widefield.models.spectral.frequency_loss import frequency_domain_loss
from widefield.models.spectral.hdnet import EFF, HDNet, SDLAttention
from widefield.weights import load_reference


def test_attention_position_by_position() -> None:
    """The maps are projected first and pooled then, as in the paper; here it is the other way round."""
    torch.manual_seed(0)
    module = SDLAttention(6).double()
    x = torch.randn(1, 6, 3, 4, dtype=torch.float64)
    at = [x[0, :, i, j] for i in range(3) for j in range(4)]
    p = torch.cat([module.channel_query.weight @ v for v in at]).softmax(0)
    value = sum(w * (module.channel_value.weight @ v) for w, v in zip(p, at, strict=True))
    channels = (module.channel_up.weight @ value).sigmoid()
    query = sum(module.position_query.weight @ v for v in at) / 12
    positions = torch.stack([query @ (module.position_key.weight @ v) for v in at]).softmax(0).sigmoid()
    expected = torch.stack([v * channels + v * s for v, s in zip(at, positions, strict=True)], -1)
    torch.testing.assert_close(module(x).flatten(2)[0], expected)


def test_groups_of_the_fusion_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    module = EFF(8, 4).eval()
    x = torch.randn(2, 8, 5, 5)
    changed = x.clone()
    changed[:, 2:4] += 1
    moved = (module(changed) - module(x)).abs().amax((0, 2, 3)) > 0
    assert moved.tolist() == [False, False, True, True, False, False, False, False]


def test_fusion_keeps_the_sign_and_adds_one_share() -> None:
    """`y = x (1 + a)` with a summing to one over the positions, for all channels of a group alike."""
    module = EFF(8, 2).eval()
    x = torch.rand(2, 8, 4, 6) + 0.5
    share = module(x) / x - 1
    torch.testing.assert_close(share.sum((2, 3)), torch.ones(2, 8), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(share[:, 0], share[:, 3], rtol=1e-3, atol=1e-5)


def test_training_loss_is_that_of_both_domains() -> None:
    torch.manual_seed(0)
    network = HDNet(3, 1, features=8, blocks=(1, 0))
    phi = dispersed_mask(torch.rand(8, 8), 3, 1)
    y, truth = torch.rand(2, 8, 10), torch.rand(2, 3, 8, 8)
    network.eval()
    cube = network(y)
    expected = F.l1_loss(cube, truth) + 0.7 * frequency_domain_loss(cube, truth, weight=0.7)
    torch.testing.assert_close(network.training_loss(y, phi, truth, F.l1_loss), expected)


def test_a_map_of_other_options_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="10 channels do not divide into 4"):
        HDNet(features=10)
    with pytest.raises(ValueError, match="blocks"):
        HDNet(blocks=(1, -1))
    with pytest.raises(ValueError, match=r"body\.3\.body\.0"):
        load_reference(HDNet(features=8, blocks=(1, 1)), {}, source="mst")
