# SPDX-License-Identifier: Apache-2.0
"""Names of pyramids in their original implementations.

semseg        hszhao/semseg, PPM: features.<i> is Sequential(pool, conv, norm, ReLU)
mmseg         open-mmlab mmsegmentation, ACM of APCHead: a ConvModule for each 1x1, gla
torchvision   torchvision.models.segmentation.deeplabv3, ASPP: convs.<i>, project
"""

from __future__ import annotations

from widefield.pooling import ASPP, AdaptiveContext, PyramidPooling
from widefield.weights.reference import Table, reference


@reference("semseg", PyramidPooling)
def semseg(module: PyramidPooling) -> Table:
    """Convolution and norm follow the pool."""
    table: dict[str, str] = {}
    for i in range(len(module.bins)):
        table[f"branches.{i}.project"] = f"features.{i}.1"
        table[f"branches.{i}.norm"] = f"features.{i}.2"
    return table


@reference("torchvision", ASPP)
def torchvision(module: ASPP) -> Table:
    """The 1x1, the rates in order, the pooled branch (after its pool), the fusion."""
    rates = len(module.dilated)
    table = {
        "pointwise.project": "convs.0.0",
        "pointwise.norm": "convs.0.1",
        "pooled.project": f"convs.{rates + 1}.1",
        "pooled.norm": f"convs.{rates + 1}.2",
        "fuse.project": "project.0",
        "fuse.norm": "project.1",
    }
    for i in range(rates):
        table[f"dilated.{i}.weight"] = f"convs.{i + 1}.0.weight"
        table[f"dilated.{i}.norm"] = f"convs.{i + 1}.1"
    return table


@reference("mmseg", AdaptiveContext)
def mmseg(module: AdaptiveContext) -> Table:
    """With batch norms."""
    return acm_names("", "")


def acm_names(ours: str, theirs: str) -> dict[str, str]:
    """Of an ACM, behind the two prefixes."""
    branches = {
        "local": "input_redu_conv",
        "region": "pooled_redu_conv",
        "overall": "global_info",
        "residual": "residual_conv",
        "fusion": "fusion_conv",
    }
    table = {f"{ours}score": f"{theirs}gla"}
    for branch, name in branches.items():
        table[f"{ours}{branch}.project"] = f"{theirs}{name}.conv"
        table[f"{ours}{branch}.norm"] = f"{theirs}{name}.bn"
    return table
