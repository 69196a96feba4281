# SPDX-License-Identifier: Apache-2.0
"""Weights of others in our networks of tokens: timm's own models, files, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from widefield.models.tokens import RepMLPNet, TokenClassifier, create_classifier, load_weights
from widefield.weights import load_reference, reference_names

SMALL: dict[str, Any] = {"image_size": 32, "patch": 8, "width": 16, "depth": 2}
# timm's class, its options, and our options for the same network
THEIRS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("vision_transformer", "VisionTransformer", {"num_heads": 2}, {"mixer_options": {"heads": 2}}),
    "vit without bias, with scale": (
        "vision_transformer", "VisionTransformer", {"num_heads": 4, "qkv_bias": False, "init_values": 0.1},
        {"mixer_options": {"heads": 4, "qkv_bias": False, "scale": 0.1}},
    ),
    "vit, average": (
        "vision_transformer", "VisionTransformer",
        {"num_heads": 2, "global_pool": "avg", "class_token": False},
        {"mixer_options": {"heads": 2}, "prefix_tokens": 0, "norm_after_pool": True},
    ),
    "distilled": (
        "deit", "VisionTransformerDistilled", {"num_heads": 2},
        {"mixer_options": {"heads": 2}, "prefix_tokens": 2},
    ),
    "mixer": ("mlp_mixer", "MlpMixer", {}, {"mixer": "mlp-mixer"}),
    "mixer, other hidden widths": (
        "mlp_mixer", "MlpMixer", {"mlp_ratio": (0.25, 2.0)},
        {"mixer": "mlp-mixer", "mixer_options": {"hidden_tokens": 4, "hidden": 32}},
    ),
}  # fmt: skip
NAMED = {
    "resmlp-12": "resmlp_12_224",
    "gmlp-ti16": "gmlp_ti16_224",
    "mixer-s32": "mixer_s32_224",
    "vit-tiny": "vit_tiny_patch16_224",
    "deit-tiny-distilled": "deit_tiny_distilled_patch16_224",
}


def shaken(model: nn.Module) -> nn.Module:
    """Every parameter away from where it starts, so that none can hide."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.1)
    return model.eval()


def images(edge: int, *, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(2, 3, edge, edge, generator=torch.Generator().manual_seed(1), dtype=dtype)


def timms(name: str) -> nn.Module:
    module, kind, options, _ = THEIRS[name]
    models = pytest.importorskip(f"timm.models.{module}")
    depth = "num_blocks" if module == "mlp_mixer" else "depth"
    build = getattr(models, kind)
    model = build(img_size=32, patch_size=8, embed_dim=16, num_classes=5, **{depth: 2}, **options)
    return shaken(model).double()


def ours(options: Mapping[str, Any]) -> TokenClassifier:
    return TokenClassifier(5, **{**SMALL, **options}).double().eval()


@pytest.mark.parametrize("name", THEIRS)
def test_timms_models_say_the_same_with_their_weights_here(name):
    theirs, model = timms(name), ours(THEIRS[name][-1])
    load_reference(model, theirs.state_dict(), source="timm")
    x = images(32)
    torch.testing.assert_close(model(x), theirs(x), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(model.forward_features(x), theirs.forward_features(x), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", NAMED)
def test_the_published_sizes_are_timms(name):
    timm = pytest.importorskip("timm")
    theirs = timm.create_model(NAMED[name], num_classes=5)
    theirs.blocks = theirs.blocks[:2]  # the others are the same again
    theirs = shaken(theirs).double()
    model = create_classifier(name, 5, depth=2).double().eval()
    load_reference(model, theirs.state_dict(), source="timm")
    x = images(224)
    torch.testing.assert_close(model(x), theirs(x), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("form", ["safetensors", "pth", "parallel"])
def test_a_file_in_timms_names(form, tmp_path):
    theirs, model = timms("mixer"), ours(THEIRS["mixer"][-1])
    state = theirs.state_dict()
    if form == "safetensors":
        path = tmp_path / "w.safetensors"
        pytest.importorskip("safetensors.torch").save_file(state, path)
    else:
        path = tmp_path / "w.pth"
        torch.save({f"module.{k}": v for k, v in state.items()} if form == "parallel" else state, path)
    assert load_weights(model, path) == "timm"
    torch.testing.assert_close(model(images(32)), theirs(images(32)), atol=1e-9, rtol=1e-9)


NETWORKS = {
    "vit": lambda: TokenClassifier(5, **SMALL),
    "distilled": lambda: TokenClassifier(5, prefix_tokens=2, **SMALL),
    "ff-only": lambda: TokenClassifier(5, mixer="ff-only", **SMALL),
    "hamburger": lambda: TokenClassifier(5, mixer="hamburger-nmf", **SMALL),
    "repmlpnet": lambda: RepMLPNet(5, channels=(4, 8), blocks=(1, 1), partitions=(4, 2), sharesets=(1, 2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_of_our_own_and_back(name, tmp_path):
    one, two = shaken(NETWORKS[name]()), NETWORKS[name]().eval()
    torch.save(one.state_dict(), tmp_path / "own.pth")
    assert load_weights(two, tmp_path / "own.pth") == "widefield"
    x = images(32, dtype=torch.float32)
    assert torch.equal(one(x), two(x))


@pytest.mark.parametrize(
    ("name", "source"), [("ff-only", "ff-only"), ("repmlpnet", "repmlp"), ("distilled", "deit")]
)
def test_published_names_go_there_and_back(name, source, tmp_path):
    one, two = shaken(NETWORKS[name]()), NETWORKS[name]().eval()
    own = one.state_dict()
    state = {theirs: own[mine].clone() for theirs, mine in reference_names(one, source).items()}
    assert len(state) == len(own)
    torch.save(state, tmp_path / "w.pth")
    assert load_weights(two, tmp_path / "w.pth") == (
        "timm" if source == "deit" else source
    )  # a DeiT has the same names in both
    x = images(32, dtype=torch.float32)
    assert torch.equal(one(x), two(x))


def test_published_names_of_a_resmlp():
    """The authors' names differ from timm's; the layout is the same."""
    model = TokenClassifier(5, mixer="resmlp", **SMALL)
    names = reference_names(model, "deit")
    assert {"patch_embed.proj.weight", "blocks.0.norm1.alpha", "blocks.0.attn.weight", "blocks.1.gamma_1"} <= set(
        names
    )
    assert {"blocks.0.mlp.fc1.bias", "norm.beta", "head.weight"} <= set(names)


def test_weights_for_another_image_size_are_loaded_and_then_resized(tmp_path):
    one = shaken(TokenClassifier(5, mixer="mlp-mixer", **SMALL))
    torch.save(one.state_dict(), tmp_path / "w.pth")
    two = TokenClassifier(5, mixer="mlp-mixer", **{**SMALL, "image_size": 64})
    with pytest.raises(ValueError, match="another size"):
        load_weights(two, tmp_path / "w.pth")
    three = TokenClassifier(5, mixer="mlp-mixer", **SMALL).eval()
    load_weights(three, tmp_path / "w.pth")
    assert three.resize(64)(images(64, dtype=torch.float32)).shape == (2, 5)


def test_what_does_not_fit_changes_nothing(tmp_path):
    model = TokenClassifier(5, **SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    deeper = TokenClassifier(5, **{**SMALL, "depth": 3})
    own = deeper.state_dict()
    torch.save({t: own[o] for t, o in reference_names(deeper, "timm").items()}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"nearest is 'timm'.*blocks\.2"):
        load_weights(model, tmp_path / "w.pth")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(ValueError, match=r"text\.pth"):
        load_weights(model, tmp_path / "text.pth")
    with pytest.raises(FileNotFoundError):
        load_weights(model, tmp_path / "absent.pth")
    with pytest.raises(ValueError, match="no published naming"):
        load_weights(TokenClassifier(5, mixer="hamburger-nmf", **SMALL), tmp_path / "w.pth")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
