# SPDX-License-Identifier: Apache-2.0
"""DAUHST and its attention against plain loops, torch's own interpolation, and the published figures."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.imaging import dispersed_mask
from widefield.measure import count
from widefield.models.spectral.dauhst import DAUHST, DegradationEstimator
from widefield.models.spectral.half_shuffle import HalfShuffleAttention, HalfShuffleTransformer, table_at
from widefield.weights import load_reference, reference_names


def loops(module: HalfShuffleAttention, x: Tensor) -> Tensor:
    """One query at a time: a local head sees its window, a shuffled head the same place of every window."""
    (rows, columns), (h, w), d = module.window, x.shape[2:], module.head_width
    q = torch.einsum("oc,bchw->bohw", module.query.weight, x)
    k, v = torch.einsum("oc,bchw->bohw", module.key_value.weight, x).chunk(2, 1)
    places = [(i, j) for i in range(rows) for j in range(columns)]
    corners = [(i, j) for i in range(0, h, rows) for j in range(0, w, columns)]
    y = torch.zeros_like(q)
    for sample in range(x.shape[0]):
        for head in range(module.heads):
            band = slice(head * d, head * d + d)
            local = head < module.local_heads
            for a, corner in enumerate(corners):
                for p, place in enumerate(places):
                    here = (corner[0] + place[0], corner[1] + place[1])
                    if local:
                        assert module.local is not None
                        seen = [(corner[0] + i, corner[1] + j) for i, j in places]
                        bias = module.local[head, p]
                    else:
                        assert module.shuffled is not None
                        seen = [(i + place[0], j + place[1]) for i, j in corners]
                        bias = module.shuffled[head - module.local_heads, a]
                    keys = torch.stack([k[sample, band, i, j] for i, j in seen])
                    values = torch.stack([v[sample, band, i, j] for i, j in seen])
                    logits = keys @ q[sample, band, here[0], here[1]] / math.sqrt(d) + bias
                    y[sample, band, here[0], here[1]] = logits.softmax(0) @ values
    assert module.project.bias is not None
    return torch.einsum("oc,bchw->bohw", module.project.weight, y) + module.project.bias[:, None, None]


@pytest.mark.parametrize(
    ("heads", "shuffled", "window", "head_width"),
    [(1, None, (2, 2), 4), (2, None, (2, 3), 3), (4, None, (2, 2), 2), (3, None, (1, 2), 2), (2, 0, (2, 2), 3),
     (2, 2, (2, 2), 3)],
)  # fmt: skip
def test_attention_is_its_loops(
    heads: int, shuffled: int | None, window: tuple[int, int], head_width: int
) -> None:
    torch.manual_seed(0)
    module = HalfShuffleAttention(
        5, heads, grid=(2, 3), window=window, shuffled=shuffled, head_width=head_width
    ).double()
    x = torch.randn(2, 5, 2 * window[0], 3 * window[1], dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(module(x), loops(module, x), rtol=0, atol=1e-12)


def test_what_a_position_sees() -> None:
    """One head sees the window; two also see the same place of every other window, and nothing else."""
    x = torch.randn(1, 4, 8, 12, dtype=torch.float64, requires_grad=True)
    i, j = torch.meshgrid(torch.arange(8), torch.arange(12), indexing="ij")
    window = (i // 4 == 1) & (j // 4 == 2)
    place = (i % 4 == 5 % 4) & (j % 4 == 9 % 4)
    for heads, expected in ((1, window), (2, window | place)):
        module = HalfShuffleAttention(4, heads, grid=(2, 3), window=(4, 4)).double()
        (gradient,) = torch.autograd.grad(module(x)[..., 5, 9].sum(), x)
        assert torch.equal(gradient.abs().sum((0, 1)) > 0, expected)


def test_a_table_at_its_own_grid_is_itself() -> None:
    table = torch.randn(2, 6, 6)
    assert table_at(table, (2, 3), (2, 3)) is table


@settings(max_examples=30)
@given(st.tuples(*[st.integers(1, 5)] * 4), st.integers(0, 99))
def test_a_table_elsewhere_is_interpolated_on_both_sides(sizes: tuple[int, ...], seed: int) -> None:
    grid, wanted = sizes[:2], sizes[2:]
    n, m = math.prod(grid), math.prod(wanted)
    table = torch.randn(2, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if grid != wanted:
        asks = F.interpolate(table.mT.reshape(2, n, *grid), wanted, mode="bilinear").reshape(2, n, m).mT
        both = F.interpolate(asks.reshape(2, m, *grid), wanted, mode="bilinear").reshape(2, m, m)
        torch.testing.assert_close(table_at(table, grid, wanted), both, rtol=0, atol=1e-12)


def test_the_same_grid_transposed_is_another_grid() -> None:
    table = torch.randn(1, 6, 6)
    assert not torch.equal(table_at(table, (2, 3), (3, 2)), table)


def test_windows_must_divide() -> None:
    with pytest.raises(ValueError, match="windows of 8 x 8 do not divide a map of 8 x 12"):
        HalfShuffleAttention(4, 2, grid=(1, 1))(torch.rand(1, 4, 8, 12))
    with pytest.raises(ValueError, match="3 heads do not divide 4 channels"):
        HalfShuffleAttention(4, 3, grid=(1, 1))
    with pytest.raises(ValueError, match="3 of 2 heads"):
        HalfShuffleAttention(4, 2, grid=(1, 1), shuffled=3)


@pytest.mark.parametrize(("height", "width"), [(3, 5), (32, 64), (33, 70)])
def test_an_untrained_answer_is_the_input(height: int, width: int) -> None:
    """With nothing mapped back, the first channels come through padding and cropping as they were."""
    module = HalfShuffleTransformer(6, 4, width=4, size=(32, 32))
    nn.init.zeros_(module.map.weight)
    x = torch.rand(2, 6, height, width)
    assert torch.equal(module(x), x[:, :4])


def test_reflection_to_whole_windows() -> None:
    """The authors pad to 16 and need 32: where that suffices the padded map is the same, here made by hand."""
    torch.manual_seed(0)
    module = HalfShuffleTransformer(5, 4, width=4, size=(32, 32)).double()
    x = torch.rand(1, 5, 20, 27, dtype=torch.float64)
    by_hand = F.pad(x, (0, 5, 0, 12), mode="reflect")
    torch.testing.assert_close(module(x), module(by_hand)[..., :20, :27], rtol=0, atol=1e-12)


def test_estimates_are_positive_scalars() -> None:
    module = DegradationEstimator(4, 3, width=5)
    nn.init.constant_(module.last.weight, 0.0)
    assert module.last.bias is not None
    with torch.no_grad():
        module.last.bias.copy_(torch.tensor([-90.0, 0.0, 1.0, 2.0, 0.0, -90.0]))
    alpha, beta = module(torch.randn(2, 4, 9, 7))
    assert alpha.shape == beta.shape == (2, 3, 1, 1)
    softplus = [math.log1p(math.exp(t)) + 1e-6 for t in (-90.0, 0.0, 1.0, 2.0, 0.0, -90.0)]
    torch.testing.assert_close(torch.cat([alpha, beta], 1)[1].flatten(), torch.tensor(softplus))


def test_penalty_and_noise_reach_their_stage() -> None:
    """With denoisers that return their input, the answer is the chain of projections, by plain arithmetic."""
    torch.manual_seed(0)
    network = DAUHST(3, 2, stages=2, width=2, estimator_width=4, size=(8, 8)).double()
    seen: list[Tensor] = []
    for denoiser in network.denoisers:
        assert isinstance(denoiser, HalfShuffleTransformer)
        nn.init.zeros_(denoiser.map.weight)
        denoiser.register_forward_hook(lambda _m, args, _y: seen.append(args[0]))
    y, phi = torch.rand(1, 6, 12, dtype=torch.float64), dispersed_mask(torch.rand(6, 8).double(), 3, 2)
    cube = network(y, phi)
    z, alphas, betas = network.begin(y, phi)
    x = z[0]
    for k in range(2):
        misfit = (y[0] - (phi * x).sum(0)) / (alphas[0, k] + (phi**2).sum(0).where((phi != 0).any(0), 1))
        x = x + phi * misfit
        assert torch.equal(seen[k][:, 3], betas[:, k].expand(1, 6, 12))
    for band in range(3):
        torch.testing.assert_close(cube[0, band], x[band, :, 2 * band : 2 * band + 8], rtol=0, atol=1e-12)


def test_the_start_reads_the_support_alone() -> None:
    """Band c of the start holds 2 / l of the measurement in columns [2 c, 2 c + w), in place."""
    network = DAUHST(3, 2, stages=1, width=2, estimator_width=4, size=(8, 8)).double()
    nn.init.zeros_(network.start.weight)
    assert network.start.bias is not None
    nn.init.zeros_(network.start.bias)
    with torch.no_grad():
        network.start.weight[:, :3] = torch.eye(3)
    y = torch.rand(1, 4, 12, dtype=torch.float64)
    z, _, _ = network.begin(y, torch.rand(3, 4, 12, dtype=torch.float64))
    for band in range(3):
        expected = torch.zeros(4, 12, dtype=torch.float64)
        expected[:, 2 * band : 2 * band + 8] = y[0, :, 2 * band : 2 * band + 8] * 2 / 3
        torch.testing.assert_close(z[0, band], expected)


@pytest.mark.parametrize(
    ("stages", "parameters", "multiply_adds"),
    [(1, 726_182, None), (2, 1_403_664, 17.90e9), (3, 2_081_146, None), (5, 3_436_110, None),
     (9, 6_146_038, 76.64e9)],
)  # fmt: skip
def test_published_figures(stages: int, parameters: int, multiply_adds: float | None) -> None:
    with torch.device("meta"):
        network = DAUHST(stages=stages)
    assert sum(p.numel() for p in network.parameters()) == parameters
    if multiply_adds is not None:
        counted = count(network, ((1, 256, 310), (28, 256, 310))).multiply_adds
        # The code evaluates the start twice: 256 x 310 positions, 56 x 28.
        assert counted + 256 * 310 * 56 * 28 == pytest.approx(multiply_adds, rel=1e-3)


def test_published_state_belongs_to_its_size() -> None:
    """A state of one scene size loads into a network for that size, and runs at any other."""
    torch.manual_seed(0)
    made, same, other = (
        DAUHST(3, 2, stages=1, width=2, estimator_width=4, size=(height, 60)) for height in (32, 32, 64)
    )
    own = made.state_dict()
    state = {theirs: own[ours] for theirs, ours in reference_names(made, "mst").items()}
    load_reference(same, state, source="mst")
    y, phi = torch.rand(1, 40, 104), torch.rand(3, 40, 104)
    assert torch.equal(same(y, phi), made(y, phi))
    with pytest.raises(ValueError, match=r"encoder_layers\.1\.0\.blocks\.0\.0\.fn\.pos_emb2 is"):
        load_reference(other, state, source="mst")
