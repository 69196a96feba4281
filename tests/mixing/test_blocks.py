# SPDX-License-Identifier: Apache-2.0
"""Token mixers: what a permutation does to them, what they cost, how they are resized, what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from widefield import UnknownName, UnknownOption
from widefield.measure import count
from widefield.mixing import (
    FeatureAttention,
    MixerBlock,
    Residual,
    SelfAttention,
    SpatialGating,
    TokenFeedForward,
    TokenLinear,
    TokenMixing,
    create_block,
    list_mixers,
    mixer_entry,
)
from widefield.mixing.resampling import interpolation

WIDTH, TOKENS = 16, 12
ANY_SIZE = ["attention", "attention-only-plain"]


def block(name: str, width: int = WIDTH, tokens: int = TOKENS, **options) -> nn.Module:
    """With weights that are not small, so that every branch counts."""
    torch.manual_seed(0)
    module = create_block(name, width, tokens, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def tokens(b: int = 2, n: int = TOKENS, d: int = WIDTH, seed: int = 1, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(b, n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_facts_are_true():
    assert [name for name in list_mixers() if not mixer_entry(name).fixed_size] == ANY_SIZE
    for name in list_mixers():
        module = block(name)
        assert module(tokens()).shape == (2, TOKENS, WIDTH)
        if mixer_entry(name).fixed_size:
            with pytest.raises(ValueError, match=r"12 tokens.*resize"):
                module(tokens(n=9))
        else:
            assert module(tokens(n=9)).shape == (2, 9, WIDTH)


@pytest.mark.parametrize("name", list_mixers())
def test_only_attention_over_tokens_follows_a_permutation(name):
    module, x = block(name).double(), tokens(dtype=torch.float64)
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    follows = torch.allclose(module(x[:, order]), module(x)[:, order], atol=1e-9)
    assert follows == (name in ANY_SIZE)


def test_a_permutation_goes_into_the_weights_of_a_mixer_without_a_trace():
    module, x = block("mlp-mixer").double(), tokens(dtype=torch.float64)
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    moved = block("mlp-mixer").double()
    mixing = moved.token.branch.map
    with torch.no_grad():
        mixing.enter.weight.copy_(mixing.enter.weight[:, order])
        mixing.leave.weight.copy_(mixing.leave.weight[order])
        mixing.leave.bias.copy_(mixing.leave.bias[order])
    torch.testing.assert_close(moved(x[:, order]), module(x)[:, order])


@pytest.mark.parametrize("name", list_mixers())
def test_stated_cost_is_the_counted_one(name):
    for n, width in ((12, 16), (10, 24)):
        module = create_block(name, width, n)
        assert count(module, (2, n, width)).multiply_adds == 2 * module.multiply_adds(n)


def test_closed_forms_of_the_papers():
    n, d = 10, 24
    forms = {
        "attention": 4 * n * d * d + 2 * n * n * d + 8 * n * d * d,
        "ff-only": 8 * n * d * d + 8 * n * n * d,
        "mlp-mixer": 2 * n * d * (d // 2) + 2 * n * d * 4 * d,
        "attention-only": 4 * n * d * d + 2 * n * n * d + 4 * d * n * n + 2 * d * d * n,
        "resmlp": n * n * d + 8 * n * d * d,
        "gmlp": 6 * n * d * d + 3 * n * n * d + 3 * n * d * d,
    }
    for name, expected in forms.items():
        assert count(create_block(name, d, n), (1, n, d)).multiply_adds == expected, name


@pytest.mark.parametrize(("name", "low", "high"), [("mlp-mixer", 0.999, 1.001), ("ff-only", 1.9, 2.001)])
def test_growth_in_the_number_of_tokens(name, low, high):
    """Mixer's token map has a width apart from n and is linear; feed-forward only is quadratic where n leads."""
    sizes = (4096, 16384)
    costs = [_cost(name, n) for n in sizes]
    slope = math.log(costs[1] / costs[0]) / math.log(sizes[1] / sizes[0])
    assert low < slope < high


def _cost(name: str, n: int) -> int:
    with torch.device("meta"):
        module = create_block(name, 64, n)
    return count(module, (1, n, 64)).multiply_adds


def test_attention_is_the_written_out_equation():
    torch.manual_seed(0)
    module, x = SelfAttention(12, 3).double(), tokens(2, 7, 12, dtype=torch.float64)
    weight, bias = module.qkv.weight, module.qkv.bias
    out = []
    for head in range(3):
        rows = slice(4 * head, 4 * head + 4)
        q, k, v = (x @ weight[s * 12 :][rows].T + bias[s * 12 :][rows] for s in range(3))
        out.append(torch.softmax(q @ k.mT / 2, -1) @ v)
    expected = torch.cat(out, -1) @ module.project.weight.T + module.project.bias
    torch.testing.assert_close(module(x), expected)
    rows = module.operator(x)
    assert rows.shape == (2, 3, 7, 7)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 7, dtype=torch.float64))


def test_the_gate_of_gmlp_starts_open():
    torch.manual_seed(0)
    module, x = SpatialGating(8, 6), tokens(2, 6, 8)
    u = F.gelu(module.enter(x)).chunk(2, -1)[0]
    torch.testing.assert_close(module(x), module.leave(u), atol=1e-4, rtol=1e-4)


def test_hidden_width_of_the_token_map_comes_from_what_the_paper_says():
    """Mixer: half the width; feed-forward only: four times the tokens."""
    assert create_block("mlp-mixer", 32, 10).token.branch.hidden == 16
    assert create_block("ff-only", 32, 10).token.branch.map.enter.out_features == 40


MAPS = {
    "mixing": lambda n: TokenMixing(n, 7),
    "linear": TokenLinear,
    "norm and map": TokenFeedForward,
    "features": FeatureAttention,
}


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_a_resized_mixer_interpolates_maps_and_interpolates_back(kind, prefix):
    torch.manual_seed(0)
    old, new = (3, 4), (6, 5)
    module = MAPS[kind](prefix + 12).double()
    same = module.resize(old, old, prefix=prefix)
    x = tokens(2, prefix + 12, 5, dtype=torch.float64)
    torch.testing.assert_close(same(x), module(x))
    larger = module.resize(old, new, prefix=prefix)
    assert larger(tokens(2, prefix + 30, 5, dtype=torch.float64)).shape == (2, prefix + 30, 5)
    assert module.tokens == prefix + 12
    if kind in ("mixing", "linear"):
        y = tokens(2, prefix + 30, 5, dtype=torch.float64)
        there, back = interpolation(old, new, prefix), interpolation(new, old, prefix)
        torch.testing.assert_close(larger(y), there @ module(back @ y))
    with pytest.raises(ValueError, match="make"):
        module.resize((5, 5), new, prefix=prefix)


def test_feature_attention_keeps_its_logits_on_a_doubled_grid():
    """Tokens that do not vary: their products are sums of equal terms, so only the scaling can go wrong."""
    torch.manual_seed(0)
    module = FeatureAttention(16).double()
    with torch.no_grad():
        # No norm in the way: constant tokens would have no variance.
        module.norm.weight.zero_()
        module.norm.bias.copy_(torch.ones(16))
        module.attention.qkv.weight.fill_(0.3)
    larger = module.resize((4, 4), (8, 8))
    x, y = tokens(1, 16, 3, dtype=torch.float64), tokens(1, 64, 3, dtype=torch.float64)
    small, big = (m.attention.operator(m.norm(z.mT)) for m, z in ((module, x), (larger, y)))
    torch.testing.assert_close(small, big)
    q, k, _ = module.attention.qkv(module.norm(x.mT)).chunk(3, -1)
    wide_q, wide_k, _ = larger.attention.qkv(larger.norm(y.mT)).chunk(3, -1)
    torch.testing.assert_close((q @ k.mT) / 4, (wide_q @ wide_k.mT) / 8)
    with pytest.raises(ValueError, match="heads=1"):
        FeatureAttention(16, heads=2).resize((4, 4), (8, 8))


def test_interpolation_is_torchs_and_rows_sum_to_one():
    for old, new in [((3, 4), (6, 5)), ((8, 8), (3, 2)), ((1, 1), (2, 2))]:
        matrix = interpolation(old, new, 1)
        torch.testing.assert_close(matrix.sum(1), torch.ones(len(matrix), dtype=torch.float64))
        x = torch.randn(1, 2, *old, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        expected = F.interpolate(x, new, mode="bilinear", antialias=True).flatten(2)
        torch.testing.assert_close((matrix[1:, 1:] @ x.flatten(2).mT).mT, expected)
        assert matrix[0, 0] == 1
        assert (matrix[1:, 1:] > 0).any(0).all() or new > old  # every old token is heard


def test_stochastic_depth_keeps_the_mean_and_drops_whole_samples():
    branch = Residual(nn.Identity(), nn.Identity(), 4, drop_path=0.25).train()
    torch.manual_seed(0)
    y = branch(torch.ones(20000, 2, 4)) - 1
    kept = y[:, 0, 0]
    assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(y, kept[:, None, None].expand_as(y))
    assert y.mean().item() == pytest.approx(1, abs=4 * (1 / 3 / 20000) ** 0.5)
    assert torch.equal(branch.eval()(torch.ones(3, 2, 4)), torch.full((3, 2, 4), 2.0))


@pytest.mark.parametrize("name", list_mixers())
def test_layouts_batches_dead_input_and_gradients(name):
    module = block(name)
    x = tokens(3)
    with torch.no_grad():
        y = module(x)
        torch.testing.assert_close(module(x.mT.contiguous().mT), y)
        torch.testing.assert_close(module(x[1:2]), y[1:2], atol=1e-5, rtol=1e-5)
        assert torch.equal(module(x), y)
        for dead in (torch.zeros_like(x), torch.full_like(x, 1e4), torch.ones_like(x)):
            assert torch.isfinite(module(dead)).all()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(module(x).float(), y, atol=0.3, rtol=0.1)
    small = block(name, 4, 3).double()
    assert torch.autograd.gradcheck(small, (tokens(1, 3, 4, dtype=torch.float64).requires_grad_(),))
    module.train()(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


@pytest.mark.parametrize("name", list_mixers())
def test_compile_and_export(name):
    module, x = block(name), tokens(3)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), module(x))
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.testing.assert_close(program.module()(tokens(5)), module(tokens(5)))


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: create_block("mlp-mixr", 8, 4), UnknownName, "Did you mean 'mlp-mixer'"),
        (lambda: create_block("mlp-mixer", 8, 4, heads=2), UnknownOption, "option of mlp-mixer 'heads'"),
        (lambda: create_block("attention", 8, 4, heads=3), ValueError, "3 heads do not divide the width 8"),
        (lambda: MixerBlock(8, 0), ValueError, "tokens must be a positive integer"),
        (lambda: create_block("gmlp", 8, 4, hidden=5), ValueError, "even"),
        (lambda: create_block("attention", 8, 4, drop_path=1.0), ValueError, "drop_path"),
        (lambda: create_block("attention", 8, 4)(torch.zeros(1, 4, 6)), ValueError, r"\(b, n, 8\)"),
    ],
)
def test_bad_input_is_one_clear_error(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()
