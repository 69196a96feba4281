# SPDX-License-Identifier: Apache-2.0
"""Names of token mixers in their original implementations and in timm.

timm      huggingface/pytorch-image-models: norm1, attn.qkv, mlp.fc1, mlp_tokens, linear_tokens, ls1, ...
deit      facebookresearch/deit: the same for attention; for ResMLP attn, mlp, gamma_1, gamma_2
ff-only   lukemelas/do-you-even-need-attention: mlp1 (channels), mlp2 (tokens)
repmlp    DingXiaoH/RepMLP: gp, fc3, fc3_bn, repconv<k>; fc1_fc2 and avg.bn in the code of 2021
"""

from __future__ import annotations

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
from widefield.weights.reference import Table, reference


def _attention(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.qkv": f"{theirs}.qkv", f"{ours}.project": f"{theirs}.proj"}


def _forward(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.enter": f"{theirs}.fc1", f"{ours}.leave": f"{theirs}.fc2"}


@reference("timm", AttentionBlock)
@reference("deit", AttentionBlock)
def attention(module: AttentionBlock) -> Table:
    return {
        "token.norm": "norm1",
        **_attention("token.branch", "attn"),
        "token.gamma": "ls1.gamma",
        "channel.norm": "norm2",
        **_forward("channel.branch", "mlp"),
        "channel.gamma": "ls2.gamma",
    }


@reference("timm", AttentionOnlyPlainBlock)
def attention_only_plain(module: AttentionOnlyPlainBlock) -> Table:
    """timm's block with its attention in the place of the two-layer map; no code of the ablation was published."""
    return {
        "token.norm": "norm1",
        **_attention("token.branch", "attn"),
        "second.norm": "norm2",
        **_attention("second.branch", "mlp"),
    }


@reference("ff-only", AttentionOnlyBlock)
def attention_only(module: AttentionOnlyBlock) -> Table:
    """The feed-forward code's block with attention in both places; no code of the ablation was published."""
    return {
        "token.norm": "norm1",
        **_attention("token.branch", "mlp1"),
        "channel.branch.norm": "norm2",
        **_attention("channel.branch.attention", "mlp2"),
    }


@reference("ff-only", FeedForwardOnlyBlock)
def ff_only(module: FeedForwardOnlyBlock) -> Table:
    return {
        "channel.norm": "norm1",
        **_forward("channel.branch", "mlp1"),
        "token.branch.norm": "norm2",
        **_forward("token.branch.map", "mlp2"),
    }


@reference("timm", MixerBlock)
def mlp_mixer(module: MixerBlock) -> Table:
    return {
        "token.norm": "norm1",
        **_forward("token.branch.map", "mlp_tokens"),
        "channel.norm": "norm2",
        **_forward("channel.branch", "mlp_channels"),
    }


@reference("timm", ResMLPBlock)
def resmlp(module: ResMLPBlock) -> Table:
    return {
        "token.norm": "norm1",
        "token.branch.linear": "linear_tokens",
        "token.gamma": "ls1",
        "channel.norm": "norm2",
        **_forward("channel.branch", "mlp_channels"),
        "channel.gamma": "ls2",
    }


@reference("deit", ResMLPBlock)
def resmlp_published(module: ResMLPBlock) -> Table:
    return {
        "token.norm": "norm1",
        "token.branch.linear": "attn",
        "token.gamma": "gamma_1",
        "channel.norm": "norm2",
        **_forward("channel.branch", "mlp"),
        "channel.gamma": "gamma_2",
    }


@reference("timm", GatedBlock)
def gmlp(module: GatedBlock) -> Table:
    return {
        "token.norm": "norm",
        **_forward("token.branch", "mlp_channels"),
        "token.branch.norm": "mlp_channels.gate.norm",
        "token.branch.along.linear": "mlp_channels.gate.proj",
    }


@reference("repmlp", RepMLPBlock)
def repmlp_block(module: RepMLPBlock) -> Table:
    return {"squeeze": "gp.fc1", "excite": "gp.fc2", **_merging(module.kernels)}


@reference("repmlp", RepMLP)
def repmlp(module: RepMLP) -> Table:
    return {
        "squeeze": "fc1_fc2.fc1",
        "excite": "fc1_fc2.fc2",
        "pooled_norm": "avg.bn",
        **_merging(module.kernels),
    }


def _merging(kernels: tuple[int, ...]) -> dict[str, str]:
    table = {"weight": "fc3.weight", "bias": "fc3.bias", "norm": "fc3_bn"}
    for k in kernels:
        table |= {f"local.{k}.conv": f"repconv{k}.conv", f"local.{k}.norm": f"repconv{k}.bn"}
    return table
