# SPDX-License-Identifier: Apache-2.0
"""Adapters of token mixers, their blocks and their networks."""

from __future__ import annotations

from collections.abc import Callable

from golden import Case, Replay, Tensors, adapter
from torch import nn

from widefield.mixing import (
    AttentionBlock,
    AttentionOnlyBlock,
    AttentionOnlyPlainBlock,
    FeedForwardOnlyBlock,
    GatedBlock,
    MixerBlock,
    RepMLP,
    RepMLPBlock,
    ResMLPBlock,
)


def on_tokens(module: nn.Module, source: str) -> Replay:
    """Input and output are both called x."""
    return Replay(module, source, lambda inputs: {"x": module(inputs["x"])})


Build = Callable[[Case], Replay]
BLOCKS: dict[str, Build] = {}


@adapter("attention_only")
def attention_only(case: Case) -> Replay:
    config = case.config
    options = {"heads": config["num_heads"], "qkv_bias": config["qkv_bias"]}
    if case.meta["variant"] == "plain":
        return on_tokens(AttentionOnlyPlainBlock(config["dim"], **options), "timm")
    return on_tokens(
        AttentionOnlyBlock(
            config["dim"], config["num_tokens"], feature_heads=config["token_heads"], **options
        ),
        "ff-only",
    )


@adapter("vit")
def vit(case: Case) -> Replay:
    config = case.config
    if "x" in case.inputs:
        module = AttentionBlock(
            config["dim"], heads=config["num_heads"], hidden=int(config["dim"] * config["mlp_ratio"]),
            qkv_bias=config["qkv_bias"],
        )  # fmt: skip
        return on_tokens(module, "timm")
    raise NotImplementedError


@adapter("ff_only")
def ff_only(case: Case) -> Replay:
    config = case.config
    if "x" in case.inputs:
        width, tokens, ratio = config["dim"], config["num_tokens"], config["mlp_ratio"]
        module = FeedForwardOnlyBlock(width, tokens, hidden=int(width * ratio), hidden_tokens=int(tokens * ratio))
        return on_tokens(module, "ff-only")
    raise NotImplementedError


@adapter("mlp_mixer")
def mlp_mixer(case: Case) -> Replay:
    config = case.config
    if "x" in case.inputs:
        width = config["dim"]
        hidden_tokens, hidden = (int(ratio * width) for ratio in config["mlp_ratio"])
        module = MixerBlock(width, config["seq_len"], hidden_tokens=hidden_tokens, hidden=hidden)
        return on_tokens(module, "timm")
    raise NotImplementedError


@adapter("resmlp")
def resmlp(case: Case) -> Replay:
    config = case.config
    hidden = int(config["dim"] * config["mlp_ratio"])
    return on_tokens(ResMLPBlock(config["dim"], config["seq_len"], hidden=hidden), "timm")


@adapter("gmlp")
def gmlp(case: Case) -> Replay:
    config = case.config
    hidden = int(config["dim"] * config["mlp_ratio"])
    return on_tokens(GatedBlock(config["dim"], config["seq_len"], hidden=hidden), "timm")


@adapter("repmlp")
def repmlp(case: Case) -> Replay:
    """The case of several partitions pins a slip of the code; only with `interchanged` is it met."""
    config = case.config
    partition = (config["h"], config["w"])
    module = RepMLPBlock(
        config["in_channels"],
        partition,
        sharesets=config["num_sharesets"],
        kernels=config["reparam_conv_k"],
        reduction=config["globalperceptron_reduce"],
        interchanged=tuple(case.inputs["x"].shape[2:]) != partition,
        merged="fc3.bias" in case.state,
    )
    return on_tokens(module, "repmlp")


@adapter("repmlp_2021")
def repmlp_2021(case: Case) -> Replay:
    config = case.config
    module = RepMLP(
        config["in_channels"],
        (config["H"], config["W"]),
        (config["h"], config["w"]),
        out_channels=config["out_channels"],
        kernels=config["reparam_conv_k"],
        groups=config["fc3_groups"],
        reduction=config["fc1_fc2_reduction"],
        merged="fc3.bias" in case.state,
    )
    return on_tokens(module, "repmlp")
