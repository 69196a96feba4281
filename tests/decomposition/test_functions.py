# SPDX-License-Identifier: Apache-2.0
"""The decompositions as mathematics: objectives, closed forms, scikit-learn, finite differences, dead input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widefield.core.numerics import unit
from widefield.decomposition import (
    EM,
    NMF,
    ConceptDecomposition,
    SoftVQ,
    concept,
    concept_decomposition,
    decompose,
    em,
    nmf,
    nmf_hals,
    reconstruct,
    soft_vq,
    vector_quantisation,
)
from widefield.decomposition.concept import ridge
from widefield.decomposition.em import objective as em_objective
from widefield.decomposition.nmf import EPSILON, objective

METHODS = {"nmf": NMF(), "cd": ConceptDecomposition(0.1), "vq": SoftVQ(0.1), "em": EM()}
FUNCTIONS = {"nmf": nmf, "cd": concept_decomposition, "vq": soft_vq, "em": em}


def problem(b=2, c=6, n=20, r=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(b, c, n, generator=generator, dtype=dtype)
    return x, unit(torch.rand(b, c, r, generator=generator, dtype=dtype) + 0.1, 1)


@settings(max_examples=30, deadline=None)
@given(
    c=st.integers(1, 9),
    n=st.integers(1, 30),
    r=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-2, 1.0, 1e2]),
)
def test_the_nmf_objective_never_rises_and_factors_stay_non_negative(c, n, r, seed, scale):
    x, bases = problem(1, c, n, r, seed)
    x, codes = x * scale, None
    # With the guard the updates are those of sparse coding (Hoyer 2002): what descends is the objective plus
    # the guard times the sum of both factors.
    last = torch.tensor([torch.inf], dtype=torch.float64)
    for _ in range(15):
        bases, codes, _status = nmf(x, bases, steps=1, codes=codes)
        assert (bases >= 0).all()
        assert (codes >= 0).all()
        value = objective(x, bases, codes) + EPSILON * (bases.sum() + codes.sum())
        assert value <= last * (1 + 1e-12)
        last = value


def test_nmf_multiplicative_updates_equal_scikit_learn():
    from sklearn.decomposition import non_negative_factorization

    x, bases = problem(1, 7, 25, 3)
    codes = torch.softmax(x.mT @ bases, -1)
    got = nmf(x, bases, steps=4)
    # scikit-learn updates W of X ~ W H first: X^T (n x c) ~ C D^T.
    w, h, _ = non_negative_factorization(
        x[0].mT.numpy(),
        W=codes[0].numpy().copy(),
        H=bases[0].mT.numpy().copy(),
        n_components=3,
        init="custom",
        solver="mu",
        max_iter=4,
        tol=0,
    )
    assert np.abs(got.codes[0].numpy() - w).max() < 1e-4
    assert np.abs(got.bases[0].numpy() - h.T).max() < 1e-4


def test_hals_reaches_the_objective_of_multiplicative_updates_in_fewer_passes():
    x = torch.rand(3, 24, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64) @ torch.rand(
        3, 4, 80, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    bases = unit(torch.rand(3, 24, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64), 1)
    plain = objective(x, *nmf(x, bases, steps=60)[:2])
    fast = objective(x, *nmf_hals(x, bases, steps=12)[:2])
    assert (fast <= plain).all()


def test_hals_agrees_with_scikit_learn_coordinate_descent():
    from sklearn.decomposition import non_negative_factorization

    x, bases = problem(1, 12, 40, 4, seed=2)
    codes = torch.softmax(x.mT @ bases, -1)
    found = nmf_hals(x, bases, steps=300, inner=1)
    w, h, _ = non_negative_factorization(
        x[0].mT.numpy(),
        W=codes[0].numpy().copy(),
        H=bases[0].mT.numpy().copy(),
        n_components=4,
        init="custom",
        solver="cd",
        max_iter=300,
        tol=0,
        shuffle=False,
    )
    theirs = 0.5 * np.square(x[0].mT.numpy() - w @ h).sum()
    assert float(objective(x, *found[:2])) == pytest.approx(theirs, rel=1e-6)


def test_nmf_refuses_negative_input_with_the_smallest_value():
    x = torch.zeros(1, 2, 3)
    x[0, 1, 1] = -0.25
    for function in (nmf, nmf_hals):
        with pytest.raises(ValueError, match=r"-0\.25"):
            function(x, torch.rand(1, 2, 2))


def test_ridge_codes_solve_the_normal_equations():
    x, bases = problem()
    codes = concept.ridge(x, bases, 0.1)
    system = bases.mT @ bases + 0.1 * torch.eye(3, dtype=torch.float64)
    assert torch.allclose(codes @ system, x.mT @ bases)
    better = concept.objective(x, bases, codes)
    for seed in range(3):
        noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert (concept.objective(x, bases, codes + 0.01 * noise) > better).all()


def test_cold_vector_quantisation_is_spherical_k_means():
    from sklearn.preprocessing import normalize

    x, bases = problem(1, 5, 60, 4, seed=7)
    got = soft_vq(x, bases, steps=5, temperature=1e-6)
    points, words = x[0].mT.numpy(), bases[0].mT.numpy().copy()
    for _ in range(5):
        label = (normalize(points) @ normalize(words).T).argmax(1)
        words = np.stack([points[label == k].mean(0) if (label == k).any() else words[k] * 0 for k in range(4)])
    label = (normalize(points) @ normalize(words).T).argmax(1)
    assert np.abs(got.bases[0].mT.numpy() - words).max() < 1e-5
    assert (got.codes[0].argmax(1).numpy() == label).all()
    assert torch.allclose(got.codes.sum(-1), torch.ones(1, 60, dtype=torch.float64))


def test_vq_distortion_falls():
    x, bases = problem(2, 5, 60, 4, seed=8)
    values = [vector_quantisation.objective(x, *soft_vq(x, bases, steps=k, temperature=1e-3)[:2]) for k in (1, 10)]
    assert (values[1] <= values[0] + 1e-9).all()


def test_em_equals_a_written_out_loop():
    x, bases = problem(2, 5, 12, 3)
    got = em(x, bases, steps=3)
    for b in range(2):
        mu, points = bases[b].clone(), x[b].mT
        for _ in range(3):
            z = torch.stack([torch.softmax(mu.mT @ p, 0) for p in points])
            mu = torch.stack([(z[:, k, None] * points).sum(0) / (1e-6 + z[:, k].sum()) for k in range(3)], 1)
            mu = mu / (1e-6 + mu.norm(dim=0))
        assert torch.allclose(got.bases[b], mu)
        assert torch.allclose(got.codes[b], z)


def test_em_raises_the_likelihood():
    x, bases = problem(2, 5, 60, 4, seed=9)
    x = unit(x - x.mean(2, keepdim=True), 1) * 5
    bases = unit(bases - 0.3, 1)
    values = [em_objective(x, em(x, bases, steps=k).bases) for k in (1, 5, 20)]
    assert (values[1] <= values[0]).all()
    assert (values[2] <= values[1] + 1e-9).all()


@pytest.mark.parametrize("name", METHODS)
def test_unrolled_passes_gradcheck(name):
    x, bases = problem(1, 4, 7, 2)
    x.requires_grad_()

    def context(x):
        found = decompose(METHODS[name], x, bases, steps=3, gradient="unrolled")
        return reconstruct(found.bases, found.codes)

    assert torch.autograd.gradcheck(context, (x,))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("gradient", ["one_step", "unrolled", "neumann", "implicit", "codes_only"])
def test_the_value_does_not_depend_on_the_gradient(name, gradient):
    x, bases = problem()
    x.requires_grad_()
    found = decompose(METHODS[name], x, bases, steps=4, gradient=gradient)
    if name == "em" and gradient == "codes_only":
        return  # EM's codes are those of its last E-step; re-making them is another value by design
    plain = FUNCTIONS[name](x.detach(), bases, **({} if name in ("nmf", "em") else {"temperature": 0.1}), steps=4)
    if name == "nmf":
        plain = NMF().finish(plain[:2], x.detach())
    assert torch.allclose(found.bases, plain.bases, atol=1e-12)
    assert torch.allclose(found.codes, plain.codes, atol=1e-12)


@pytest.mark.parametrize("name", ["nmf", "cd", "vq"])
def test_codes_only_passes_no_gradient_between_positions_and_one_step_does(name):
    x, bases = problem(1, 4, 9, 2)
    x.requires_grad_()
    crossing = {}
    for gradient in ("codes_only", "one_step"):
        found = decompose(METHODS[name], x, bases, steps=4, gradient=gradient)
        (g,) = torch.autograd.grad(reconstruct(found.bases, found.codes)[0, :, 0].sum(), x)
        crossing[gradient] = float(g[0, :, 1:].abs().max())
    assert crossing["codes_only"] == 0
    assert crossing["one_step"] > 1e-4


def test_implicit_equals_unrolled_on_a_converged_em():
    # Two tight clusters: EM is a strong contraction there.
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(4, dtype=torch.float64)[:, :2] * 3
    x = centres.repeat(1, 6)[None] + 0.1 * torch.randn(1, 4, 12, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    bases = unit(centres + 0.05, 0)[None]
    found = {}
    for gradient in ("unrolled", "implicit"):
        bases_, codes, status = decompose(METHODS["em"], x, bases, steps=60, gradient=gradient, watch=True)
        found[gradient] = torch.autograd.grad(reconstruct(bases_, codes).square().sum(), x)[0]
    assert status.converged.all()
    error = (found["implicit"] - found["unrolled"]).abs().max() / found["unrolled"].abs().max()
    assert error < 1e-6


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("gradient", ["one_step", "unrolled", "codes_only"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_zero_and_constant_input_give_finite_numbers(name, gradient, dtype, value):
    x = torch.full((2, 6, 20), value, dtype=dtype, requires_grad=True)
    _, bases = problem(dtype=dtype)
    found = decompose(METHODS[name], x, bases, steps=5, gradient=gradient)
    y = reconstruct(found.bases, found.codes)
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().max() < 1e6
    if value == 0:
        assert (y == 0).all()


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\(1, 4, 9\)"):
        decompose(NMF(), torch.rand(1, 4, 9), torch.rand(1, 5, 2))
    with pytest.raises(ValueError, match="codes_only"):
        decompose(NMF(), torch.rand(1, 4, 9), torch.rand(1, 4, 2), gradient="code_only")


@pytest.mark.parametrize("beta", [0.1, 0.01])
def test_the_ridge_of_exported_graphs_is_the_ridge(beta: float) -> None:
    """Nearly parallel bases: the worst condition that unit bases can have."""
    x, bases = problem(2, 64, 40, 48)
    bases = unit(bases[..., :1] + 1e-3 * bases, 1)

    class Ridge(torch.nn.Module):
        def forward(self, x: torch.Tensor, bases: torch.Tensor) -> torch.Tensor:
            return ridge(x, bases, beta)

    exported = torch.export.export(Ridge(), (x, bases)).module()
    gram = bases.mT @ bases + beta * torch.eye(48, dtype=torch.float64)
    expected = x.mT @ bases @ torch.linalg.inv(gram)
    torch.testing.assert_close(exported(x, bases), expected, rtol=1e-8, atol=1e-8)
