# SPDX-License-Identifier: Apache-2.0
"""Adapters of the reconstruction transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from golden import Case, Replay, Tensors, adapter
from torch import Tensor

from widefield.data.cubes import read_mask
from widefield.imaging import Snapshot, psnr, ssim
from widefield.models.spectral import load_weights
from widefield.models.spectral.blocks import Block, Blocks, FeedForward
from widefield.models.spectral.dauhst import DAUHST, DegradationEstimator
from widefield.models.spectral.half_shuffle import HalfShuffleAttention, HalfShuffleTransformer
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
        return trained(case)
    module = MST(config["bands"], 2, blocks=config["blocks"])
    return Replay(module, "mst", lambda inputs: {"y": module.body(inputs["x"], inputs["Phi"])})


def trained(case: Case) -> Replay:
    """Published weights on a measured mask and a real scene, which lie in `data/reconstruction` near the cases."""
    folders = [parent / "data" / "reconstruction" for parent in case.path.resolve().parents]
    folder = next((f for f in folders if (f / "mst_s_state_dict.pth").is_file()), None)
    if folder is None:
        pytest.skip("the published weights, mask and scene of this case are not in data/reconstruction near it")
    config = case.config
    module = MST(config["bands"], 2, blocks=config["blocks"])
    load_weights(module, folder / "mst_s_state_dict.pth")
    with np.load(folder / "indian_pines_128x128x28.npz") as file:
        scene = torch.from_numpy(file["cube"].astype(np.float64)).permute(2, 0, 1)
    scene = (scene - scene.min()) / (scene.max() - scene.min()) * 0.5
    truth = scene.repeat(1, 2, 2)
    operator = Snapshot.cassi(read_mask(folder / "cassi_sim_mask_256.mat").double(), config["bands"], 2)

    def part(x: Tensor, which: str) -> Tensor:
        rows, columns = (slice(*config[f"{which}{axis}"]) for axis in ("rows", "columns"))
        return x[..., rows, columns]

    def run(inputs: Tensors) -> Tensors:
        y = operator.forward(truth[None])
        with torch.no_grad():
            cube = module(y, operator.phi)
        return {
            "measurement_crop": part(y, "measurement_crop_"),
            "output_crop": part(cube, "crop_"),
            "output_band_mean": cube.mean((2, 3)),
            "psnr": psnr(cube[0], truth, protocol="training_log"),
            "ssim": ssim(cube[0], truth, protocol="training_log"),
        }

    return Replay(module, None, run)


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


def attention_between(case: Case, height: int, width: int) -> HalfShuffleAttention:
    config = case.config
    rows, columns = config["window"]
    return HalfShuffleAttention(
        config["dim"], config["heads"], head_width=config["dim_head"], window=(rows, columns),
        grid=(height // rows, width // columns), shuffled=0 if config.get("only_local") else None,
    )  # fmt: skip


@adapter("hs_msa")
def half_shuffle_attention(case: Case) -> Replay:
    module = attention_between(case, *case.inputs["x"].shape[1:3])
    return Replay(module, "mst", lambda inputs: {"y": channels_last(module(channels_first(inputs["x"])))})


@adapter("hsab")
def half_shuffle_blocks(case: Case) -> Replay:
    config, (height, width) = case.config, case.inputs["x"].shape[2:]
    blocks = [
        Block(config["dim"], attention_between(case, height, width), first_norm=True)
        for _ in range(config["blocks"])
    ]
    return Replay(Blocks(blocks), "mst")


@adapter("hst")
def half_shuffle_transformer(case: Case) -> Replay:
    config = case.config
    module = HalfShuffleTransformer(
        config["in_channels"], config["out_channels"], width=config["dim"], blocks=config["blocks"],
        size=tuple(case.inputs["x"].shape[2:]),
    )  # fmt: skip
    return Replay(module, "mst")


@adapter("dauhst_ffn")
def feed_forward(case: Case) -> Replay:
    module = FeedForward(case.config["dim"], case.config["mult"])
    return Replay(module, "mst", lambda inputs: {"y": channels_last(module(channels_first(inputs["x"])))})


@adapter("degradation_estimator")
def estimator(case: Case) -> Replay:
    config = case.config
    module = DegradationEstimator(config["in_channels"], config["stages"], width=config["channels"])
    return Replay(module, "mst", lambda inputs: dict(zip(("alpha", "beta"), module(inputs["x"]), strict=True)))


@adapter("dauhst")
def dauhst(case: Case) -> Replay:
    config = case.config
    module = DAUHST(
        config["bands"], config["step"], stages=config["stages"], width=config["dim"], blocks=config["blocks"],
        estimator_width=config["estimator_channels"], size=(config["height"], config["width"]),
    )  # fmt: skip

    def run(inputs: Tensors) -> Tensors:
        start, alpha, beta = module.begin(inputs["y"], inputs["Phi"])
        first_rows = start[:, :, : case.outputs["initial_first_rows"].shape[2]]
        cube = module(inputs["y"], inputs["Phi"])
        return {"x": cube, "initial_first_rows": first_rows, "alpha": alpha, "beta": beta}

    return Replay(module, "mst", run)
