# SPDX-License-Identifier: Apache-2.0
"""Networks of tokens by their published names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from widefield.core.errors import UnknownOption, unknown
from widefield.models.tokens.classifier import TokenClassifier
from widefield.models.tokens.repmlpnet import RepMLPNet


@dataclass(frozen=True)
class ClassifierEntry:
    """A published network.

    Attributes:
        name: of it.
        build: its class.
        options: that make it this size.
        title, paper, year: the publication.
        image_size: that it was published for.
    """

    name: str
    build: Callable[..., nn.Module]
    options: Mapping[str, Any]
    title: str
    paper: str
    year: int
    image_size: int = 224


_ENTRIES: dict[str, ClassifierEntry] = {}


def _publish(title: str, paper: str, year: int, networks: Mapping[str, Mapping[str, Any]], **shared: Any) -> None:
    for name, options in networks.items():
        _ENTRIES[name] = ClassifierEntry(name, TokenClassifier, {**shared, **options}, title, paper, year)


def _vit(width: int, heads: int, depth: int = 12, patch: int = 16) -> dict[str, Any]:
    return {"width": width, "depth": depth, "patch": patch, "mixer_options": {"heads": heads}}


def _plain(width: int, depth: int, patch: int = 16) -> dict[str, Any]:
    return {"width": width, "depth": depth, "patch": patch}


_SMALL = {"tiny": _vit(192, 3), "small": _vit(384, 6), "base": _vit(768, 12)}
_publish(
    "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", "arXiv:2010.11929", 2021,
    {f"vit-{size}": options for size, options in _SMALL.items()}
    | {"vit-large16": _vit(1024, 16, 24), "vit-large32": _vit(1024, 16, 24, 32)},
    mixer="attention",
)  # fmt: skip
_DEIT = (
    "Training data-efficient image transformers & distillation through attention",
    "arXiv:2012.12877",
    2021,
)
_publish(*_DEIT, {f"deit-{size}": options for size, options in _SMALL.items()}, mixer="attention")
_publish(
    *_DEIT, {f"deit-{size}-distilled": options for size, options in _SMALL.items()}, mixer="attention",
    prefix_tokens=2,
)  # fmt: skip
_NEED = (
    "Do You Even Need Attention? A Stack of Feed-Forward Layers Does Surprisingly Well on ImageNet",
    "arXiv:2105.02723",
    2021,
)
_publish(
    *_NEED,
    {
        "ff-only-tiny": _plain(192, 12),
        "ff-only-base": _plain(768, 12),
        # The authors keep the positions of a 14 x 14 grid at 7 x 7 patches, and interpolate them at every call.
        "ff-only-large": _plain(1024, 24, 32) | {"position_grid": (14, 14)},
    },
    mixer="ff-only",
)
_publish(*_NEED, {"attention-only-tiny": _vit(192, 3)}, mixer="attention-only")
_publish(*_NEED, {"attention-only-tiny-plain": _vit(192, 3)}, mixer="attention-only-plain")
_publish(
    "MLP-Mixer: An all-MLP Architecture for Vision", "arXiv:2105.01601", 2021,
    {
        "mixer-s32": _plain(512, 8, 32),
        "mixer-s16": _plain(512, 8),
        "mixer-b32": _plain(768, 12, 32),
        "mixer-b16": _plain(768, 12),
        "mixer-l32": _plain(1024, 24, 32),
        "mixer-l16": _plain(1024, 24),
        "mixer-h14": _plain(1280, 32, 14),
    },
    mixer="mlp-mixer",
)  # fmt: skip
_publish(
    "ResMLP: Feedforward networks for image classification with data-efficient training", "arXiv:2105.03404", 2021,
    {
        "resmlp-12": _plain(384, 12),
        "resmlp-24": _plain(384, 24),
        "resmlp-36": _plain(384, 36),
        "resmlp-big-24": _plain(768, 24, 8),
    },
    mixer="resmlp",
)  # fmt: skip
_publish(
    "Pay Attention to MLPs", "arXiv:2105.08050", 2021,
    {"gmlp-ti16": _plain(128, 30), "gmlp-s16": _plain(256, 30), "gmlp-b16": _plain(512, 30)},
    mixer="gmlp",
)  # fmt: skip
_NETS = {
    "t224": ((64, 128, 256, 512), (2, 2, 6, 2), (56, 28, 14, 7), (1, 4, 16, 128)),
    "b224": ((96, 192, 384, 768), (2, 2, 12, 2), (56, 28, 14, 7), (1, 4, 32, 128)),
    "t256": ((64, 128, 256, 512), (2, 2, 6, 2), (64, 32, 16, 8), (1, 4, 16, 128)),
    "b256": ((96, 192, 384, 768), (2, 2, 12, 2), (64, 32, 16, 8), (1, 4, 32, 128)),
    "d256": ((80, 160, 320, 640), (2, 2, 18, 2), (64, 32, 16, 8), (1, 4, 16, 128)),
    "l256": ((96, 192, 384, 768), (2, 2, 18, 2), (64, 32, 16, 8), (1, 4, 32, 256)),
}
for _size, _stages in _NETS.items():
    _ENTRIES[f"repmlpnet-{_size}"] = ClassifierEntry(
        f"repmlpnet-{_size}", RepMLPNet,
        dict(zip(("channels", "blocks", "partitions", "sharesets"), _stages, strict=True)),
        "RepMLPNet: Hierarchical Vision MLP with Re-parameterized Locality", "arXiv:2112.11081", 2022,
        int(_size[1:]),
    )  # fmt: skip


def list_classifiers() -> list[str]:
    """The names that `create_classifier` takes, sorted."""
    return sorted(_ENTRIES)


def classifier_entry(name: str) -> ClassifierEntry:
    """What is known of a published network.

    Raises:
        UnknownName: with the nearest names.
    """
    if name not in _ENTRIES:
        raise unknown("classifier", name, _ENTRIES)
    return _ENTRIES[name]


def create_classifier(name: str, num_classes: int = 1000, **options: Any) -> TokenClassifier | RepMLPNet:
    """Builds a published network, with random weights.

    With another `mixer` the size stays (width, depth, patch) and all that belongs to the published mixer goes.

    Args:
        name: one of `list_classifiers()`.
        num_classes: of the logits.
        options: of `TokenClassifier` or `RepMLPNet`; they override what the size sets. `device="meta"` costs no
            memory.

    Raises:
        UnknownName: no such network. UnknownOption: no such option. ValueError: an option out of range.
    """
    entry = classifier_entry(name)
    accepted = [p for p in inspect.signature(entry.build).parameters if p != "num_classes"]
    for option in options:
        if option not in accepted:
            raise UnknownOption(str(unknown(f"option of {name}", option, accepted)))
    chosen = dict(entry.options)
    if options.get("mixer", chosen.get("mixer")) != chosen.get("mixer"):
        chosen = {key: chosen[key] for key in ("width", "depth", "patch")}
    elif "mixer_options" in options:
        options["mixer_options"] = {**chosen.get("mixer_options", {}), **options["mixer_options"]}
    network = entry.build(num_classes, **{**chosen, **options})
    assert isinstance(network, TokenClassifier | RepMLPNet)
    return network
