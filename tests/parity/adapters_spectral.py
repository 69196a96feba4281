# SPDX-License-Identifier: Apache-2.0
"""Adapters of the reconstruction transformers."""

from __future__ import annotations

import pytest
from golden import Case, Replay, Tensors, adapter
from torch import Tensor

from widefield.models.spectral.mst import MST, MaskGuide, SpectralAttention
from widefield.models.spectral.mst_plus_plus import MSTPlusPlus, SpectralTransformer


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


@adapter("mst_msa", "s_msa")
def spectral_attention(case: Case) -> Replay:
    config = case.config
    step = 2 / 4 ** config.get("level", 0)
    module = SpectralAttention(
        config["dim"], config["heads"], head_width=config["dim_head"], step=step, guided=config["mask_guided"]
    )

    def run(inputs: Tensors) -> Tensors:
        # The original reads the first sample's mask for the whole batch.
        masks = [channels_first(inputs["mask"][:1])] if config["mask_guided"] else []
        return {"y": channels_last(module(channels_first(inputs["x"]), *masks))}

    return Replay(module, "mst", run)


@adapter("mask_guided_mechanism")
def mask_guide(case: Case) -> Replay:
    module = MaskGuide(case.config["channels"])
    width = case.outputs["y"].shape[-1]
    return Replay(module, "mst", lambda inputs: {"y": module(inputs["mask"], width, 2.0)})


@adapter("mst")
def mst(case: Case) -> Replay:
    config = case.config
    if not case.state:
        pytest.skip("the trained weights of this case are tested in tests/models/spectral/test_pretrained.py")
    module = MST(config["bands"], 2, blocks=config["blocks"])
    return Replay(module, "mst", lambda inputs: {"y": module.body(inputs["x"], inputs["Phi"])})


@adapter("sst")
def sst(case: Case) -> Replay:
    config = case.config
    module = SpectralTransformer(
        config["in_channels"], config["out_channels"], width=config["dim"], blocks=config["blocks"]
    )
    return Replay(module, "mst")


@adapter("mstpp")
def mst_plus_plus(case: Case) -> Replay:
    config = case.config
    module = MSTPlusPlus(config["bands"], 2, stages=config["stages"], width=config["dim"])
    return Replay(module, "mst", lambda inputs: {"y": module.reconstruct(inputs["H"], inputs["mask"])})
