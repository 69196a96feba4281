# SPDX-License-Identifier: Apache-2.0
"""Adapters of the unrolled reconstruction networks."""

from __future__ import annotations

from golden import Case, Replay, Tensors, adapter

from widefield.models.spectral.admm_net import ADMMNet
from widefield.models.spectral.gap_net import GAPNet
from widefield.models.spectral.unfolding_unet import UnfoldingUNet


@adapter("unfolding_unet")
def unfolding_unet(case: Case) -> Replay:
    return Replay(UnfoldingUNet(case.config["bands"], widths=case.config["widths"]), "mst")


@adapter("gap_net", "admm_net")
def unrolled(case: Case) -> Replay:
    config = case.config
    build = {"gap_net": GAPNet, "admm_net": ADMMNet}[case.module]
    module = build(
        config["bands"], config["step"], stages=config["stages"], widths=config["widths"], dispersed_output=True
    )

    def run(inputs: Tensors) -> Tensors:
        return {"y": module(inputs["y"], inputs["Phi"])}

    return Replay(module, "mst", run)
