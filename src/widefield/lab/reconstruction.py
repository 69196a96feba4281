# SPDX-License-Identifier: Apache-2.0
"""From a reconstruction plan to its record: a network trained, or a classical solver run, on a set of cubes."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from widefield.core.errors import UnknownOption, unknown
from widefield.core.files import write_bytes, write_json
from widefield.data.cube_sets import CubeData, load_cubes
from widefield.data.cubes import read_mask
from widefield.imaging import SOLVERS, Snapshot, first_estimate, solve
from widefield.lab.experiment import Plan, check_crop
from widefield.lab.loop import Watcher, Work, make_fabric, train
from widefield.lab.record import Record
from widefield.models.spectral import SnapshotNetwork, create_network, list_networks
from widefield.tasks.reconstruction import Reconstruction, ReconstructionScore, Sample, recipe_of

FIRST_ESTIMATE = "first-estimate"
Estimator = Callable[[Tensor, Tensor], Tensor]


def list_methods() -> list[str]:
    """Everything that turns a measurement into a cube: networks, solvers without training, the first estimate."""
    return [FIRST_ESTIMATE, *(name for name in SOLVERS if name != "pnp"), *list_networks()]


@dataclass(frozen=True)
class ReconstructionPlan(Plan):
    """Train one network on coded snapshots of cubes, from one seed, and score it on held-out ones.

    Attributes:
        method: one of `list_methods()`.
        options: of the network or solver.
        data, data_options, data_state: the cubes, as for `load_cubes`, and their fingerprint.
        mask: a file; "data" for the one that the data set brings; or "random", independent fair coins.
        mask_size, mask_seed: of a random mask.
        dispersion: columns between neighbouring bands.
        crop, mosaics, augment, random_mask, noise, loss: of the task.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "indian_pines"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    data_state: str = ""
    mask: str = "random"
    mask_size: int = 256
    mask_seed: int = 0
    dispersion: int = 2
    crop: tuple[int, int] | None = None
    mosaics: float = 0.5
    augment: bool = True
    random_mask: bool = False
    noise: str = "none"
    loss: str = "rmse"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_crop(self.crop)

    @property
    def label(self) -> str:
        return self.method

    @property
    def trains(self) -> bool:
        """Whether there is anything to train."""
        return self.method != FIRST_ESTIMATE and self.method not in SOLVERS

    def check_result(self, result: Any) -> None:
        super().check_result(result)
        _ = result["score"]["psnr"], result["score"]["scenes"]


def run_reconstruction(
    plan: ReconstructionPlan, root: Path, *, watch: Watcher | None = None, data: CubeData | None = None
) -> Record:
    """Runs a plan below `root`, or what is left of it, or nothing if its record is finished.

    Raises:
        Diverged: the loss is not finite. And whatever building the network or reading the data raises.
    """
    record = Record.open(root, plan)
    if record.finished:
        return record
    fabric = make_fabric(plan)
    data = data or load_cubes(plan.data, **plan.data_options)
    task = build_task(plan, data)
    if not plan.trains:
        begun = time.perf_counter()
        _finish(record, None, task, make_estimator(plan.method, data.bands, plan.dispersion, plan.options),
                time.perf_counter() - begun)  # fmt: skip
        return record
    torch.manual_seed(plan.seed)
    network = create_network(plan.method, bands=data.bands, step=plan.dispersion, **plan.options)
    network = network.to(fabric.device)
    recipe = recipe_of(plan.method)
    if plan.lr is not None:
        recipe = replace(recipe, lr=plan.lr)
    estimate = network_estimator(network)

    def loss(step: int) -> tuple[Tensor, dict[str, Any]]:
        return task.loss(network, task.batch(step).to(fabric.device)), {}

    def validate() -> dict[str, float | None]:
        score = evaluate(task, estimate)
        return {"psnr": score.psnr, "ssim": score.ssim, "sam": score.sam}

    work = Work(loss, validate, measure="PSNR", key="psnr")
    seconds = train(record, plan, network, recipe, work, fabric, watch=watch)
    _finish(record, network, task, estimate, seconds, recipe=dict(recipe.as_dict()))
    return record


def build_task(plan: ReconstructionPlan, data: CubeData) -> Reconstruction:
    """The task of a plan."""
    return Reconstruction(
        data.train, data.val, plan_mask(plan, data), step=plan.dispersion, crop=plan.crop,
        batch_size=plan.batch_size, mosaics=plan.mosaics, augment=plan.augment, random_mask=plan.random_mask,
        noise=plan.noise, loss=plan.loss, seed=plan.seed,
    )  # fmt: skip


def plan_mask(plan: ReconstructionPlan, data: CubeData) -> Tensor:
    """The plain aperture of a plan.

    Raises:
        ValueError: the data set brings none. DataError: a file that cannot be read.
    """
    if plan.mask == "random":
        return random_mask((plan.mask_size, plan.mask_size), plan.mask_seed)
    if plan.mask == "data":
        if data.mask is None:
            raise ValueError(f"{data.name} brings no mask; give a file, or 'random'")
        return data.mask
    return read_mask(Path(plan.mask))


def random_mask(size: tuple[int, int], seed: int = 0) -> Tensor:
    """`(h, w)`: independent fair coins, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy((generator.random(size) < 0.5).astype(np.float32))


def make_estimator(method: str, bands: int, step: int, options: Mapping[str, Any]) -> Estimator:
    """`(b, h, w')` and `phi` to `(b, l, h, w)`, by a method that needs no training.

    Raises:
        UnknownName, UnknownOption: no such method or option.
    """
    if method == FIRST_ESTIMATE:
        if options:
            raise UnknownOption(f"{FIRST_ESTIMATE} takes no options, got {', '.join(options)}")
        return lambda y, phi: first_estimate(y, bands, step).contiguous()
    if method not in SOLVERS or method == "pnp":
        raise unknown("method", method, list_methods())
    accepted = [p for p in inspect.signature(SOLVERS[method]).parameters if p not in ("y", "operator", "callback")]
    for option in options:
        if option not in accepted:
            raise UnknownOption(str(unknown(f"option of {method}", option, accepted)))
    return lambda y, phi: solve(method, y, Snapshot(phi, step), **options).estimate


def network_estimator(network: SnapshotNetwork) -> Estimator:
    """A network in eval mode, without gradients."""

    def estimate(y: Tensor, phi: Tensor) -> Tensor:
        network.eval()
        device = next(network.parameters()).device
        with torch.no_grad():
            return network(y.to(device), phi.to(device)).cpu()

    return estimate


def estimates(task: Reconstruction, estimate: Estimator) -> Iterator[tuple[Sample, Tensor]]:
    """Every scene of the validation split with what is made of its measurement."""
    for sample in task.batches("val"):
        yield sample, estimate(sample.y, sample.phi)


def evaluate(task: Reconstruction, estimate: Estimator) -> ReconstructionScore:
    """The score on the validation split."""
    return task.score((s.names[0], cube[0], s.truth[0]) for s, cube in estimates(task, estimate))


def _finish(
    record: Record,
    network: nn.Module | None,
    task: Reconstruction,
    estimate: Estimator,
    seconds: float,
    **more: Any,
) -> None:
    begun = time.perf_counter()
    found = list(estimates(task, estimate))
    inference = (time.perf_counter() - begun) / max(1, len(found))
    score = task.score((s.names[0], cube[0], s.truth[0]) for s, cube in found)
    sample, cube = found[0]
    save_example(record.folder / "evidence.npz", sample, cube)
    write_json(record.folder / "timing.json", {"seconds": round(seconds, 3), "inference": round(inference, 4)})
    parameters = 0 if network is None else sum(p.numel() for p in network.parameters())
    result = {
        "score": score.as_dict(), "parameters": {"total": parameters, "trained": parameters},
        "crop": list(task.crop), **more,
    }  # fmt: skip
    record.finish(result, network)


def save_example(path: Path, sample: Sample, cube: Tensor) -> None:
    """The first scene: what was measured, what was found, the truth."""
    import io

    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, y=sample.y[0].numpy().astype(np.float32), estimate=cube[0].numpy().astype(np.float16),
        truth=sample.truth[0].numpy().astype(np.float16), name=np.array(sample.names[0]),
    )  # fmt: skip
    write_bytes(path, buffer.getvalue())
