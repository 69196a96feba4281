# SPDX-License-Identifier: Apache-2.0
"""Parameters and multiply-adds of every published network, on the meta device, against what others counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from widefield import UnknownName, UnknownOption
from widefield.measure import count
from widefield.mixing import list_mixers
from widefield.models.tokens import RepMLPNet, classifier_entry, create_classifier, list_classifiers

# Parameters as counted of the published code, exactly; the attention-only ones of its parts.
COUNTED = {
    "vit-tiny": 5_717_416, "vit-small": 22_050_664, "vit-base": 86_567_656, "vit-large16": 304_326_632,
    "deit-tiny": 5_717_416, "deit-small": 22_050_664, "deit-base": 86_567_656,
    "deit-tiny-distilled": 5_910_800, "deit-base-distilled": 87_338_192,
    "ff-only-tiny": 7_676_332, "ff-only-base": 61_943_020, "ff-only-large": 206_363_576,
    "attention-only-tiny": 4_039_360, "attention-only-tiny-plain": 3_945_640,
    "mixer-s32": 19_104_624, "mixer-s16": 18_528_264, "mixer-b32": 60_293_428, "mixer-b16": 59_880_472,
    "mixer-l32": 206_939_264, "mixer-l16": 208_196_168,
    "repmlpnet-t224": 38_293_608,
}  # fmt: skip
# Parameters in millions as papers, readmes and timm's results print them.
PRINTED = {
    "vit-large32": 306, "mixer-h14": 431, "deit-small-distilled": 22.44,
    "repmlpnet-t224": 38.3, "repmlpnet-b224": 68.2, "repmlpnet-t256": 58.7, "repmlpnet-b256": 96.5,
    "repmlpnet-d256": 86.9, "repmlpnet-l256": 117.7,
    "resmlp-12": 15.35, "resmlp-24": 30.02, "resmlp-36": 44.69, "resmlp-big-24": 129.14,
    "gmlp-ti16": 5.87, "gmlp-s16": 19.42, "gmlp-b16": 73.08,
}  # fmt: skip
# Multiply-adds in G as timm's results print them, and the authors of RepMLPNet.
MULTIPLY_ADDS = {
    "vit-tiny": 1.26, "vit-small": 4.61, "vit-base": 17.58, "vit-large16": 61.6,
    "deit-tiny": 1.26, "deit-small": 4.61, "deit-base": 17.58,
    "deit-tiny-distilled": 1.27, "deit-small-distilled": 4.63, "deit-base-distilled": 17.68,
    "mixer-s32": 1.0, "mixer-s16": 3.79, "mixer-b32": 3.24, "mixer-b16": 12.62, "mixer-l32": 11.27,
    "mixer-l16": 44.6,
    "resmlp-12": 3.01, "resmlp-24": 5.96, "resmlp-36": 8.91, "resmlp-big-24": 100.23,
    "gmlp-ti16": 1.34, "gmlp-s16": 4.42, "gmlp-b16": 15.78,
    "repmlpnet-t224": 2.8, "repmlpnet-b224": 6.7, "repmlpnet-t256": 4.2, "repmlpnet-b256": 9.6,
    "repmlpnet-d256": 8.6, "repmlpnet-l256": 11.5,
}  # fmt: skip
# Of those that nobody printed: what the papers' formulas give, by (depth, width, patches, tokens, patch).
FORMULAS = {
    "ff-only-tiny": (12, 192, 196, 197, 16, lambda n, d: 8 * n * d * d + 8 * n * n * d),
    "ff-only-base": (12, 768, 196, 197, 16, lambda n, d: 8 * n * d * d + 8 * n * n * d),
    "ff-only-large": (24, 1024, 49, 50, 32, lambda n, d: 8 * n * d * d + 8 * n * n * d),
    "attention-only-tiny": (
        12, 192, 196, 197, 16, lambda n, d: 4 * n * d * d + 2 * n * n * d + 4 * n * n * d + 2 * n * d * d,
    ),
    "attention-only-tiny-plain": (12, 192, 196, 197, 16, lambda n, d: 2 * (4 * n * d * d + 2 * n * n * d)),
    "vit-large32": (24, 1024, 49, 50, 32, lambda n, d: 12 * n * d * d + 2 * n * n * d),
    "mixer-h14": (32, 1280, 256, 256, 14, lambda n, d: 2 * n * d * (d // 2) + 8 * n * d * d),
}  # fmt: skip


def on_meta(name: str, **options: object) -> nn.Module:
    return create_classifier(name, device="meta", **options).eval()


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def shape(name: str) -> tuple[int, int, int, int]:
    edge = classifier_entry(name).image_size
    return 1, 3, edge, edge


def test_every_published_network_has_its_figures():
    assert sorted(COUNTED.keys() | PRINTED.keys()) == list_classifiers()
    assert sorted(MULTIPLY_ADDS.keys() | FORMULAS.keys()) == list_classifiers()


@pytest.mark.parametrize("name", list_classifiers())
def test_size_and_cost(name):
    model = on_meta(name)
    assert all(p.is_meta for p in model.parameters())
    if name in COUNTED:
        assert parameters(model) == COUNTED[name]
    if name in PRINTED:
        assert parameters(model) / 1e6 == pytest.approx(PRINTED[name], rel=0.01)
    stated = model.cost(shape(name))
    assert stated.parameters == parameters(model)
    # The stated cost is a closed form; what the operators did is counted apart from it.
    assert count(model, shape(name)).multiply_adds == stated.multiply_adds
    if name in MULTIPLY_ADDS:
        # To 1 %. The readme's of RepMLPNet are of the merged form and have one decimal, which is coarser for 4.2.
        repmlp = isinstance(model, RepMLPNet)
        found = on_meta(name, merged=True).cost(shape(name)) if repmlp else stated
        printed = pytest.approx(MULTIPLY_ADDS[name], rel=0.01, abs=0.05 if repmlp else 0.0)
        assert found.multiply_adds / 1e9 == printed
    if name in FORMULAS:
        depth, width, patches, tokens, patch, block = FORMULAS[name]
        expected = patches * 3 * patch**2 * width + depth * block(tokens, width) + 1000 * width
        assert stated.multiply_adds == expected


def test_merging_adds_parameters():
    """A bias at every position in the place of the norms: it saves time, not size."""
    assert parameters(on_meta("repmlpnet-t224").merge()) == 38_331_720
    assert parameters(on_meta("repmlpnet-t224", merged=True)) == 38_331_720


def test_vit_large_32_without_its_head():
    """As counted of the published code, which has no head there."""
    assert parameters(on_meta("vit-large32", num_classes=0)) == 305_510_400


@pytest.mark.parametrize("name", ["resmlp-12", "resmlp-24", "resmlp-big-24", "gmlp-s16", "mixer-b16", "vit-small"])
def test_parameters_are_timms(name):
    timm = pytest.importorskip("timm")
    theirs = {
        "mixer-b16": "mixer_b16_224",
        "vit-small": "vit_small_patch16_224",
        "gmlp-s16": "gmlp_s16_224",
    }.get(name, name.replace("-", "_") + "_224")
    with torch.device("meta"):
        assert parameters(timm.create_model(theirs)) == parameters(on_meta(name))


@pytest.mark.parametrize("name", ["vit-tiny", "mixer-s32"])
@pytest.mark.parametrize("mixer", [*list_mixers(), "hamburger-nmf"])
def test_any_mixer_in_any_size(name, mixer):
    """Width, depth and patch stay; what belongs to the published mixer goes."""
    published, model = on_meta(name), on_meta(name, mixer=mixer)
    assert (model.num_features, model.patch, len(model.blocks)) == (
        published.num_features, published.patch, len(published.blocks),
    )  # fmt: skip
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_a_mistyped_name_or_option():
    with pytest.raises(UnknownName, match="Did you mean 'mixer-b16'"):
        create_classifier("mixer-b61")
    with pytest.raises(UnknownName, match="Did you mean 'vit-base'"):
        classifier_entry("vit-bas")
    with pytest.raises(UnknownOption, match=r"widht.*Did you mean 'width'"):
        create_classifier("vit-tiny", widht=3)
    with pytest.raises(UnknownName, match="Did you mean 'attention-only'"):
        create_classifier("vit-tiny", mixer="attention-onyl")


def test_options_override_the_size():
    model = on_meta("vit-tiny", depth=2, mixer_options={"qkv_bias": False}, image_size=32, num_classes=5)
    assert len(model.blocks) == 2
    assert model.blocks[0].token.branch.heads == 3
    assert model.blocks[0].token.branch.qkv.bias is None
    assert model.grid == (2, 2)
    assert model.head.out_features == 5


def test_every_entry_names_its_paper():
    for name in list_classifiers():
        entry = classifier_entry(name)
        assert entry.title
        assert entry.paper.startswith("arXiv:")
        assert 2020 < entry.year < 2023
