# SPDX-License-Identifier: Apache-2.0
"""Names of attention modules in their original implementations.

non-local   AlexHex7/Non-local_pytorch: theta, phi, g, W, concat_project
mmcv        open-mmlab mmcv, NonLocal1d/2d/3d: the same inside ConvModules, conv_out; CARAFEPack
cgnl        KaiyuYue/cgnl-network.pytorch, SpatialNL: t, p, g, z, bn; no biases
danet       junfu1115/DANet, PAM_Module and CAM_Module
ccnet       speedinghzl/CCNet, CrissCrossAttention
dgmn        lzrobots/dgmn, ReDynamicWeightsCat33 and DynamicWeightsCat11; four rates, named a to d
carafe      XiaLiPKU/CARAFE: comp and enc, with norms
openseg     openseg-group/openseg.pytorch, ISA_Block: stages.<i>, up_conv, conv_bn
"""

from __future__ import annotations

from torch import nn

from widefield.attention import (
    Carafe,
    ChannelAttention,
    CrissCrossAttention,
    DynamicGraphMessages,
    DynamicGraphMessagesFast,
    InterlacedAttention,
    NonLocal,
    NonLocalConcat,
    NonLocalDot,
    NonLocalGaussian,
    PositionAttention,
)
from widefield.attention.non_local import NonLocalBase
from widefield.weights.reference import Table, reference

_ALL = (NonLocal, NonLocalGaussian, NonLocalDot, NonLocalConcat)


@reference("non-local", *_ALL)
def non_local(module: NonLocalBase) -> Table:
    """Sub-sampling wraps phi and g, the norm wraps W, in a Sequential."""
    conv = ".0" if module.sub_sample else ""
    has_norm = not isinstance(module.out.norm, nn.Identity)
    return {
        "query": "theta",
        "key": f"phi{conv}",
        "value": f"g{conv}",
        "pair": "concat_project.0",
        "out.project": "W.0" if has_norm else "W",
        "out.norm": "W.1",
    }


@reference("mmcv", *_ALL)
def mmcv(module: NonLocalBase) -> Table:
    """A ConvModule each: `.conv`, and `.bn` or `.gn` after the kind of norm."""
    conv = ".0.conv" if module.sub_sample else ".conv"
    norm = "gn" if isinstance(module.out.norm, nn.GroupNorm) else "bn"
    return {
        "query": "theta.conv",
        "key": f"phi{conv}",
        "value": f"g{conv}",
        "pair": "concat_project.conv",
        "out.project": "conv_out.conv",
        "out.norm": f"conv_out.{norm}",
    }


@reference("cgnl", NonLocal)
def cgnl(module: NonLocal) -> Table:
    """Built with `bias=False, project_bias=False`."""
    return {"query": "t", "key": "p", "value": "g", "out.project": "z", "out.norm": "bn"}


@reference("danet", PositionAttention, ChannelAttention)
def danet(module: nn.Module) -> Table:
    """The scale is called gamma."""
    return {"query": "query_conv", "key": "key_conv", "value": "value_conv", "gate": "gamma"}


@reference("ccnet", CrissCrossAttention)
def ccnet(module: CrissCrossAttention) -> Table:
    """As DANet's."""
    return {"query": "query_conv", "key": "key_conv", "value": "value_conv", "gate": "gamma"}


@reference("openseg", InterlacedAttention)
def isa(module: InterlacedAttention) -> Table:
    """A norm and its activation are a Sequential of their own, one place after the convolution."""
    table = {
        "lift.project": "up_conv.0",
        "lift.norm": "up_conv.1.0",
        "fuse.project": "conv_bn.0",
        "fuse.norm": "conv_bn.1.0",
    }
    for i in range(len(module.blocks)):
        for ours, theirs in ((f"distant.{i}", "long_range_sa"), (f"within.{i}", "short_range_sa")):
            theirs = f"stages.{i}.{theirs}"
            table[f"{ours}.value"] = f"{theirs}.f_value"
            table[f"{ours}.out.project"] = f"{theirs}.W.0"
            table[f"{ours}.out.norm"] = f"{theirs}.W.1.0"
            for side, name in (("query", "f_query"), ("key", "f_key")):
                for layer in range(2):
                    table[f"{ours}.{side}.{layer}.project"] = f"{theirs}.{name}.{2 * layer}"
                    table[f"{ours}.{side}.{layer}.norm"] = f"{theirs}.{name}.{2 * layer + 1}.0"
    return table


@reference("dgmn", DynamicGraphMessages, DynamicGraphMessagesFast)
def dgmn(module: nn.Module) -> Table:
    """The plain grid has one convolution a rate, `cat`; so has the fast form, for all that it predicts."""
    table = {
        f"{ours}.{part}": theirs
        for ours, theirs in (("reduce", "scale1"), ("fuse", "scale2"), ("expand", "scale3"))
        for part, theirs in (("project", f"{theirs}.0"), ("norm", f"{theirs}.1"))
    }
    filters = "kernel_conv" if getattr(module, "offsets", None) else "cat"
    for i, letter in enumerate("abcd"):
        table[f"predict.{i}"] = f"cat{letter}.weight"
        table[f"filters.{i}"] = f"{filters}{letter}.weight"
        table[f"offsets.{i}"] = f"off_conv{letter}.weight"
        table[f"gates.{i}"] = f"gamma{i + 1}"
    return table


@reference("carafe", Carafe)
def carafe(module: Carafe) -> Table:
    """The port's convolutions are followed by norms."""
    return {
        "compress": "comp.conv",
        "compress_norm": "comp.bn",
        "encode": "enc.conv.weight",
        "encode_norm": "enc.bn",
    }


@reference("mmcv", Carafe)
def carafe_mmcv(module: Carafe) -> Table:
    """CARAFEPack: plain convolutions."""
    return {
        "compress": "channel_compressor",
        "encode": "content_encoder.weight",
        "encode_bias": "content_encoder.bias",
    }
