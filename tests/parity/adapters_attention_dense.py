# SPDX-License-Identifier: Apache-2.0
"""Adapters of PSANet, OCNet, DNL, GCNet, ANNN and external attention."""

from __future__ import annotations

from typing import Any

import torch
from golden import Case, Replay, Tensors, adapter
from torch import Tensor, nn
from torch.nn import functional as F

from widefield import create
from widefield.core import BatchNorm


def runs_twice(branch: nn.Module) -> None:
    """The originals run the transform that queries and keys share once for each, which moves its norm twice."""

    def again(norm: nn.Module, given: tuple[Tensor], _: Tensor) -> None:
        with torch.no_grad():
            norm.forward(*given)

    branch.norm.register_forward_hook(again)  # type: ignore[union-attr, operator]


def widths(case: Case, key: str, value: str) -> dict[str, Any]:
    """The widths that the state has: some originals fix them and ignore what they are given."""
    return {"inner": case.state[key].shape[0], "value_channels": case.state[value].shape[0]}


@adapter("dnl")
def dnl(case: Case) -> Replay:
    config = case.config
    module = create(
        "dnl",
        config["channels"],
        inner=config.get("inner_channels") or max(config["channels"] // config.get("reduction", 2), 1),
        temperature=config.get("temperature", 0.05),
        scale=bool(config.get("scale", config.get("use_scale", False))),
        project_bias="conv_out.conv.bias" in case.state,
        norm="batch" if config.get("norm", True) else "none",
    )
    return Replay(module, "mmseg")


class LayerNorm(nn.LayerNorm):
    """Over the channels of `(b, c, 1)`; unlike a group norm it takes one channel, which it makes its bias."""

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input.mT, self.normalized_shape, self.weight, self.bias, self.eps).mT


@adapter("gcnet")
def gcnet(case: Case) -> Replay:
    config = case.config
    fusion = config.get("fusion", ["channel_add"])
    module = create(
        "gcnet",
        config["channels"],
        hidden=int(config["channels"] * config["ratio"]),
        attend=config.get("pooling", "att") == "att",
        add="channel_add" in fusion,
        multiply="channel_mul" in fusion,
        norm=LayerNorm,
    )
    return Replay(module, "mmcv")


def pyramid_options(case: Case) -> dict[str, Any]:
    config = case.config
    return {
        **widths(case, "stages.0.f_key.0.weight", "stages.0.f_value.weight"),
        "out_channels": config.get("out_channels"),
        "bins": config.get("pool_sizes", (1, 3, 6, 8)),
        "dropout": 0.0,
    }


@adapter("apnb")
def apnb(case: Case) -> Replay:
    module = create("apnb", case.config["channels"], **pyramid_options(case))
    runs_twice(module.key)
    return Replay(module, "annn")


@adapter("afnb")
def afnb(case: Case) -> Replay:
    config = case.config
    module = create("afnb", config["channels"], low_channels=config["low_channels"], **pyramid_options(case))

    def run(inputs: Tensors) -> Tensors:
        return {"y": module(inputs["x"], inputs["low"])}

    return Replay(module, "annn", run)


@adapter("ocnet-base", "ocnet-pyramid")
def ocnet(case: Case) -> Replay:
    config = case.config
    module = create(
        case.module,
        config["channels"],
        **widths(case, "stages.0.f_key.0.weight", "stages.0.f_value.weight"),
        out_channels=config.get("out_channels"),
        sizes=config.get("sizes", (1,)),
        dropout=0.0,
    )
    for part in module.contexts:
        runs_twice(part.key)
    return Replay(module, "ocnet")


@adapter("ocnet-asp")
def ocnet_asp(case: Case) -> Replay:
    config = case.config
    rates = config.get("dilations", (12, 24, 36))
    module = create(
        "ocnet-asp", config["channels"], out_channels=2 * config["out_channels"], rates=rates, dropout=0.0
    )
    runs_twice(module.object.key)
    return Replay(module, "ocnet")


@adapter("external-attention")
def external_attention(case: Case) -> Replay:
    config = case.config

    def norm(channels: int) -> nn.Module:
        return BatchNorm(channels, momentum=3e-4)

    module = create("external-attention", config["channels"], rank=config.get("memory", 64), norm=norm)
    return Replay(module, "eanet")


@adapter("psanet")
def psanet(case: Case) -> Replay:
    config = case.config
    options: dict[str, Any] = {
        "inner": config.get("inner_channels"),
        "direction": config.get("direction", "both"),
        "shrink": config.get("shrink_factor", 1),
        "softmax": config.get("softmax", True),
        "divisor": config.get("normalization_factor", 1.0),
    }
    if config.get("compact", False):
        module = create("psanet-compact", config["channels"], size=tuple(case.inputs["x"].shape[2:]), **options)
    else:
        mask = (config["mask_height"], config["mask_width"])
        module = create("psanet", config["channels"], mask=mask, **options)
    return Replay(module, "semseg")
