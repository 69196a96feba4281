# SPDX-License-Identifier: Apache-2.0
"""Four gradients of one loop, against closed forms, finite differences and each other."""

import pytest
import torch

from widefield.core.status import Outcome
from widefield.implicit import GRADIENTS, AdjointFailure, fixed_point


def contraction(c=6, scale=0.5, seed=0):
    """z -> tanh(A z + x) with |A| = scale, as a step over (b, c)."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(c, c, generator=generator, dtype=torch.float64)
    a = torch.nn.Parameter(scale * a / torch.linalg.matrix_norm(a, 2))
    return (lambda z, x: torch.tanh(z @ a.T + x)), a


@pytest.fixture
def x():
    return torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_the_forward_value_does_not_depend_on_the_gradient(x):
    step, _ = contraction()
    values = [fixed_point(step, torch.zeros_like(x), x, steps=4, gradient=g).state for g in GRADIENTS]
    for value in values[1:]:
        assert torch.equal(value, values[0])


def test_implicit_equals_unrolled_at_convergence_and_the_closed_form(x):
    step, a = contraction()
    found = {}
    for gradient in ("unrolled", "implicit"):
        z = fixed_point(step, torch.zeros_like(x), x, steps=80, gradient=gradient, adjoint_tolerance=1e-12).state
        found[gradient] = torch.autograd.grad(z.square().sum(), (x, a))
    for implicit, unrolled in zip(found["implicit"], found["unrolled"], strict=True):
        assert (implicit - unrolled).abs().max() < 1e-6 * unrolled.abs().max()
    # dz/dx = (I - S A)^-1 S with S = diag(1 - z^2)
    z = z.detach()
    slope = torch.diag_embed(1 - z**2)
    exact = torch.linalg.solve(torch.eye(6, dtype=torch.float64) - slope @ a.detach(), slope)
    expected = torch.einsum("bi,bij->bj", 2 * z, exact)
    assert torch.allclose(found["implicit"][0], expected, rtol=1e-8)


def test_one_step_and_neumann_are_partial_sums(x):
    step, a = contraction()
    z = fixed_point(step, torch.zeros_like(x), x, steps=200, gradient="one_step").state
    slope = torch.diag_embed(1 - z.detach() ** 2)
    jacobian, total = slope @ a.detach(), torch.zeros(3, 6, dtype=torch.float64)
    power = torch.ones(3, 6, dtype=torch.float64)
    for terms in range(4):
        total = total + torch.einsum("bi,bij->bj", power, slope)
        power = torch.einsum("bi,bij->bj", power, jacobian)
        z = fixed_point(step, torch.zeros_like(x), x, steps=200, gradient="neumann", terms=terms).state
        (got,) = torch.autograd.grad(z.sum(), x)
        assert torch.allclose(got, total, rtol=1e-8)


def test_unrolled_passes_gradcheck(x):
    step, _ = contraction()
    start = torch.zeros(3, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: fixed_point(step, start, x, steps=5, gradient="unrolled").state, (x,)
    )


def test_implicit_passes_gradcheck_at_convergence(x):
    step, _ = contraction()
    start = torch.zeros(3, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: fixed_point(step, start, x, steps=100, gradient="implicit", adjoint_tolerance=1e-12).state,
        (x,),
    )


def test_a_state_of_several_tensors(x):
    def step(state, x):
        u, v = state
        return 0.3 * torch.sin(v) + x, 0.4 * torch.cos(u) * x

    found = []
    for gradient in ("unrolled", "implicit"):
        u, v = fixed_point(
            step,
            (torch.zeros_like(x), torch.zeros_like(x)),
            x,
            steps=80,
            gradient=gradient,
            adjoint_tolerance=1e-12,
        ).state
        found.append(torch.autograd.grad((u * v).sum(), x)[0])
    assert torch.allclose(found[0], found[1], rtol=1e-7)


def saved_bytes(steps, gradient):
    """Bytes that autograd keeps between forward and backward."""
    step, _ = contraction(c=64)
    x = torch.randn(8, 64, dtype=torch.float64, requires_grad=True)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.setdefault(t.untyped_storage().data_ptr(), (t.untyped_storage().nbytes(), t)) and t,
        lambda t: t,
    ):
        fixed_point(step, torch.zeros_like(x), x, steps=steps, gradient=gradient)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("gradient", ["one_step", "neumann", "implicit"])
def test_memory_does_not_grow_with_the_steps(gradient):
    assert saved_bytes(6, gradient) == saved_bytes(60, gradient)
    assert saved_bytes(60, "unrolled") > 4 * saved_bytes(6, "unrolled")


def test_an_unsolved_adjoint_says_so(x):
    step, _ = contraction(scale=0.99)
    solution = fixed_point(step, torch.zeros_like(x), x, steps=50, gradient="implicit", adjoint_steps=1)
    with pytest.warns(AdjointFailure, match="relative residual"):
        solution.state.sum().backward()
    assert not solution.adjoint.converged
    assert solution.adjoint.iterations == 1


def test_a_singular_but_consistent_adjoint_is_solved():
    # A rotation-free direction of the fixed-point set: z1 is free, the loss does not see it.
    def step(z, x):
        return torch.stack([z[:, 0], 0.5 * z[:, 1] + x[:, 0]], 1)

    x = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    z = fixed_point(step, torch.ones(2, 2, dtype=torch.float64), x, steps=80, gradient="implicit").state
    (got,) = torch.autograd.grad(z[:, 1].sum(), x)
    assert torch.allclose(got, torch.full_like(got, 2.0))


def test_tolerance_stops_each_sample_on_its_own():
    rate = torch.tensor([[0.1], [0.9]], dtype=torch.float64)
    solution = fixed_point(
        lambda z, x: rate * z + x,
        torch.zeros(2, 1, dtype=torch.float64),
        torch.ones(2, 1, dtype=torch.float64),
        steps=500,
        tolerance=1e-6,
    )
    fast, slow = solution.status.steps.tolist()
    assert fast < 10 < slow < 500
    assert solution.status.converged.all()
    alone = fixed_point(
        lambda z, x: rate[:1] * z + x,
        torch.zeros(1, 1, dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.float64),
        steps=500,
        tolerance=1e-6,
    )
    assert torch.equal(alone.state, solution.state[:1])


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_tolerance_gives_the_same_value_whatever_the_gradient(gradient, x):
    step, _ = contraction()
    solution = fixed_point(step, torch.zeros_like(x), x, steps=500, tolerance=1e-8, gradient=gradient)
    with torch.no_grad():
        assert torch.equal(
            solution.state, fixed_point(step, torch.zeros_like(x), x, steps=500, tolerance=1e-8).state
        )
    assert solution.status.converged.all()


def test_bad_words_are_answered():
    z = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="Did you mean 'one_step'"):
        fixed_point(lambda z, x: z, z, z, steps=1, gradient="onestep")
    with pytest.raises(ValueError, match="steps=-1"):
        fixed_point(lambda z, x: z, z, z, steps=-1)


class TestFR16:
    """A solver that did not converge says so, per sample, and raises nothing."""

    cases = (
        (lambda z, x: 3 * z + 1, Outcome.DIVERGED),
        (lambda z, x: torch.ones_like(z), Outcome.CONVERGED),
        (lambda z, x: z * torch.nan, Outcome.NON_FINITE),
        (lambda z, x: 0.999 * z, Outcome.BUDGET_SPENT),
    )

    @pytest.mark.parametrize(("step", "expected"), cases)
    @pytest.mark.parametrize("gradient", GRADIENTS)
    def test_status(self, step, expected, gradient):
        z = torch.ones(2, 4)
        solution = fixed_point(step, z, z, steps=5, gradient=gradient)
        assert solution.status.outcome.tolist() == [expected] * 2
        assert solution.status.steps.tolist() == [5, 5]
        assert expected.name.lower() in solution.status.summary()
        assert expected.meaning

    def test_a_failed_sample_does_not_change_the_others(self):
        bad = torch.tensor([[1.0], [torch.nan]])
        both = fixed_point(lambda z, x: 0.5 * z + x, torch.zeros(2, 1), bad, steps=60, tolerance=1e-6)
        alone = fixed_point(lambda z, x: 0.5 * z + x, torch.zeros(1, 1), bad[:1], steps=60, tolerance=1e-6)
        assert torch.equal(both.state[:1], alone.state)
        assert both.status.outcome.tolist() == [Outcome.CONVERGED, Outcome.NON_FINITE]
