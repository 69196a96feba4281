# SPDX-License-Identifier: Apache-2.0
"""Families of classifiers in any size, scaled by width and by depth: what capacity is measured on.

Shwartz-Ziv et al., arXiv:2406.11463, scale these: multilayer perceptrons, plain convolutional networks, ResNets,
EfficientNets, Vision Transformers. ResNet and EfficientNet are timm's, with their first stride taken out for small
pictures; transformers are `TokenClassifier`, so that any mixer stands in for attention.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from widefield.core.errors import UnknownOption, require_positive, unknown
from widefield.core.extras import require
from widefield.models.tokens import TokenClassifier, create_classifier, list_classifiers

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
# Below this edge a picture is too small for the strides that networks for 224 begin with.
_SMALL = 64


def mlp(
    shape: Sequence[int], outputs: int, *, width: int = 32, depth: int = 1, activation: str = "relu"
) -> nn.Module:
    """`depth` hidden layers of `width` units over all inputs at once; depth 0 is a linear map."""
    layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    before = math.prod(shape)
    for _ in range(depth):
        layers += [nn.Linear(before, width), _activation(activation)]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, outputs))


def cnn(
    shape: Sequence[int], outputs: int, *, width: int = 8, depth: int = 2, activation: str = "relu"
) -> nn.Module:
    """`depth` 3x3 convolutions of `width` channels, every second one with stride 2, and a dense layer."""
    channels, height, size = _picture("cnn", shape)
    layers: list[nn.Module] = []
    for i in range(depth):
        stride = 2 if i % 2 and min(height, size) > 1 else 1
        layers += [nn.Conv2d(width if i else channels, width, 3, stride, 1), _activation(activation)]
        height, size = -(-height // stride), -(-size // stride)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * height * size, outputs))


def resnet(
    shape: Sequence[int], outputs: int, *, width: int = 16, depth: int = 1, activation: str = "relu"
) -> nn.Module:
    """He et al., arXiv:1512.03385: four stages of `depth` basic blocks, `width` channels doubled at each."""
    channels, height, size = _picture("resnet", shape)
    models = require("timm.models.resnet", "models")
    network = models.ResNet(
        models.BasicBlock, (depth,) * 4, num_classes=outputs, in_chans=channels, stem_width=width,
        channels=tuple(width * 2**i for i in range(4)), act_layer=type(_activation(activation)),
    )  # fmt: skip
    if min(height, size) < _SMALL:
        network.conv1 = nn.Conv2d(channels, network.conv1.out_channels, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    return network


_B0 = [["ds_r1_k3_s1_e1_c16_se0.25"], ["ir_r2_k3_s2_e6_c24_se0.25"], ["ir_r2_k5_s2_e6_c40_se0.25"],
       ["ir_r3_k3_s2_e6_c80_se0.25"], ["ir_r3_k5_s1_e6_c112_se0.25"], ["ir_r4_k5_s2_e6_c192_se0.25"],
       ["ir_r1_k3_s1_e6_c320_se0.25"]]  # fmt: skip


def efficientnet(shape: Sequence[int], outputs: int, *, width: float = 0.25, depth: float = 0.5) -> nn.Module:
    """Tan and Le, arXiv:1905.11946: B0 with channels times `width`, in eights, and blocks times `depth`."""
    channels, height, size = _picture("efficientnet", shape)
    models = require("timm.models", "models")
    builder = require("timm.models._efficientnet_builder", "models")
    rounded = partial(builder.round_channels, multiplier=width)
    network = models.EfficientNet(
        builder.decode_arch_def(_B0, depth), num_classes=outputs, in_chans=channels,
        num_features=rounded(1280), stem_size=32, round_chs_fn=rounded, act_layer=nn.SiLU,
    )  # fmt: skip
    if min(height, size) < _SMALL:
        network.conv_stem.stride = (1, 1)
    return network


def vit(
    shape: Sequence[int],
    outputs: int,
    *,
    width: int = 16,
    depth: int = 2,
    heads: int = 2,
    patch: int | None = None,
    mixer: str = "attention",
) -> nn.Module:
    """Dosovitskiy et al., arXiv:2010.11929: `depth` blocks of `width`; or with another mixer in attention's place.

    `patch` is by default the largest divisor of the picture's edges that leaves at least 4 x 4 patches.
    """
    channels, height, size = _picture("vit", shape)
    common = math.gcd(height, size)
    fitting = [p for p in range(1, common + 1) if common % p == 0 and min(height, size) // p >= 4]
    return TokenClassifier(
        outputs, image_size=(height, size), patch=patch or max(fitting, default=1), in_channels=channels,
        width=width, depth=depth, mixer=mixer, mixer_options={"heads": heads} if mixer == "attention" else None,
    )  # fmt: skip


FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "efficientnet": efficientnet,
    "vit": vit,
}


def create_sized(name: str, shape: Sequence[int], outputs: int, **options: Any) -> nn.Module:
    """Builds a network for samples of a shape.

    Args:
        name: "mlp", "cnn", "resnet", "efficientnet", "vit"; a published network of tokens (`list_classifiers()`);
            or "timm:" and a name of timm's.
        shape: of a sample: (d,) or (c, h, w).
        outputs: how many numbers it gives for a sample.
        options: of the family: `width`, `depth`, `activation`, ...; those of `TokenClassifier`; or timm's.

    Raises:
        UnknownName: no such family or activation. UnknownOption: no such option, with those that exist.
        ValueError: a shape that the family does not take, a width or depth out of range.
    """
    if name.startswith("timm:"):
        channels, _, _ = _picture(name, shape)
        timm = require("timm", "models")
        try:
            return timm.create_model(name[5:], num_classes=outputs, in_chans=channels, **options)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"timm cannot build {name[5:]!r}: {error}") from error
    if name in list_classifiers():
        channels, height, size = _picture(name, shape)
        given: dict[str, Any] = {"image_size": (height, size), "in_channels": channels}
        return create_classifier(name, outputs, **given | options)
    if name not in FAMILIES:
        raise unknown("family of networks", name, [*FAMILIES, *list_classifiers()])
    build = FAMILIES[name]
    accepted = [p for p in inspect.signature(build).parameters if p not in ("shape", "outputs")]
    for option in options:
        if option not in accepted:
            raise UnknownOption(str(unknown(f"option of {name}", option, accepted)))
    if name != "efficientnet":
        sizes = {k: v for k, v in options.items() if k in ("width", "depth", "heads", "patch")}
        if name == "mlp" and sizes.get("depth") == 0:
            del sizes["depth"]
        require_positive(name, **sizes)
    return build(shape, outputs, **options)


def _activation(name: str) -> nn.Module:
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


def _picture(name: str, shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(
            f"{name} takes pictures (channels, height, width), these samples are {tuple(shape)}; use mlp"
        )
    return shape[0], shape[1], shape[2]
