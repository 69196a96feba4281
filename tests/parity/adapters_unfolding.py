# SPDX-License-Identifier: Apache-2.0
"""Adapters of the unrolled reconstruction networks."""

from __future__ import annotations

from golden import Case, Replay, Tensors, adapter

from widefield.models.spectral.admm_net import ADMMNet
from widefield.models.spectral.dauhst import DAUHST, DegradationEstimator
from widefield.models.spectral.gap_net import GAPNet
from widefield.models.spectral.half_shuffle import (
    FeedForward,
    HalfShuffleAttention,
    HalfShuffleBlock,
)
from widefield.models.spectral.half_shuffle_transformer import HalfShuffleTransformer
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


def windows(case: Case, height: int, width: int) -> tuple[int, int]:
    rows, columns = case.config["window"]
    return height // rows, width // columns


@adapter("hs_msa")
def half_shuffle_attention(case: Case) -> Replay:
    """Channels last, as ours."""
    config = case.config
    module = HalfShuffleAttention(
        config["dim"],
        config["heads"],
        config["dim_head"],
        grid=windows(case, *case.inputs["x"].shape[1:3]),
        window=tuple(config["window"]),
        shuffled=0 if config["only_local"] else None,
    )
    return Replay(module, "mst")


@adapter("hsab")
def half_shuffle_block(case: Case) -> Replay:
    config = case.config
    module = HalfShuffleBlock(
        config["dim"],
        config["heads"],
        config["dim_head"],
        grid=windows(case, *case.inputs["x"].shape[2:]),
        window=tuple(config["window"]),
        layers=config["blocks"],
    )
    return Replay(module, "mst")


@adapter("dauhst_ffn")
def feed_forward(case: Case) -> Replay:
    """Channels last, as ours."""
    return Replay(FeedForward(case.config["dim"], expansion=case.config["mult"]), "mst")


@adapter("hst")
def half_shuffle_transformer(case: Case) -> Replay:
    config = case.config
    height, width = case.inputs["x"].shape[2:]
    module = HalfShuffleTransformer(
        config["in_channels"],
        config["out_channels"],
        channels=config["dim"],
        layers=config["blocks"],
        size=(height, width),
    )
    return Replay(module, "mst")


@adapter("degradation_estimator")
def degradation_estimator(case: Case) -> Replay:
    config = case.config
    module = DegradationEstimator(config["in_channels"], config["stages"], channels=config["channels"])

    def run(inputs: Tensors) -> Tensors:
        alpha, beta = module(inputs["x"])
        return {"alpha": alpha, "beta": beta}

    return Replay(module, "mst", run)


@adapter("dauhst")
def dauhst(case: Case) -> Replay:
    config = case.config
    module = DAUHST(
        config["bands"],
        config["step"],
        stages=config["stages"],
        channels=config["dim"],
        layers=config["blocks"],
        estimator_channels=config["estimator_channels"],
        height=config["height"],
        width=config["width"],
    )

    def run(inputs: Tensors) -> Tensors:
        y, phi = inputs["y"], inputs["Phi"]
        start, alpha, beta = module.start(y, phi)
        rows = case.outputs["initial_first_rows"].shape[2]
        return {"x": module(y, phi), "initial_first_rows": start[:, :, :rows], "alpha": alpha, "beta": beta}

    return Replay(module, "mst", run)
