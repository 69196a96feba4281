# SPDX-License-Identifier: Apache-2.0
"""Adapters of sensing operators, projections, solvers and scores: functions, no state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from golden import Case, Replay, Tensors, adapter
from torch import Tensor, nn

from widefield.imaging import (
    Snapshot,
    disperse,
    energy,
    measure,
    roll_back,
    roll_forward,
    shift_back,
)
from widefield.imaging.noise import expose, photons
from widefield.imaging.priors import denoise_tv
from widefield.imaging.projection import project_admm, project_gap, project_hqs
from widefield.imaging.quality import ergas, psnr, rmse, sam, ssim
from widefield.imaging.solvers import solve


def function(run: Callable[[Tensors], Tensors]) -> Replay:
    return Replay(nn.Identity(), None, run)


@adapter("cassi")
def cassi(case: Case) -> Replay:
    step = case.config["step"]
    if "label" in case.inputs:
        return function(lambda inputs: shot_noise(case, inputs))
    if "measurement" not in case.outputs:
        # A crop holds numbers of what it was cut from. One case's do not: they were made from other features.
        made_elsewhere = frozenset(
            name
            for name, cut in case.outputs.items()
            if (source := name.replace("_shift_back", "")) in case.inputs
            and torch.isin(cut, case.inputs[source]).double().mean() < 0.01
        )
        return replace(
            function(lambda inputs: rolls(inputs, step, case.config["full_height"])), unrelated=made_elsewhere
        )

    def run(inputs: Tensors) -> Tensors:
        cube, mask = inputs["cube"], inputs["mask"]
        operator = Snapshot.measured(disperse(mask, step), step)
        y = operator.forward(cube)
        return {
            "shifted_masked_cube": disperse(mask * cube, step),
            "measurement": y,
            "H": operator.first_estimate(y),
            "HM": operator.masked_estimate(y),
            "shift_back_of_measurement": shift_back(y, operator.bands, step),
            "Phi": operator.phi,
            "Phi_s": operator.energy,
            "mask3d": operator.mask,
        }

    return function(run)


def rolls(inputs: Tensors, step: int, height: int) -> Tensors:
    found = {"rolled": roll_forward(inputs["cube"], step), "rolled_back": roll_back(inputs["cube"], step)}
    for name, features in inputs.items():
        if name.startswith("feature_"):
            level = int(name[-1])
            # Band i from column floor(i step / 4^level), as wide as the map is high.
            columns = [int(i * step / 4**level) for i in range(features.shape[1])]
            width = features.shape[2]
            assert width == height >> level
            found[f"feature_shift_back_level{level}"] = torch.stack(
                [features[:, i, :, c : c + width] for i, c in enumerate(columns)], 1
            )
    return found


def shot_noise(case: Case, inputs: Tensors) -> Tensors:
    config = case.config
    step, levels, efficiency = config["step"], config["bit_levels"], config["quantum_efficiency"]
    phi = disperse(inputs["mask3d"].detach(), step)
    y = measure(disperse(inputs["label"].detach(), step), phi)
    trials = photons(expose(y, config["bands"], config["gain"]), efficiency, levels)
    counted = (inputs["counts"] / levels).to(torch.float64)
    return {"trials": trials.long(), "measurement": counted, "Phi": phi, "Phi_s": energy(phi)}


@adapter("projection")
def projection(case: Case) -> Replay:
    gamma = case.config["gamma"]

    def run(inputs: Tensors) -> Tensors:
        z, y, phi, total = (inputs[name] for name in ("z", "y", "Phi", "Phi_s"))
        return {
            "A": measure(z, phi),
            "At": phi * y[:, None],
            "gap": project_gap(z, y, phi, total),
            "hqs_alpha": project_hqs(z, y, phi, total, inputs["alpha"]),
            "admm_gamma": project_admm(z, inputs["b"], y, phi, total, gamma),
        }

    return function(run)


@adapter("video_sci")
def video(case: Case) -> Replay:
    config = case.config
    inner, weight, _gamma = config["tv_iterations"], config["tv_weight"], config["admm_gamma"]

    def run(inputs: Tensors) -> Tensors:
        frames, masks = (inputs[name].detach().permute(2, 0, 1) for name in ("video", "mask"))
        operator = Snapshot.video(masks)
        y = operator.forward(frames[None])
        adjoint = operator.adjoint(y)
        common = {"weight": weight, "inner": inner, "start": adjoint}

        def gap(iterations: int) -> Tensor:
            return solve(
                "gap-tv", y, operator, iterations=iterations, accelerated=config["acceleration"],
                relaxation=config["relaxation"], **common,
            ).estimate  # fmt: skip

        def admm(iterations: int) -> Tensor:
            return solve(
                "admm-tv", y, operator, iterations=iterations, gamma=config["admm_gamma"], **common
            ).estimate

        x = project_admm(
            adjoint, torch.zeros_like(adjoint), y, operator.phi, operator.energy, config["admm_gamma"]
        )
        return {
            "measurement": y[0],
            "adjoint": adjoint[0].permute(1, 2, 0),
            "gap_tv_iter1": gap(1),
            "gap_tv": gap(config["iterations"]),
            "admm_tv_iter1": admm(1),
            "admm_dual_iter1": denoise_tv(x, weight, iterations=inner) - x,
            "admm_tv": admm(config["iterations"]),
        }

    return function(run)


@adapter("sci_metrics")
def sci_metrics(case: Case) -> Replay:
    def run(inputs: Tensors) -> Tensors:
        image, truth = inputs["image"].detach(), inputs["reference"].detach()
        clipped = image.clamp(0, 1), truth.clamp(0, 1)
        return {
            "psnr": psnr(image, truth, protocol="training_log"),
            "ssim": ssim(image, truth, protocol="training_log"),
            "psnr_clipped": psnr(*clipped, protocol="training_log"),
            "ssim_clipped": ssim(*clipped, protocol="training_log"),
            "matlab_psnr": psnr(image, truth),
            "matlab_ssim": ssim(image, truth),
            "matlab_sam_degrees": sam(image, truth),
            "matlab_rmse": rmse(image, truth),
            "matlab_ergas": ergas(image, truth),
        }

    return function(run)
