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
mmcv        open-mmlab mmcv, NonLocal1d/2d/3d: the same inside ConvModules, conv_out; ContextBlock
cgnl        KaiyuYue/cgnl-network.pytorch, SpatialNL: t, p, g, z, bn; no biases
danet       junfu1115/DANet, PAM_Module and CAM_Module
mmseg       open-mmlab mmsegmentation, DisentangledNonLocal2d
annn        MendelXu/ANN, APNB and AFNB
ocnet       openseg-group/OCNet.pytorch, BaseOC, Pyramid_OC and ASP_OC modules
eanet       MenghaoGuo/EANet, External_attention
semseg      hszhao/semseg, PSA
"""

from __future__ import annotations

from torch import nn

from widefield.attention import (
    Carafe,
    ChannelAttention,
    CrissCrossAttention,
    DisentangledNonLocal,
    DynamicGraphMessages,
    DynamicGraphMessagesFast,
    ExternalAttention,
    FusionNonLocal,
    GlobalContext,
    InterlacedAttention,
    NonLocal,
    NonLocalConcat,
    NonLocalDot,
    NonLocalGaussian,
    OCNetASP,
    OCNetBase,
    OCNetPyramid,
    PositionAttention,
    PSANet,
    PSANetCompact,
    PyramidNonLocal,
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


@reference("mmcv", GlobalContext)
def context_block(module: GlobalContext) -> Table:
    """T and T' are Sequential(conv, norm, ReLU, conv)."""
    table: dict[str, str] = {"score": "conv_mask"}
    for ours, theirs in (("add", "channel_add_conv"), ("multiply", "channel_mul_conv")):
        table[f"{ours}.squeeze"] = f"{theirs}.0"
        table[f"{ours}.norm"] = f"{theirs}.1"
        table[f"{ours}.expand.project"] = f"{theirs}.3"
    return table


@reference("mmseg", DisentangledNonLocal)
def dnl(module: DisentangledNonLocal) -> Table:
    """mmcv's block with one convolution more."""
    return {**mmcv(module), "unary": "conv_mask"}


@reference("annn", PyramidNonLocal, FusionNonLocal)
def annn(module: PyramidNonLocal | FusionNonLocal) -> Table:
    """One stage; APNB's query is its key, and its last norm has the ReLU beside it in a Sequential."""
    stage, shared = "stages.0", isinstance(module, PyramidNonLocal)
    table: dict[str, str | tuple[str, ...]] = {
        "query.project": f"{stage}.f_query.0",
        "query.norm": f"{stage}.f_query.1.0",
        "value": f"{stage}.f_value",
        "project.project": f"{stage}.W",
        "out.project": "conv_bn_dropout.0",
        "out.norm": "conv_bn_dropout.1.0" if shared else "conv_bn_dropout.1",
    }
    for ours, theirs in (("project", "0"), ("norm", "1.0")):
        names = tuple(f"{stage}.{side}.{theirs}" for side in ("f_key", "f_query"))
        table[f"key.{ours}"] = names if shared else names[0]
    return table


def _object_context(ours: str, project: str, theirs: str) -> dict[str, str | tuple[str, ...]]:
    """One stage: f_query is f_key."""
    sides = ("f_key", "f_query")
    return {
        f"{ours}.key.project": tuple(f"{theirs}.{side}.0" for side in sides),
        f"{ours}.key.norm": tuple(f"{theirs}.{side}.1.0" for side in sides),
        f"{ours}.value": f"{theirs}.f_value",
        f"{project}.project": f"{theirs}.W",
    }


@reference("ocnet", OCNetBase, OCNetPyramid)
def ocnet(module: OCNetBase | OCNetPyramid) -> Table:
    """A norm stands in a Sequential with its activation."""
    table: dict[str, str | tuple[str, ...]] = {
        "lift.project": "up_dr.0",
        "lift.norm": "up_dr.1.0",
        "fuse.project": "conv_bn_dropout.0",
        "fuse.norm": "conv_bn_dropout.1.0",
    }
    for i in range(len(module.sizes)):
        table |= _object_context(f"contexts.{i}", f"projects.{i}", f"stages.{i}")
    return table


@reference("ocnet", OCNetASP)
def ocnet_asp(module: OCNetASP) -> Table:
    """The context is Sequential(3x3, norm, base context); the other branches are numbered from 2."""
    table: dict[str, str | tuple[str, ...]] = {
        "near.weight": "context.0.weight",
        "near.bias": "context.0.bias",
        "near.norm": "context.1.0",
        "settle.project": "context.2.conv_bn_dropout.0",
        "settle.norm": "context.2.conv_bn_dropout.1.0",
        "pointwise.project": "conv2.0",
        "pointwise.norm": "conv2.1.0",
        "fuse.project": "conv_bn_dropout.0",
        "fuse.norm": "conv_bn_dropout.1.0",
        **_object_context("object", "project", "context.2.stages.0"),
    }
    for i in range(len(module.dilated)):
        table[f"dilated.{i}.weight"] = f"conv{i + 3}.0.weight"
        table[f"dilated.{i}.norm"] = f"conv{i + 3}.1.0"
    return table


@reference("eanet", ExternalAttention)
def eanet(module: ExternalAttention) -> Table:
    """The memories are 1-D convolutions."""
    return {
        "lower": "conv1",
        "keys": "linear_0",
        "values": "linear_1",
        "upper": "conv2.0",
        "norm": "conv2.1",
    }


@reference("semseg", PSANet, PSANetCompact)
def semseg(module: PSANet | PSANetCompact) -> Table:
    """Sequentials; where there are two directions, the second has names of its own."""
    table = {"project.project": "proj.0", "project.norm": "proj.1"}
    for direction, suffix in zip(module.directions, ("", "_p"), strict=False):
        table[f"parts.{direction}.reduce.project"] = f"reduce{suffix}.0"
        table[f"parts.{direction}.reduce.norm"] = f"reduce{suffix}.1"
        table[f"parts.{direction}.hidden.project"] = f"attention{suffix}.0"
        table[f"parts.{direction}.hidden.norm"] = f"attention{suffix}.1"
        table[f"parts.{direction}.weight"] = f"attention{suffix}.3.weight"
    return table
