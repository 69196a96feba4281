# SPDX-License-Identifier: Apache-2.0
"""BiSRNet, DGSMP and BIRNAT against their formulas written out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from widefield.imaging import Snapshot
from widefield.models.spectral import create_network
from widefield.models.spectral.birnat import BIRNAT, SelfAttention
from widefield.models.spectral.bisrnet import BinaryConv, Narrowed, Widened, straight_through
from widefield.models.spectral.dgsmp import filtered


def test_straight_through_is_exact_forward():
    hard, soft = torch.randn(100).sign(), torch.randn(100, requires_grad=True)
    y = straight_through(hard, soft.tanh())
    assert torch.equal(y, hard)
    y.sum().backward()
    torch.testing.assert_close(soft.grad, 1 - soft.detach().tanh().square())


def test_binary_unit():
    torch.manual_seed(0)
    unit = BinaryConv(3, 3).double()
    for parameter in unit.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    a, w, p = unit.affine, unit.conv.weight, unit.activation
    z = (
        F.conv2d((a.scale * x + a.shift).sign(), w.sign(), padding=1) * w.abs().mean((1, 2, 3))[:, None, None]
        + p.before
    )
    expected = torch.where(z > 0, z, p.prelu.weight[:, None, None] * z) + p.after + x
    torch.testing.assert_close(unit(x), expected)


def test_binary_gradients_are_those_of_tanh_and_clamp():
    unit = BinaryConv(1, 1).double()
    torch.nn.init.constant_(unit.conv.weight, 1.5)
    x = torch.tensor([[[[0.3]]]], dtype=torch.float64, requires_grad=True)
    unit(x).sum().backward()
    # scale 1.5 times the slope of tanh at 0.3, and the identity
    torch.testing.assert_close(x.grad.item(), 1.5 * (1 - torch.tensor(0.3).double().tanh().item() ** 2) + 1)
    assert unit.conv.weight.grad.item() == 0  # beyond 1 the clamp is flat


def test_widths_change_by_pairs_of_units():
    x = torch.randn(2, 4, 6, 8)
    wide, narrow = Widened(4, downsample=True), Narrowed(2, 3, upsample=True)
    torch.testing.assert_close(wide(x)[:, 4:], wide.second(F.avg_pool2d(x, 2)))
    doubled = F.interpolate(x, scale_factor=2, mode="bilinear")
    expected = (narrow.first(doubled[:, :2]) + narrow.second(doubled[:, 2:])) / 2
    torch.testing.assert_close(narrow(x), expected)


@pytest.mark.parametrize(("dim", "mode"), [(1, "constant"), (2, "replicate"), (3, "replicate")])
def test_local_filters_written_out(dim, mode):
    x, taps = torch.randn(2, 3, 4, 5).double(), torch.randn(2, 7, 3, 4, 5).double()
    expected = torch.zeros_like(x)
    for k in range(7):
        for place in range(x.shape[dim]):
            source = place + k - 3
            if mode == "constant" and not 0 <= source < x.shape[dim]:
                continue
            source = min(max(source, 0), x.shape[dim] - 1)
            expected.select(dim, place).add_(taps[:, k].select(dim, place) * x.select(dim, source))
    torch.testing.assert_close(filtered(x, taps, dim, mode=mode), expected)


def test_dgsmp_step_written_out():
    torch.manual_seed(0)
    network = create_network("dgsmp", bands=3, stages=1, widths=(4, 6, 8)).double().eval()
    y = torch.rand(1, 16, 20, dtype=torch.float64)
    with torch.no_grad():
        scaled = 2 / 3 * y
        x = torch.stack([scaled[:, :, 2 * c : 2 * c + 16] for c in range(3)], 1)
        coded = network.forward_operator(x)
        measured = torch.zeros(1, 16, 20, dtype=torch.float64)
        for c in range(3):
            measured[:, :, 2 * c : 2 * c + 16] += coded[:, c]
        misfit = measured - scaled
        back = network.transpose(torch.stack([misfit[:, :, 2 * c : 2 * c + 16] for c in range(3)], 1))
        w, taps = network.prior(network.connections[0](network.look(x)))
        expected = x - 2 * network.lengths[0] * (back + w * (x - network.means(x, taps)))
        torch.testing.assert_close(network(y), expected)
        for tap in taps:
            torch.testing.assert_close(tap.norm(dim=1), torch.ones_like(tap[:, 0]))


def test_self_attention_written_out():
    module = SelfAttention(16).double()
    torch.nn.init.constant_(module.gate, 0.7)
    x = torch.randn(2, 16, 3, 5, dtype=torch.float64)
    f, g, h = (layer(x).flatten(2) for layer in (module.key, module.query, module.value))
    beta = (f.mT @ g).softmax(1)  # over the keys
    expected = x + 0.7 * module.project((h @ beta).unflatten(2, (3, 5)))
    torch.testing.assert_close(module(x), expected)


NARROW = {
    "first": {"embed": 3, "middle": 4, "deep": 5, "leave": 2},
    "recurrent": {"state": 3, "look": 2, "wide": 5},
}


def test_residuals_of_the_recurrence_written_out():
    """What each cell is given, from sums over all bands instead of running ones."""
    torch.manual_seed(0)
    network = BIRNAT(4, 1, **NARROW).double().eval()
    operator = Snapshot.cassi(torch.rand(6, 8, dtype=torch.float64), 4, 1)
    y, phi = operator.forward(torch.rand(1, 4, 6, 8, dtype=torch.float64)), operator.phi[None]
    given = {"ahead": [], "back": []}
    for name in given:
        getattr(network, name).look_residual.register_forward_pre_hook(
            lambda _, inputs, name=name: given[name].append(inputs[0])
        )
    with torch.no_grad():
        total = phi.sum(1)
        normed = y / torch.where(total == 0, 1, total)
        first = network.first_band(torch.cat([normed[:, None], normed[:, None] * phi], 1))
        bands, state = network.pass_ahead(first, y, normed, phi)
        cube = network.pass_back(bands, state, y, normed, phi)
    ahead = torch.cat(bands, 1)
    for i in range(3):
        known = sum(phi[:, b] * ahead[:, b] for b in range(i + 1))
        unknown = sum((phi[:, b] * normed for b in range(i + 2, 4)), torch.zeros_like(y))
        torch.testing.assert_close(given["ahead"][i][:, 0], y - known - unknown)
        done = [3 - b for b in range(i + 1)]
        left = [3 - b for b in range(i + 2, 4)]
        known = sum(phi[:, b] * cube[:, b] for b in done)
        unknown = sum((phi[:, b] * ahead[:, b] for b in left), torch.zeros_like(y))
        torch.testing.assert_close(given["back"][i][:, 0], y - known - unknown)
    torch.testing.assert_close(cube[:, -1:], bands[-1])


def test_pixels_that_no_band_reaches():
    network = BIRNAT(3, 2, **NARROW).eval()
    phi = torch.rand(3, 6, 12)
    phi[:, 2, 3] = 0
    with torch.no_grad():
        assert torch.isfinite(network(torch.rand(1, 6, 12), phi)).all()


def test_attention_of_the_first_band_is_an_option():
    network = BIRNAT(3, 2, attend=True, **NARROW)
    network(torch.rand(1, 6, 12), torch.rand(3, 6, 12)).sum().backward()
    assert network.first_band.attention.gate.grad is not None
    assert not any(p.requires_grad for p in BIRNAT(3, 2, **NARROW).first_band.attention.parameters())


def test_bad_options():
    with pytest.raises(ValueError, match="recurrent takes widths of at least 1 for state"):
        BIRNAT(3, 2, recurrent={"states": 3})
    with pytest.raises(ValueError, match="first takes"):
        BIRNAT(3, 2, first={"deep": 0})
    with pytest.raises(ValueError, match="widths takes three"):
        create_network("dgsmp", widths=(1, 2))
    with pytest.raises(ValueError, match="stages"):
        create_network("bisrnet", stages=0)
