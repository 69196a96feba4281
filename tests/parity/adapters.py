# SPDX-License-Identifier: Apache-2.0
"""Adapters of attention and pooling."""

from __future__ import annotations

from typing import Any

import torch
from golden import Case, Replay, Tensors, adapter
from torch import nn

from widefield import create
from widefield.models.heads import DANetHead

PAIRWISE = {
    "embedded_gaussian": "nonlocal",
    "gaussian": "nonlocal-gaussian",
    "dot_product": "nonlocal-dot",
    "concatenation": "nonlocal-concat",
}


@adapter("nonlocal")
def nonlocal_(case: Case) -> Replay:
    """The three namings differ in which convolutions have biases; the state tells."""
    config, state = case.config, case.state
    if "z.weight" in state:
        source, value, project = "cgnl", "g", "z"
    elif any(name.startswith("conv_out.") for name in state):
        source, value, project = "mmcv", "g.conv" if "g.conv.weight" in state else "g.0.conv", "conv_out.conv"
    else:
        source = "non-local"
        value, project = "g" if "g.weight" in state else "g.0", "W" if "W.weight" in state else "W.0"
    name = PAIRWISE[config.get("pairwise", "embedded_gaussian")]
    options: dict[str, Any] = {
        "inner": config.get("inner_channels") or max(config["channels"] // config.get("reduction", 2), 1),
        "sub_sample": config.get("sub_sample", False),
        "bias": f"{value}.bias" in state,
        "project_bias": f"{project}.bias" in state,
        "norm": "batch" if config.get("norm", True) else "none",
    }
    if "conv_out.gn.weight" in state:
        groups = config.get("groups", 32)
        options["norm"] = lambda channels: nn.GroupNorm(groups, channels)
    # Where the original scales, it scales the embedded gaussian alone.
    if name == "nonlocal":
        options["scale"] = bool(config.get("scale", config.get("use_scale", False)))
    return Replay(create(name, config["channels"], **options), source)


@adapter("danet-pam", "danet-cam")
def danet(case: Case) -> Replay:
    return Replay(create(case.module, case.config["channels"]), "danet")


@adapter("danet-head")
def danet_head(case: Case) -> Replay:
    module = DANetHead(case.config["channels"], case.config["num_classes"], dropout=0.0)

    def run(inputs: Tensors) -> Tensors:
        out = module(inputs["x"])
        return {"y": torch.cat(out, 1), **out._asdict()}

    return Replay(module, "danet", run)


@adapter("ppm")
def ppm(case: Case) -> Replay:
    config = case.config
    module = create(
        "ppm",
        config["channels"],
        bins=config["bins"],
        branch_channels=config.get("branch_channels"),
        align_corners=config.get("align_corners", True),
    )
    return Replay(module, "semseg")


@adapter("aspp")
def aspp(case: Case) -> Replay:
    config = case.config
    module = create(
        "aspp", config["channels"], out_channels=config["out_channels"], rates=config["rates"], dropout=0.0
    )
    return Replay(module, "torchvision")
