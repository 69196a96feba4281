# SPDX-License-Identifier: Apache-2.0
"""The segmenter and its plain backbone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from widefield import UnknownName, UnknownOption
from widefield.models import Segmenter, plain_backbone


def pictures(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Mean(nn.Module):
    """A context with more channels out than in: the map and its mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = 2 * channels
        self.table = nn.Parameter(torch.zeros(3, channels))

    def forward(self, x):
        return torch.cat([x, x.mean((2, 3), keepdim=True).expand_as(x)], 1)

    def no_weight_decay(self):
        return {"table"}


@pytest.mark.parametrize("size", [(48, 48), (47, 33), (9, 30), (1, 1), (2, 5)])
@pytest.mark.parametrize("training", [True, False])
def test_logits_have_the_size_of_the_picture(size, training):
    model = Segmenter("plain", "none", 3).train(training)
    x = pictures(1, 3, *size)
    assert model(x).shape == (1, 3, *size)
    assert model.forward_features(x).shape == (1, 64, -(-size[0] // 4), -(-size[1] // 4))


def test_a_timm_backbone_at_odd_sizes():
    model = Segmenter("resnet18", "none", 5, pretrained="none", output_stride=8, width=32).eval()
    assert model(pictures(1, 3, 65, 97)).shape == (1, 5, 65, 97)
    assert model.forward_features(pictures(1, 3, 65, 97)).shape == (1, 32, 9, 13)
    assert "random" in model.weights_note


def test_the_parts_make_the_whole():
    model = Segmenter("plain", Mean(16), 3, width=16).eval()
    x = pictures(2, 3, 20, 28)
    features = model.forward_features(x)
    context = model.forward_context(features)
    assert (features.shape[1], context.shape[1], model.num_features) == (16, 32, 32)
    small = model.forward_head(context)
    expected = F.interpolate(small, size=(20, 28), mode="bilinear", align_corners=False)
    torch.testing.assert_close(model(x), expected)
    assert model.forward_head(context, pre_logits=True) is context
    torch.testing.assert_close(model(x), model(x.float()))


def test_parts_do_not_depend_on_the_context_and_the_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = Segmenter("plain", "none", 3, seed=7)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    two = Segmenter("plain", nn.Conv2d(64, 64, 3, padding=1), 3, seed=7)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, two.get_parameter(name)), name
    other = Segmenter("plain", "none", 3, seed=8)
    assert not torch.equal(one.reduce[0].weight, other.reduce[0].weight)


def test_intermediates():
    model = Segmenter("plain", "none", 3).eval()
    x = pictures(1, 3, 32, 32)
    features, stages = model.forward_intermediates(x)
    torch.testing.assert_close(features, model.forward_features(x))
    assert [tuple(s.shape[1:]) for s in stages] == [(32, 16, 16), (64, 8, 8)]
    only = model.forward_intermediates(x, 1, intermediates_only=True)
    assert len(only) == 1
    torch.testing.assert_close(only[0], stages[1])
    with pytest.raises(ValueError, match=r"stages 0\.\.1"):
        model.forward_intermediates(x, [2])


def test_classifier_is_reset():
    model = Segmenter("plain", "none", 3).double()
    model.reset_classifier(7)
    assert (model.num_classes, model.get_classifier().out_channels) == (7, 7)
    assert model.get_classifier().weight.dtype == torch.float64
    assert model(pictures(1, 3, 8, 8)).shape == (1, 7, 8, 8)
    model.reset_classifier(0)
    assert model(pictures(1, 3, 8, 8)).shape == (1, 64, 8, 8)


def test_a_frozen_backbone_stays_as_it_is():
    model = Segmenter("plain", "none", 3)
    model.freeze_backbone()
    model.train()
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(pictures(2, 3, 16, 16)).square().mean().backward()
    optimizer.step()
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model.reduce.training
    assert all(p.grad is None for p in model.backbone.parameters())


def test_gradient_checkpointing_changes_nothing_but_memory():
    gradients = []
    for enable in (False, True):
        model = Segmenter("plain", "none", 3)
        model.set_grad_checkpointing(enable)
        model(pictures(2, 3, 16, 16)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_no_weight_decay_names_norms_biases_and_what_the_context_names():
    model = Segmenter("plain", Mean(16), 3, width=16)
    named = model.no_weight_decay()
    parameters = dict(model.named_parameters())
    assert named <= parameters.keys()
    assert "context.table" in named
    assert {name for name in parameters if parameters[name].ndim == 1} <= named
    assert not any(parameters[name].ndim == 4 for name in named)


def test_normalisation_is_saved_with_the_weights():
    source = Segmenter("plain", "none", 3)
    source.backbone.mean.fill_(100.0)
    target = Segmenter("plain", "none", 3, seed=1)
    target.load_state_dict(source.state_dict())
    x = pictures(1, 3, 16, 16)
    torch.testing.assert_close(target.eval()(x), source.eval()(x))


@pytest.mark.parametrize(("depth", "stride"), [(1, 4), (2, 4), (3, 4), (2, 2), (2, 8)])
def test_receptive_field_is_what_it_is_said_to_be(depth, stride):
    backbone = plain_backbone(width=4, depth=depth, output_stride=stride).double().eval()
    field = backbone.features.receptive_field
    x = torch.rand(1, 3, 160, 160, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = (255 * x).requires_grad_()
    middle = 80 // stride
    backbone(x)[0, :, middle, middle].sum().backward()
    rows = x.grad[0].abs().sum((0, 2)).nonzero()
    # ReLUs may silence the rim, so the span can be smaller than the field but never larger.
    span = int(rows.max() - rows.min()) + 1
    assert span <= field
    assert span >= field - 2


def test_the_default_field_does_not_cover_a_scene():
    assert plain_backbone().features.receptive_field == 19


def test_what_is_refused():
    with pytest.raises(UnknownName, match="module"):
        Segmenter("plain", "nonne", 3)
    with pytest.raises(UnknownOption):
        Segmenter("plain", "none", 3, context_options={"rank": 3})
    with pytest.raises(ValueError, match="registered name"):
        Segmenter("plain", nn.Identity(), 3, context_options={"rank": 3})
    with pytest.raises(ValueError, match="trained from scratch"):
        Segmenter("plain", "none", 3, pretrained="weights.pth")
    with pytest.raises(ValueError, match="2, 4, 8 or 16"):
        Segmenter("plain", "none", 3, output_stride=32)
    with pytest.raises(ValueError, match="positive"):
        Segmenter("plain", "none", 0)
    with pytest.raises(ValueError, match="leave it out"):
        Segmenter(plain_backbone(), "none", 3, output_stride=8)
