# SPDX-License-Identifier: Apache-2.0
"""The classifier of tokens: its promises under every mixer, and what its parts say."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import widefield
from widefield import UnknownName, UnknownOption
from widefield.core.registry import entry
from widefield.measure import count
from widefield.mixing import TokenLinear, list_mixers, mixer_entry
from widefield.models.tokens import TokenClassifier
from widefield.models.tokens.positions import PositionTable, at
from widefield.testing.graphs import onnx_session

MIXERS = list_mixers()
CONTEXTS = widefield.list_modules()
SMALL = {"image_size": (16, 24), "patch": 4, "width": 16, "depth": 2}


def images(b: int = 3, h: int = 16, w: int = 24, *, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(b, 3, h, w, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def small(mixer="attention", **options) -> TokenClassifier:
    """With weights that are not small, so that every branch and the head count."""
    torch.manual_seed(0)
    model = TokenClassifier(5, mixer=mixer, **{**SMALL, **options})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".context." not in name:
                parameter.normal_(std=0.2)
    return model.eval()


@pytest.mark.parametrize("mixer", MIXERS)
def test_promises(mixer):
    model = small(mixer)
    x = images()
    before, kept = torch.get_rng_state(), x.clone()
    with torch.no_grad():
        y = model(x)
        assert y.shape == (3, 5)
        assert torch.equal(model(x), y)
        for i in range(3):
            torch.testing.assert_close(model(x[i : i + 1]), y[i : i + 1], atol=1e-5, rtol=1e-5)
        for other in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT, x.expand(3, -1, -1, -1)):
            torch.testing.assert_close(model(other), y, atol=1e-5, rtol=1e-5)
        for extreme in (0 * x, torch.ones_like(x), 1e4 * x, 1e-30 * x):
            assert torch.isfinite(model(extreme)).all()
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x)
        assert (half.float() - y).norm() < 0.1 * y.norm()
        assert model.double()(x.double()).dtype == torch.float64
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("training", [True, False])
def test_every_parameter_of_every_block_learns(mixer, training):
    model = small(mixer, prefix_tokens=2 if mixer_entry(mixer).prefix_tokens else 0).train(training)
    if model.prefix_tokens:
        model.set_distilled_training()
    logits = model(images())
    loss = sum(part.square().sum() for part in (logits if isinstance(logits, tuple) else (logits,)))
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("mixer", MIXERS)
def test_compile_export_and_checkpointing(mixer):
    model, x = small(mixer), images()
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.testing.assert_close(program.module()(images(5, seed=1)), model(images(5, seed=1)))
    again = small(mixer)
    again.set_grad_checkpointing()
    for net in (model, again):
        net.train()(x).square().sum().backward()
    for (name, a), (_, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


@pytest.mark.parametrize("mixer", ["attention", "mlp-mixer"])
def test_onnx(mixer):
    model, x = small(mixer, depth=1), images(2)
    session = onnx_session(torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)))
    x = images(4, seed=3)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mixer", MIXERS)
def test_other_sizes(mixer):
    model = small(mixer)
    other = images(2, 12, 20)
    if mixer_entry(mixer).fixed_size:
        with pytest.raises(ValueError, match=r"16 x 24, got 12 x 20; use resize\(\(12, 20\)\)"):
            model(other)
    else:
        assert model(other).shape == (2, 5)
    resized = model.resize((12, 20))
    assert resized.grid == (3, 5)
    assert resized(other).shape == (2, 5)
    assert model.grid == (4, 6)
    torch.testing.assert_close(model.resize((16, 24))(images()), model(images()), atol=1e-4, rtol=1e-4)
    if not mixer_entry(mixer).fixed_size:
        torch.testing.assert_close(resized(other), model(other))


def test_a_smooth_image_keeps_its_class_when_a_mixer_is_resized():
    """Weights that are smooth themselves; of noise nothing could be kept."""
    model = small("resmlp", image_size=32, depth=1).double()
    linear = model.blocks[0].token.branch.linear
    place = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"), -1).reshape(64, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.exp(-torch.cdist(place, place) / 4) / 64)
        linear.bias.zero_()
    coarse = images(2, 2, 2, dtype=torch.float64)
    low, high = (F.interpolate(coarse, (s, s), mode="nearest") for s in (32, 64))
    torch.testing.assert_close(model.resize(64)(high), model(low), atol=0.03, rtol=0.05)


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_context_module_is_a_mixer(context):
    model = small(context, width=16)
    assert model.prefix_tokens == 0
    x = images(2)
    with torch.no_grad():
        y = model(x)
        assert y.shape == (2, 5)
        assert torch.isfinite(y).all()
        torch.testing.assert_close(model(x[:1]), y[:1], atol=1e-3, rtol=1e-3)
        strided = model(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(strided, y, atol=1e-3, rtol=1e-3)
    assert model.cost((2, 3, 16, 24)).parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    model.train()(x).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    fixed = entry(context).facts.fixed_size
    if fixed:
        with pytest.raises(ValueError, match="tied"):
            model.resize((12, 20))
    else:
        assert model.eval()(images(2, 12, 20)).shape == (2, 5)


def test_a_context_module_acts_on_the_map_of_the_patches():
    """`x + C(LN(x)) - LN(x)`, then the two-layer map, by hand."""
    model = small("nonlocal", depth=1)
    x = images()
    tokens, space = model.enter(x)
    assert space == (4, 6)
    block = model.blocks[0]
    u = block.token.norm(tokens)
    c = block.token.branch.context(u.mT.reshape(3, 16, 4, 6)).flatten(2).mT
    y = tokens + c - u
    y = y + block.channel.branch(block.channel.norm(y))
    torch.testing.assert_close(model(x), model.head(model.norm(y).mean(1)), atol=1e-5, rtol=1e-5)
    # The position of a patch on the map: the token in row 1, column 2 is number 8.
    patch = F.conv2d(x[:, :, 4:8, 8:12], model.embed.weight, model.embed.bias)[..., 0, 0]
    torch.testing.assert_close(tokens[:, 8], patch + model.positions.table[:, 8])


def test_no_context_is_no_mixing():
    """With "none" a patch hears of no other."""
    model = small("none")
    x = images(1)
    moved = x.clone()
    moved[:, :, :4, :4] += 1
    one, two = model.forward_features(x), model.forward_features(moved)
    assert not torch.allclose(one[:, 0], two[:, 0])
    torch.testing.assert_close(one[:, 1:], two[:, 1:])


def test_anybodys_mixer():
    model = small(lambda width, tokens: TokenLinear(tokens))
    assert isinstance(model.blocks[0].token.branch, TokenLinear)
    assert model(images()).shape == (3, 5)
    assert model.resize((8, 8))(images(1, 8, 8)).shape == (1, 5)
    model = small(lambda width, tokens: nn.Linear(width, width), prefix_tokens=1)
    assert model(images()).shape == (3, 5)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_fixed_permutation_of_the_patches(mixer):
    """A network without positions and of equivariant mixers does not see it. Mixer sees it, but for a permutation
    that goes into its token weights without a trace."""
    model = small(mixer, prefix_tokens=0, positions="none").double()
    x = images(dtype=torch.float64)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    shuffled = F.fold(F.unfold(x, 4, stride=4)[:, :, order], (16, 24), 4, stride=4)
    same = torch.allclose(model(shuffled), model(x), atol=1e-10)
    assert same == (not mixer_entry(mixer).fixed_size)
    if mixer == "mlp-mixer":
        with torch.no_grad():
            for block in model.blocks:
                mixing = block.token.branch.map
                mixing.enter.weight.copy_(mixing.enter.weight[:, order])
                mixing.leave.weight.copy_(mixing.leave.weight[order])
                mixing.leave.bias.copy_(mixing.leave.bias[order])
        moved = model(shuffled)
        torch.testing.assert_close(moved, small(mixer).double()(x))


def test_a_head_that_starts_at_zero_calls_all_classes_equal():
    for mixer in MIXERS:
        logits = TokenClassifier(7, mixer=mixer, **SMALL)(images())
        equal = torch.equal(logits, logits[:, :1].expand_as(logits))
        assert equal == mixer_entry(mixer).zero_head, mixer
    assert [mixer for mixer in MIXERS if mixer_entry(mixer).zero_head] == ["gmlp", "mlp-mixer", "resmlp"]


@pytest.mark.parametrize("mixer", ["attention", "mlp-mixer", "none", "hamburger-nmf"])
def test_stated_cost_is_the_counted_one(mixer):
    model = small(mixer)
    stated = model.cost((2, 3, 16, 24)).multiply_adds
    counted = count(model, (2, 3, 16, 24)).multiply_adds
    if mixer == "hamburger-nmf":  # context modules state theirs to a few percent
        assert stated == pytest.approx(counted, rel=0.05)
    else:
        assert stated == counted


def test_the_distilled_network():
    model = small(prefix_tokens=2)
    tokens = model.forward_features(images())
    one, two = model.head(tokens[:, 0]), model.distilled_head(tokens[:, 1])
    torch.testing.assert_close(model(images()), (one + two) / 2)
    model.train()
    torch.testing.assert_close(model(images()), (one + two) / 2)
    model.set_distilled_training()
    apart = model(images())
    torch.testing.assert_close(apart[0], one)
    torch.testing.assert_close(apart[1], two)
    assert isinstance(model.eval()(images()), torch.Tensor)
    pooled = model.forward_head(tokens, pre_logits=True)
    torch.testing.assert_close(pooled, (tokens[:, 0] + tokens[:, 1]) / 2)
    with pytest.raises(ValueError, match="prefix_tokens=2"):
        small().set_distilled_training()


def test_verbs():
    model = small("mlp-mixer")
    x = images()
    features = model.forward_features(x)
    torch.testing.assert_close(model.forward_head(features), model(x))
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), features.mean(1))
    final, maps = model.forward_intermediates(x)
    assert [tuple(m.shape) for m in maps] == [(3, 16, 4, 6)] * 2
    torch.testing.assert_close(final, features)
    torch.testing.assert_close(model.norm(maps[-1].flatten(2).mT), features)
    assert model.get_classifier() is model.head
    model.reset_classifier(9)
    assert model(x).shape == (3, 9)
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), features.mean(1))
    vit = small(prefix_tokens=2)
    free = vit.no_weight_decay()
    assert {"positions.table", "class_token", "distillation_token", "norm.weight", "head.bias"} <= free
    assert all(p.ndim > 1 for name, p in vit.named_parameters() if name not in free)


def test_positions_on_another_grid():
    """A plane stays a plane inside; prefix tokens stay what they are."""
    positions = PositionTable(1, (4, 4), 1)
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    with torch.no_grad():
        positions.table[0, 0, 0] = 100
        positions.table[0, 1:, 0] = (10 * rows + columns).flatten()
    wide = positions((8, 8))[0, :, 0]
    assert wide[0] == 100
    plane = wide[1:].reshape(8, 8)[1:-1, 1:-1]
    centres = (torch.arange(1, 7) + 0.5) / 2 - 0.5
    torch.testing.assert_close(plane, 10 * centres[:, None] + centres)
    torch.testing.assert_close(positions.resize((8, 8))((8, 8))[0, :, 0], wide)
    x = torch.randn(1, 2, 3, 5)
    assert at(x, (3, 5)) is x


def test_stochastic_depth_grows_as_published():
    def rates(mixer: str) -> list[float]:
        return [
            b[0].drop_path for b in TokenClassifier(mixer=mixer, drop_path=0.3, **{**SMALL, "depth": 4}).blocks
        ]

    assert rates("attention") == pytest.approx([0, 0.1, 0.2, 0.3])
    assert rates("mlp-mixer") == [0.3] * 4
    torch.manual_seed(0)
    model = small(drop_path=0.5)
    x = images(1).expand(8, -1, -1, -1)
    assert len({tuple(row) for row in model.train()(x).tolist()}) > 1
    assert len({tuple(row) for row in model.eval()(x).mul(1e4).round().tolist()}) == 1


def test_state_is_made_in_the_constructor_and_travels():
    for mixer in MIXERS:
        model = TokenClassifier(5, mixer=mixer, device="meta", **SMALL)
        assert all(t.is_meta for t in model.state_dict().values())
        names = list(model.state_dict())
        model(torch.empty(1, 3, 16, 24, device="meta"))
        assert list(model.state_dict()) == names
        other = TokenClassifier(5, mixer=mixer, **SMALL).eval()
        known = small(mixer)
        other.load_state_dict(known.state_dict())
        assert torch.equal(other(images()), known(images()))
    assert TokenClassifier(5, dtype=torch.float64, **SMALL).embed.weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: small("atention"), UnknownName, "Did you mean 'attention'"),
        (lambda: small("hamburger-nfm"), UnknownName, "Did you mean 'hamburger-nmf'"),
        (lambda: small(mixer_options={"headz": 2}), UnknownOption, "Did you mean 'heads'"),
        (lambda: small("nonlocal", mixer_options={"headz": 2}), UnknownOption, "headz"),
        (lambda: small("nonlocal", prefix_tokens=1), ValueError, "mean"),
        (lambda: small(patch=5), ValueError, "multiples of the patch, 5"),
        (lambda: small(image_size=(16, 24, 8)), ValueError, "multiples of the patch"),
        (lambda: small(prefix_tokens=3), ValueError, "0, 1 or 2"),
        (lambda: small(prefix_tokens=1, norm_after_pool=True), ValueError, "not pooled"),
        (lambda: small(positions="sine"), UnknownName, "positions"),
        (lambda: small(depth=0), ValueError, "depth must be a positive integer"),
        (lambda: small(drop_path=1.0), ValueError, "drop_path"),
        (lambda: small(lambda w, n: nn.Identity(), mixer_options={"a": 1}), ValueError, "mixer_options"),
        (lambda: TokenClassifier(-1, **SMALL), ValueError, "num_classes"),
        (lambda: small()(images(1, 15, 24)), ValueError, "multiples of the patch, 4"),
        (lambda: small()(torch.zeros(1, 4, 16, 24)), ValueError, r"\(b, 3, h, w\)"),
        (lambda: small()(torch.zeros(3, 16, 24)), ValueError, r"\(b, 3, h, w\)"),
        (lambda: small()(torch.zeros(0, 3, 16, 24)), ValueError, "at least one image"),
        (lambda: small()(torch.zeros(1, 3, 16, 24, dtype=torch.uint8)), TypeError, "float"),
        (lambda: small().resize(15), ValueError, "multiples of the patch"),
    ],
)
def test_bad_input_is_one_clear_error(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()
