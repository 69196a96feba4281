# SPDX-License-Identifier: Apache-2.0
"""Names of attention modules in their original implementations.

non-local   AlexHex7/Non-local_pytorch: theta, phi, g, W, concat_project
mmcv        open-mmlab mmcv, NonLocal1d/2d/3d: the same inside ConvModules, conv_out
cgnl        KaiyuYue/cgnl-network.pytorch, SpatialNL: t, p, g, z, bn; no biases
danet       junfu1115/DANet, PAM_Module and CAM_Module
"""

from __future__ import annotations

from torch import nn

from widefield.attention import (
    ChannelAttention,
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
