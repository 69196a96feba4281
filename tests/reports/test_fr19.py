# SPDX-License-Identifier: Apache-2.0
"""FR-19: snapshot imaging with another mask, size or shift."""

import pytest
import torch

from widefield.imaging import Snapshot, disperse, project_gap, psnr

MASKS = {
    "random": lambda h, w: (torch.rand(h, w) > 0.5).float(),
    "a dark column": lambda h, w: (torch.rand(h, w) > 0.5).float() * (torch.arange(w) != 5),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("h", "w", "step"), [(32, 32, 2), (24, 40, 2), (32, 32, 1)])
def test_fr19(mask, h, w, step):
    torch.manual_seed(0)
    operator = Snapshot.cassi(MASKS[mask](h, w), bands=4, step=step)
    assert operator.sensor == (h, w + 3 * step)
    x, y = torch.rand(1, 4, h, w), torch.rand(1, *operator.sensor)
    measured = operator.forward(x)
    assert measured.shape == (1, h, w + 3 * step)
    left, right = (measured * y).sum(), (x * operator.adjoint(y)).sum()
    torch.testing.assert_close(left, right, rtol=1e-5, atol=0)
    z = disperse(x, step)
    moved = project_gap(z, y, operator.phi, operator.energy)
    assert torch.isfinite(moved).all()
    dark = operator.phi == 0
    assert torch.equal(moved[:, dark], z[:, dark])
    torch.testing.assert_close(project_gap(z, measured, operator.phi, operator.energy), z)


def test_the_score_says_its_scale_and_clipping():
    assert "clip to [0, 1], round to 8 bits" in (psnr.__globals__["__doc__"])
    with pytest.raises(ValueError, match="Accepted: float, published, training_log"):
        psnr(torch.rand(1, 4, 4), torch.rand(1, 4, 4), protocol="default")
