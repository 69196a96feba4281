# SPDX-License-Identifier: Apache-2.0
"""Extreme singular values against numpy and dense Jacobians."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from widefield.measure import jacobian_singular_values


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_spectrum(values, rows, columns):
    left, _ = torch.linalg.qr(normal(rows, len(values), seed=1))
    right, _ = torch.linalg.qr(normal(columns, len(values), seed=2))
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.T


@pytest.mark.parametrize(("rows", "columns"), [(60, 40), (40, 60), (5, 5), (1, 7), (7, 1), (200, 300)])
def test_random_linear_maps(rows, columns):
    a = normal(rows, columns)
    expected = np.linalg.svd(a.numpy(), compute_uv=False)
    k = min(2, rows, columns)
    result = jacobian_singular_values(lambda x: a @ x, normal(columns, seed=3), largest=k, smallest=0, tol=1e-9)
    assert result.converged
    np.testing.assert_allclose(result.largest, expected[:k], rtol=1e-8)
    result = jacobian_singular_values(lambda x: a @ x, normal(columns, seed=3), largest=0, smallest=k, tol=1e-9)
    assert result.converged
    np.testing.assert_allclose(result.smallest, expected[::-1][:k], rtol=1e-6, atol=1e-9)
    assert (result.rows, result.columns) == (rows, columns)


def test_known_spectrum_with_repeats_and_zeros():
    a = with_spectrum([4.0, 4.0, 4.0, 2.0, 1.0], 30, 20)
    result = jacobian_singular_values(lambda x: a @ x, normal(20), largest=5, smallest=2, tol=1e-9, basis=20)
    assert result.converged
    np.testing.assert_allclose(result.largest, [4, 4, 4, 2, 1], rtol=1e-9)
    np.testing.assert_allclose(result.smallest, [0, 0], atol=1e-9)


def test_scaled_identity_and_float32():
    result = jacobian_singular_values(lambda x: 3 * x, normal(50, dtype=torch.float32), largest=3, smallest=2)
    assert result.converged
    np.testing.assert_allclose(result.largest + result.smallest, 3, rtol=1e-5)


def test_restarts_keep_few_vectors():
    values = [10.0, 9.0, *np.linspace(5, 1, 298)]
    a = with_spectrum(values, 300, 300)
    result = jacobian_singular_values(lambda x: a @ x, normal(300), largest=2, tol=1e-10, basis=8)
    assert result.converged
    np.testing.assert_allclose(result.largest, [10, 9], rtol=1e-10)
    assert result.products > 16


def test_giving_up_is_said():
    a = with_spectrum(list(np.linspace(1, 1e-4, 200)), 200, 200)
    result = jacobian_singular_values(
        lambda x: a @ x, normal(200), largest=0, smallest=1, tol=1e-12, basis=5, max_restarts=1
    )
    assert not result.converged
    assert result.residual > result.tolerance
    assert json.loads(json.dumps(result.as_dict()))["converged"] is False


def test_convolution_against_the_dense_jacobian():
    layer = nn.Conv2d(3, 4, 3, padding=1).double()
    x = normal(1, 3, 7, 8)
    dense = torch.func.jacrev(layer)(x).reshape(4 * 56, 3 * 56)
    expected = torch.linalg.svdvals(dense)
    result = jacobian_singular_values(layer, x, largest=2, smallest=1, tol=1e-8, basis=60)
    assert result.converged
    np.testing.assert_allclose(result.largest, expected[:2].detach(), rtol=1e-8)
    np.testing.assert_allclose(result.smallest, expected[-1:].detach(), rtol=1e-6)


def test_a_circular_convolution_against_its_fourier_transform():
    weight = normal(1, 1, 5)
    layer = lambda x: F.conv1d(F.pad(x, (2, 2), mode="circular"), weight)  # noqa: E731
    # A circulant matrix has the moduli of its symbol as singular values.
    symbol = np.abs(np.fft.fft(weight.flatten().numpy(), 32))
    result = jacobian_singular_values(layer, normal(1, 1, 32), largest=1, smallest=1, tol=1e-10)
    np.testing.assert_allclose(result.largest[0], symbol.max(), rtol=1e-8)
    np.testing.assert_allclose(result.smallest[0], symbol.min(), rtol=1e-8)


def test_fused_attention_against_the_dense_jacobian():
    x = normal(1, 1, 10, 4)

    def written_out(q):
        return (q @ q.mT / 2).softmax(-1) @ q

    expected = torch.linalg.svdvals(torch.func.jacrev(written_out)(x).reshape(40, 40))
    result = jacobian_singular_values(
        lambda q: F.scaled_dot_product_attention(q, q, q), x, largest=2, smallest=1, tol=1e-9
    )
    assert result.method == "double backward"
    np.testing.assert_allclose(result.largest, expected[:2], rtol=1e-8)
    np.testing.assert_allclose(result.smallest, expected[-1:], rtol=1e-8)


def test_a_truncated_gradient_is_measured_as_it_is():
    a = normal(6, 6)

    def one_step(x):
        return a @ (a @ x).detach() + 2 * x

    result = jacobian_singular_values(one_step, normal(6), largest=6, tol=1e-9)
    np.testing.assert_allclose(result.largest, 2, rtol=1e-12)


class Tanh(torch.autograd.Function):
    """Its backward cannot be differentiated."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)

    @staticmethod
    def jvp(ctx, tangent):
        (y,) = ctx.saved_tensors
        return tangent * (1 - y * y)


class Lying(Tanh):
    """A straight-through backward: not the adjoint of its derivative."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad.clone()


def test_forward_mode_steps_in_when_it_is_the_adjoint():
    x = normal(9)
    result = jacobian_singular_values(Tanh.apply, x, largest=2, smallest=1, tol=1e-9)
    expected = (1 - x.tanh() ** 2).sort(descending=True).values
    assert result.method == "forward mode"
    np.testing.assert_allclose(result.largest, expected[:2], rtol=1e-9)
    np.testing.assert_allclose(result.smallest, expected[-1:], rtol=1e-9)
    with pytest.raises(ValueError, match="another linear map"):
        jacobian_singular_values(Lying.apply, x)


def test_repeatable_and_leaves_the_generator_alone():
    a, state = normal(30, 30), torch.get_rng_state()
    first = jacobian_singular_values(lambda x: (a @ x).tanh(), normal(30))
    again = jacobian_singular_values(lambda x: (a @ x).tanh(), normal(30))
    assert first == again
    assert torch.equal(state, torch.get_rng_state())


def test_bad_input_is_answered():
    with pytest.raises(ValueError, match="at least one and at most 3"):
        jacobian_singular_values(lambda x: x, normal(3), largest=4)
    with pytest.raises(ValueError, match="at least one"):
        jacobian_singular_values(lambda x: x, normal(3), largest=0)
    with pytest.raises(ValueError, match="cannot be reached"):
        jacobian_singular_values(lambda x: x, normal(3, dtype=torch.float32), tol=1e-9)
    with pytest.raises(ValueError, match="does not depend"):
        jacobian_singular_values(lambda x: x.detach(), normal(3))
    with pytest.raises(TypeError, match="float32 or float64"):
        jacobian_singular_values(lambda x: x, torch.ones(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="one tensor"):
        jacobian_singular_values(lambda x: (x, x), normal(3))
