# SPDX-License-Identifier: Apache-2.0
"""Sensing operators and projections: against plain loops, inner products, optimality conditions, deepinv."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from widefield.imaging import (
    Snapshot,
    backproject,
    disperse,
    energy,
    measure,
    project_admm,
    project_gap,
    project_gap_accelerated,
    project_hqs,
    roll_back,
    roll_forward,
    shift_back,
    undisperse,
)

SIZES = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 7), st.integers(1, 8), st.integers(0, 4))


def random_problem(sizes, seed=0, kind="gray"):
    b, bands, h, w, _step = sizes
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(h, w, generator=generator, dtype=torch.float64)
    if kind == "binary":
        mask = (mask > 0.5).double()
    cube = torch.randn(b, bands, h, w, generator=generator, dtype=torch.float64)
    return mask, cube, generator


@given(SIZES, st.integers(0, 2**20), st.sampled_from(["gray", "binary"]))
def test_forward_is_the_sum_of_shifted_coded_bands(sizes, seed, kind):
    _, bands, h, w, step = sizes
    mask, cube, _ = random_problem(sizes, seed, kind)
    expected = torch.zeros(cube.shape[0], h, w + (bands - 1) * step, dtype=torch.float64)
    for c in range(bands):
        expected[:, :, c * step : c * step + w] += mask * cube[:, c]
    y = Snapshot.cassi(mask, bands, step).forward(cube)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@given(SIZES, st.integers(0, 2**20), st.sampled_from(["cassi", "measured", "video", "own masks"]))
def test_forward_and_adjoint_agree_in_the_inner_product(sizes, seed, kind):
    b, bands, h, w, step = sizes
    mask, cube, generator = random_problem(sizes, seed)
    wide = w + (bands - 1) * step
    if kind == "cassi":
        operator = Snapshot.cassi(mask, bands, step)
    elif kind == "measured":
        operator = Snapshot.measured(torch.rand(bands, h, wide, generator=generator, dtype=torch.float64), step)
    elif kind == "own masks":
        operator = Snapshot.cassi(torch.rand(b, h, w, generator=generator, dtype=torch.float64), bands, step)
    else:
        operator = Snapshot.video(torch.rand(bands, h, w, generator=generator, dtype=torch.float64))
    y = torch.randn(b, *operator.sensor, generator=generator, dtype=torch.float64)
    forward, back = (operator.forward(cube) * y).sum(), (cube * operator.adjoint(y)).sum()
    assert abs(float(forward - back)) <= 1e-10 * max(1.0, float(cube.norm() * y.norm()))


@given(SIZES, st.integers(0, 2**20))
def test_the_energy_is_the_diagonal_of_the_gram_matrix(sizes, seed):
    _, bands, _h, _w, step = sizes
    mask, _, _ = random_problem(sizes, seed, "binary")
    operator = Snapshot.cassi(mask, bands, step)
    pixels = operator.sensor[0] * operator.sensor[1]
    basis = torch.eye(pixels, dtype=torch.float64).view(pixels, *operator.sensor)
    gram = operator.forward(operator.adjoint(basis)).flatten(1)
    diagonal = gram.diagonal()
    torch.testing.assert_close(gram, torch.diag(diagonal))
    expected = torch.where(diagonal == 0, 1.0, diagonal)
    torch.testing.assert_close(operator.energy.flatten(), expected)


@given(SIZES)
def test_frames(sizes):
    b, bands, h, w, step = sizes
    _, cube, _ = random_problem(sizes)
    apart = disperse(cube, step)
    assert torch.equal(undisperse(apart, step), cube)
    assert torch.equal(roll_back(apart, step)[..., :w], cube)
    assert torch.equal(roll_back(roll_forward(apart, step), step), apart)
    y = torch.randn(b, h, apart.shape[-1])
    columns = [y[..., step * c : step * c + w] for c in range(bands)]
    assert torch.equal(shift_back(y, bands, step), torch.stack(columns, 1))


def problem(seed=0):
    torch.manual_seed(seed)
    phi = disperse((torch.rand(2, 5, 6, 9, dtype=torch.float64) > 0.5).double(), 2)
    z = torch.randn(phi.shape, dtype=torch.float64)
    y = measure(disperse(torch.randn(2, 5, 6, 9, dtype=torch.float64), 2), phi)
    return z, y, phi, energy(phi)


def test_gap_reproduces_the_measurement_and_moves_as_little_as_it_can():
    z, y, phi, total = problem()
    x = project_gap(z, y, phi, total)
    torch.testing.assert_close(measure(x, phi), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(project_gap(x, y, phi, total), x)
    # The way to the nearest point of the plane is orthogonal to the plane: a combination of the rows of A.
    along = project_gap(torch.randn_like(z), y, phi, total) - x
    assert abs(float(((x - z) * along).sum())) < 1e-10


def test_hqs_and_admm_are_stationary():
    z, y, phi, total = problem()
    for alpha in (0.3, torch.tensor([0.1, 2.0], dtype=torch.float64).view(2, 1, 1)):
        x = project_hqs(z, y, phi, total, alpha).requires_grad_()
        weight = alpha if isinstance(alpha, float) else alpha[..., None]
        lit = (phi.square().sum(1, keepdim=True) > 0).expand_as(x)
        cost = (y - measure(x, phi)).square().sum() + (weight * (x - z).square()).sum()
        (slope,) = torch.autograd.grad(cost, x)
        # Where no light falls Phi_s is set to 1, which changes nothing: A^T is zero there.
        assert float(slope[lit].abs().max()) < 1e-10
    b = torch.randn_like(z)
    torch.testing.assert_close(project_admm(z, b, y, phi, total, 0.25), project_hqs(z + b, y, phi, total, 0.25))


def test_where_no_light_falls_nothing_moves():
    z, y, phi, total = problem()
    phi[:, :, :, 4] = 0
    total = energy(phi)
    for x in (
        project_gap(z, y, phi, total),
        project_hqs(z, y, phi, total, 0.0),
        project_gap_accelerated(z, y, y * 0, phi, total).x,
    ):
        assert torch.isfinite(x).all()
        assert torch.equal(x[..., 4], z[..., 4])


def test_batches_do_not_mix():
    z, y, phi, total = problem()
    whole = project_gap(z, y, phi, total)
    for i in range(2):
        one = slice(i, i + 1)
        assert torch.equal(project_gap(z[one], y[one], phi[one], total[one]), whole[one])
    torch.testing.assert_close(backproject(y, phi), phi * y[:, None])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Snapshot.cassi(torch.rand(4), 3, 2), r"\(h, w\)"),
        (lambda: Snapshot.cassi(torch.rand(4, 4) - 1, 3, 2), "0 or more"),
        (lambda: Snapshot.cassi(torch.full((4, 4), torch.nan), 3, 2), "not finite"),
        (lambda: Snapshot.cassi(torch.rand(4, 4), 3, -1), "step"),
        (lambda: Snapshot.cassi(torch.rand(4, 4), 3, 1.5), "step"),
        (lambda: Snapshot.cassi(torch.rand(4, 4), 0, 1), "bands"),
        (lambda: Snapshot.measured(torch.rand(5, 4, 4), 2), "take 8 columns"),
        (lambda: Snapshot.cassi(torch.rand(4, 4), 3, 2).forward(torch.rand(1, 3, 4, 5)), r"\(b, 3, 4, 4\)"),
        (lambda: Snapshot.cassi(torch.rand(4, 4), 3, 2).adjoint(torch.rand(1, 4, 4)), r"\(b, 4, 8\)"),
        (lambda: Snapshot.cassi(torch.rand(2, 4, 4), 3, 2).forward(torch.rand(3, 3, 4, 4)), "2 masks for 3"),
    ],
)
def test_errors_name_what_is_accepted(build, said):
    with pytest.raises(ValueError, match=said):
        build()


def test_deepinv_agrees():
    physics = pytest.importorskip("deepinv.physics", reason="deepinv is not installed")
    torch.manual_seed(0)
    bands, h, w = 5, 7, 9  # its shear is exact on odd canvases
    mask = (torch.rand(h, w) > 0.5).float()
    cube = torch.rand(1, bands, h, w)
    theirs = physics.CompressiveSpectralImaging(
        (bands, h, w), mask=mask[None, None].expand(1, bands, h, w).contiguous(), mode="sd", shear_dir="w"
    )
    y = theirs.A(cube)
    # It averages over the bands.
    ours = Snapshot.cassi(mask, bands, 1).forward(cube)
    torch.testing.assert_close(y.reshape(1, h, w + bands - 1) * bands, ours, rtol=1e-5, atol=1e-5)
