# SPDX-License-Identifier: Apache-2.0
"""Families of networks in any size: parameters by closed form or by timm, and one output for a sample."""

import pytest
import timm
import torch

from widefield.models.sized import create_sized
from widefield.models.tokens import TokenClassifier


def parameters(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "options", "expected"),
    [
        ("mlp", (64,), {"width": 3}, 65 * 3 + 4 * 10),
        ("mlp", (1, 8, 8), {"width": 6}, 65 * 6 + 7 * 10),
        ("mlp", (8,), {"width": 8, "depth": 2}, 9 * 8 + 9 * 8 + 9 * 10),
        ("mlp", (8,), {"depth": 0}, 9 * 10),
        ("cnn", (1, 8, 8), {"width": 1}, 10 + 10 + 17 * 10),
        ("cnn", (1, 8, 8), {"width": 2}, 2 * 10 + 2 * 19 + 33 * 10),
        ("cnn", (3, 7, 5), {"width": 4, "depth": 3}, 4 * 28 + 4 * 37 + 4 * 37 + (4 * 4 * 3 + 1) * 10),
    ],
)
def test_parameters_by_closed_form(name, shape, options, expected):
    network = create_sized(name, shape, 10, **options)
    assert parameters(network) == expected
    assert network(torch.zeros(2, *shape)).shape == (2, 10)


def test_efficientnet_at_full_scale_is_timms():
    ours = create_sized("efficientnet", (3, 224, 224), 10, width=1.0, depth=1.0)
    theirs = timm.create_model("efficientnet_b0", num_classes=10)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }


def test_resnet_at_full_scale_is_timms():
    ours = create_sized("resnet", (3, 224, 224), 10, width=64, depth=2)
    assert parameters(ours) == parameters(timm.create_model("resnet18", num_classes=10))


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet", {"width": 4}), ("efficientnet", {}), ("vit", {"width": 8}), ("vit", {"mixer": "mlp-mixer"}),
     ("vit", {"width": 16, "mixer": "hamburger-nmf"}), ("ff-only-tiny", {"patch": 2, "width": 12, "depth": 1}),
     ("timm:resnet10t", {})],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 16)])
def test_small_pictures(name, options, shape):
    network = create_sized(name, shape, 7, **options).eval()
    assert network(torch.zeros(2, *shape)).shape == (2, 7)


def test_wider_and_deeper_is_larger():
    for name, shape in (("mlp", (5,)), ("cnn", (1, 8, 8)), ("resnet", (1, 8, 8)), ("vit", (1, 8, 8))):
        sizes = [parameters(create_sized(name, shape, 3, **o)) for o in
                 ({"width": 8, "depth": 1}, {"width": 16, "depth": 1}, {"width": 16, "depth": 2})]  # fmt: skip
        assert sizes == sorted(set(sizes))
    assert isinstance(create_sized("vit", (1, 8, 8), 3), TokenClassifier)


def test_the_activation_is_the_one_asked_for():
    x = torch.randn(4, 5)
    torch.manual_seed(0)
    linear = create_sized("mlp", (5,), 3, activation="identity")
    sum_of = linear(x) + linear(-x)
    torch.testing.assert_close(sum_of, 2 * linear(torch.zeros(4, 5)))
    torch.manual_seed(0)
    assert not torch.allclose(create_sized("mlp", (5,), 3, activation="relu")(x), linear(x))


@pytest.mark.parametrize(
    ("name", "shape", "options", "match"),
    [
        ("mpl", (5,), {}, "mlp"),
        ("cnn", (5,), {}, "use mlp"),
        ("mlp", (5,), {"widht": 3}, "width"),
        ("mlp", (5,), {"width": 0}, "positive"),
        ("mlp", (5,), {"activation": "rellu"}, "relu"),
        ("timm:nothing", (3, 8, 8), {}, "timm cannot build"),
        ("vit", (1, 8, 8), {"mixer": "atention"}, "attention"),
    ],
)
def test_what_cannot_be_built(name, shape, options, match):
    with pytest.raises(ValueError, match=match):
        create_sized(name, shape, 3, **options)
