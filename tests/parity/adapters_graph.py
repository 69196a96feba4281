# SPDX-License-Identifier: Apache-2.0
"""Adapters of graph modules, double attention, CGNL and APCNet."""

from __future__ import annotations

import torch
from golden import Case, Replay, Tensors, adapter
from torch import Tensor, nn

from widefield import create
from widefield.graph.gcu import project
from widefield.models.heads import APCHead
from widefield.weights.reference import Table, reference


@adapter("glore")
def glore(case: Case) -> Replay:
    config = case.config
    module = create("glore", config["channels"], nodes=config["nodes"], normalize=config.get("normalize", False))
    return Replay(module, "glore")


@adapter("latentgnn")
def latentgnn(case: Case) -> Replay:
    config = case.config
    module = create(
        "latentgnn",
        config["channels"],
        nodes=config["latent_dims"],
        inner=config["channels"] // config["channel_stride"],
        symmetric=config.get("graph", "asymmetric") == "symmetric",
        transform=config.get("graph_conv", False),
    )
    return Replay(module, "latentgnn")


class Projection(nn.Module):
    """The third party's projection: raw scales, and nodes over their squared length."""

    def __init__(self, channels: int, nodes: int) -> None:
        super().__init__()
        self.anchors, self.scales = (nn.Parameter(torch.ones(channels, nodes)) for _ in range(2))
        self.unused = nn.Parameter(torch.zeros(channels, channels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assigned, residuals = project(x.flatten(1, 2).mT, self.anchors, self.scales)
        return assigned.mT, residuals / residuals.square().sum(1, keepdim=True)


@reference("graphconv", Projection)
def graphconv(module: Projection) -> Table:
    return {"anchors": "W", "scales": "variance", "unused": "weight"}


@adapter("gcu-projection")
def gcu_projection(case: Case) -> Replay:
    module = Projection(case.config["channels"], case.config["nodes"])

    def run(inputs: Tensors) -> Tensors:
        assigned, nodes = module(inputs["x"])
        return {"y": assigned, "nodes": nodes, "adjacency": nodes.mT @ nodes}

    return Replay(module, "graphconv", run)


@adapter("a2")
def a2(case: Case) -> Replay:
    """The residual is the caller's in the original."""
    config = case.config
    module = create(
        "a2",
        config["channels"],
        inner=config["feature_channels"],
        rank=config["attention_channels"],
        reconstruct=config.get("reconstruct", True),
    )
    return Replay(module, "double-attention", lambda inputs: {"y": module.leave(module.context(inputs["x"]))})


@adapter("cgnl")
def cgnl(case: Case) -> Replay:
    config = case.config
    rbf = config.get("kernel", "dot") == "rbf"
    options = {"order": config.get("order", 3)} if rbf else {}
    module = create(
        "cgnl-rbf" if rbf else "cgnl",
        config["channels"],
        inner=config.get("inner_channels"),
        groups=config.get("groups") or 1,
        scale=config.get("scale", False),
        **options,
    )
    return Replay(module, "cgnl")


@adapter("acm")
def acm(case: Case) -> Replay:
    config = case.config
    module = create(
        "acm",
        config["channels"],
        out_channels=config["out_channels"],
        bins=config["pool_scale"],
        fusion=config.get("fusion", True),
    )
    return Replay(module, "mmseg")


@adapter("apc-head")
def apc_head(case: Case) -> Replay:
    config = case.config
    module = APCHead(
        config["channels"],
        config["num_classes"],
        width=config["out_channels"],
        bins=config["pool_scales"],
        fusion=config.get("fusion", True),
        dropout=0.0,
    )
    return Replay(module, "mmseg")
