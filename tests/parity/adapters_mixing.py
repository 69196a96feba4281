# SPDX-License-Identifier: Apache-2.0
"""Adapters of token mixers, their blocks and their networks."""

from __future__ import annotations

from typing import Any

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
from widefield.models.tokens import RepMLPNet, TokenClassifier


def on_tokens(module: nn.Module, source: str) -> Replay:
    """Input and output are both called x."""
    return Replay(module, source, lambda inputs: {"x": module(inputs["x"])})


def classifier(case: Case, **options: object) -> TokenClassifier:
    """The network of a case, in the references' option names."""
    config = case.config
    return TokenClassifier(
        config["num_classes"],
        image_size=config["img_size"],
        patch=config["patch_size"],
        in_channels=config["in_chans"],
        width=config["embed_dim"],
        depth=config.get("depth", config.get("num_blocks")),
        **options,  # type: ignore[arg-type]
    )


def attention_options(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "heads": config["num_heads"],
        "hidden": int(config["embed_dim"] * config["mlp_ratio"]),
        "qkv_bias": config["qkv_bias"],
        "scale": config.get("init_values"),
    }


def on_images(model: TokenClassifier, source: str) -> Replay:
    def run(inputs: Tensors) -> Tensors:
        tokens = model.forward_features(inputs["image"])
        found = {"tokens": tokens, "class_features": tokens[:, 0], "logits": model.forward_head(tokens)}
        if model.distilled_head is not None:
            found["class_logits"] = model.head(tokens[:, 0])
            found["distilled_logits"] = model.distilled_head(tokens[:, 1])
        return found

    return Replay(model, source, run)


@adapter("attention_only")
def attention_only(case: Case) -> Replay:
    config = case.config
    options = {"heads": config["num_heads"], "qkv_bias": config["qkv_bias"]}
    if case.meta["variant"] == "plain":
        return on_tokens(AttentionOnlyPlainBlock(config["dim"], **options), "timm")
    return on_tokens(
        AttentionOnlyBlock(config["dim"], config["num_tokens"], feature_heads=config["token_heads"], **options),
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
    pooled = not config["class_token"]
    model = classifier(
        case, mixer_options=attention_options(config), prefix_tokens=0 if pooled else 1, norm_after_pool=pooled
    )
    return on_images(model, "timm")


@adapter("deit")
def deit(case: Case) -> Replay:
    return on_images(classifier(case, mixer_options=attention_options(case.config), prefix_tokens=2), "deit")


@adapter("ff_only")
def ff_only(case: Case) -> Replay:
    config = case.config
    if "x" in case.inputs:
        width, tokens, ratio = config["dim"], config["num_tokens"], config["mlp_ratio"]
        module = FeedForwardOnlyBlock(width, tokens, hidden=int(width * ratio), hidden_tokens=int(tokens * ratio))
        return on_tokens(module, "ff-only")
    hidden = int(config["embed_dim"] * config["mlp_ratio"])
    return on_images(classifier(case, mixer="ff-only", mixer_options={"hidden": hidden}), "ff-only")


@adapter("mlp_mixer")
def mlp_mixer(case: Case) -> Replay:
    config = case.config
    if "x" in case.inputs:
        width = config["dim"]
        hidden_tokens, hidden = (int(ratio * width) for ratio in config["mlp_ratio"])
        module = MixerBlock(width, config["seq_len"], hidden_tokens=hidden_tokens, hidden=hidden)
        return on_tokens(module, "timm")
    hidden_tokens, hidden = (int(ratio * config["embed_dim"]) for ratio in config["mlp_ratio"])
    options = {"hidden_tokens": hidden_tokens, "hidden": hidden}
    return on_images(classifier(case, mixer="mlp-mixer", mixer_options=options), "timm")


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


@adapter("repmlpnet")
def repmlpnet(case: Case) -> Replay:
    config = case.config
    assert config["hs"] == config["ws"]
    model = RepMLPNet(
        config["num_class"],
        in_channels=config["in_channels"],
        patch=config["patch_size"][0],
        channels=config["channels"],
        blocks=config["num_blocks"],
        partitions=config["hs"],
        sharesets=config["sharesets_nums"],
        kernels=config["reparam_conv_k"],
        reduction=config["globalperceptron_reduce"],
    )
    return Replay(model, "repmlp", lambda inputs: {"logits": model(inputs["image"])})
