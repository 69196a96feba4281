# SPDX-License-Identifier: Apache-2.0
"""FR-11, "the cost table says attention is free": every way of writing a product counts, in named units."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from widefield.measure import cost, count

SHAPE = (1, 1, 64, 32)


class Attention(nn.Module):
    """Full attention of a feature map (b, c, h, w) to itself."""

    def forward(self, x):
        tokens = x.flatten(2).mT
        y = F.scaled_dot_product_attention(tokens, tokens, tokens)
        return y.mT.reshape(x.shape)


class LinearAttention(nn.Module):
    """The same without softmax, in the order that costs c x c."""

    def forward(self, x):
        tokens = x.flatten(2)
        return ((tokens @ tokens.mT) @ tokens).reshape(x.shape)


class Factorisation(nn.Module):
    """Multiplicative updates for X ~ D C between a lower and an upper bread."""

    def __init__(self, channels, rank, steps):
        super().__init__()
        self.lower, self.upper = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, channels, 1)
        self.register_buffer("bases", torch.rand(1, channels, rank, generator=torch.Generator().manual_seed(0)))
        self.steps = steps

    def forward(self, x):
        x = self.lower(x).relu()
        d = self.bases.expand(x.shape[0], -1, -1)
        c = (d.mT @ x).softmax(1)
        for _ in range(self.steps):
            c = c * (d.mT @ x) / (d.mT @ d @ c + 1e-6)
            d = d * (x @ c.mT) / (d @ (c @ c.mT) + 1e-6)
        return self.upper(d @ c)


class FourierMixer(nn.Module):
    """Global filter: a product in the frequency domain. States its own closed form."""

    def forward(self, x):
        return torch.fft.irfft2(2 * torch.fft.rfft2(x, norm="ortho"), s=x.shape[-2:], norm="ortho")

    @staticmethod
    def closed_form(b, c, h, w):
        """5/4 n log2 n multiply-adds there and as many back, for each real channel of n numbers."""
        return 2 * round(5 / 4 * b * c * h * w * math.log2(h * w))


def fused(q):
    return F.scaled_dot_product_attention(q, q, q)


def batched_products(q):
    return (q @ q.mT / math.sqrt(q.shape[-1])).softmax(-1) @ q


def einsums(q):
    scores = torch.einsum("bhnd,bhmd->bhnm", q, q) / math.sqrt(q.shape[-1])
    return torch.einsum("bhnm,bhmd->bhnd", scores.softmax(-1), q)


@pytest.mark.parametrize("write", [fused, batched_products, einsums])
def test_a_b_c_attention_in_three_spellings(write):
    report = cost(write, SHAPE, latency=False)
    assert report.multiply_adds == 262_144
    assert report.operations == 524_288
    assert not report.lower_bound
    softmax = {name: size for name, size in report.elementwise.items() if "softmax" in name}
    assert list(softmax.values()) == [64 * 64]
    assert not any("softmax" in name for name in report.by_operator)


def test_d_linear_layer_in_multiply_adds():
    report = cost(nn.Linear(784, 512), (1, 784), latency=False)
    assert report.multiply_adds == 401_408
    assert report.operations == 802_816


def test_e_the_iterative_part_doubles_exactly():
    none, six, twelve = (count(Factorisation(16, 4, steps), (2, 16, 100)).multiply_adds for steps in (0, 6, 12))
    assert twelve - none == 2 * (six - none)
    c, r, n = 16, 4, 100
    step = 2 * c * r * n + c * r * r + r * r * n + r * n * r + c * r * r
    assert six - none == 2 * 6 * step


def test_f_recurrence():
    report = cost(nn.LSTM(24, 32), (10, 3, 24), latency=False)
    assert report.multiply_adds == 10 * 3 * 4 * 32 * (24 + 32)
    assert not report.lower_bound


@pytest.mark.parametrize("shape", [(1, 8, 16, 16), (2, 3, 12, 20)])
def test_g_fourier_mixer(shape):
    report = cost(FourierMixer(), shape, latency=False)
    assert report.multiply_adds == FourierMixer.closed_form(*shape) > 0
    assert not report.lower_bound


def test_an_uncounted_operation_is_listed_and_marks_a_lower_bound():
    report = cost(lambda x: torch.linalg.matrix_exp(x @ x.mT), (4, 6), latency=False)
    assert report.uncounted == ("aten.linalg_matrix_exp",)
    assert report.lower_bound
    assert report.as_dict()["lower_bound"] is True
    assert report.multiply_adds == 4 * 4 * 6


def test_every_figure_names_its_unit():
    plain = cost(nn.Linear(4, 4), (1, 4), backward=True, latency=False).as_dict()
    figures = [
        key for key, value in plain.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    assert {"parameters", "multiply_adds", "operations", "activation_memory_training"} <= set(figures)
    for figure in figures:
        assert any(figure.startswith(unit) for unit in plain["units"]), figure


@pytest.mark.parametrize("size", [8, 32])
def test_doubling_the_sides(size):
    def mixing(module, side):
        return count(module, (1, 16, side, side)).multiply_adds

    assert mixing(Attention(), 2 * size) == 16 * mixing(Attention(), size)
    assert mixing(LinearAttention(), 2 * size) == 4 * mixing(LinearAttention(), size)
