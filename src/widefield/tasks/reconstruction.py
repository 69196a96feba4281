# SPDX-License-Identifier: Apache-2.0
"""Snapshot reconstruction as a task: which crops at which step, what the sensor sees of them, loss and scores.

The recipes are those of the toolbox that the field trains with (MST, arXiv 2111.07910, and its successors):
half of a batch are crops, half are mosaics of four crops; the loss is the root of the mean squared error over the
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import unknown
from widefield.imaging import PROTOCOLS, disperse, dispersed_mask, expose, measure, psnr, sam, shot_noise, ssim
from widefield.tasks.recipe import Recipe


class CubeSet(Protocol):
    """Scenes: `self[i]` is a cube `(l, h, w)` in [0, 1]."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def sizes(self) -> Sequence[tuple[int, int]]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Tensor: ...


def rmse(estimate: Tensor, truth: Tensor) -> Tensor:
    """Root of the mean squared error over the whole batch: the field's loss in simulation."""
    # The root has no derivative where both are equal.
    return (F.mse_loss(estimate, truth) + 1e-12).sqrt()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"rmse": rmse, "l1": F.l1_loss, "mse": F.mse_loss}

# Optimiser, rate and schedule of each paper, as the toolbox trains them; Adam throughout, nothing clipped.
_ADAM: dict[str, Any] = {"optimizer": "adam", "weight_decay": 0.0, "clip": None}
COSINE = Recipe(lr=4e-4, schedule="cosine", **_ADAM)
HALVING = Recipe(lr=4e-4, schedule="halving", **_ADAM)
RECIPES: dict[str, Recipe] = {
    "admm-net": Recipe(lr=1e-3, schedule="decay", **_ADAM),
    "birnat": Recipe(lr=1.5e-4, schedule="constant", **_ADAM),
    "dgsmp": Recipe(lr=1e-4, schedule="constant", **_ADAM),
    "gap-net": Recipe(lr=1e-3, schedule="decay", **_ADAM),
    "hdnet": HALVING,
    "lambda-net": Recipe(lr=1.5e-4, schedule="halving", **_ADAM),
    "mst": HALVING,
    "tsa-net": HALVING,
}


def recipe_of(name: str) -> Recipe:
    """How the toolbox trains a network of that name; cosine where it says nothing of its own."""
    return next((r for key, r in RECIPES.items() if name == key or name.startswith(f"{key}-")), COSINE)


@dataclass(frozen=True)
class Sample:
    """What a network is given and what it should find.

    Attributes:
        y: measurements `(b, h, w')`.
        phi: dispersed masks `(b, l, h, w')`.
        truth: cubes `(b, l, h, w)`.
        names: of the scenes, in evaluation.
    """

    y: Tensor
    phi: Tensor
    truth: Tensor
    names: tuple[str, ...] = ()

    def to(self, device: torch.device) -> Sample:
        """On a device."""
        return Sample(self.y.to(device), self.phi.to(device), self.truth.to(device), self.names)


@dataclass(frozen=True)
class SceneScore:
    """Of one scene: PSNR in dB, SSIM, SAM in degrees."""

    name: str
    psnr: float
    ssim: float
    sam: float


@dataclass(frozen=True)
class ReconstructionScore:
    """Means over the scenes, and the scenes; `protocol` says how (see `widefield.imaging.quality`)."""

    psnr: float
    ssim: float
    sam: float
    scenes: tuple[SceneScore, ...]
    protocol: str

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        scenes = [vars(scene) for scene in self.scenes]
        return {"psnr": self.psnr, "ssim": self.ssim, "sam": self.sam, "protocol": self.protocol, "scenes": scenes}


class Reconstruction:
    """Batches, loss and scores of snapshot reconstruction.

    `batch(step)` is a function of `(seed, step)`: a run that resumes at step s sees what an uninterrupted one saw.

    Args:
        train, val: scenes; without any to train on there are scores alone.
        mask: plain aperture `(h, w)` in [0, 1].
        step: columns between neighbouring bands.
        crop: of training; None: the largest that fits every scene and the mask, at most 256.
        batch_size: samples a step.
        mosaics: share of a batch that is put together from four crops of different scenes.
        augment: quarter turns and flips of the crops.
        random_mask: every sample is coded by a random crop of the mask (the real-data recipe); else the crop's
            size is taken from the mask's upper left corner, always the same.
        noise: "none", or "shot": 11 bits at a quantum efficiency of 0.4.
        loss: of `LOSSES`.
        seed: of crops, order and noise.
        protocol: of the scores.

    Raises:
        ValueError: sizes that do not fit, or an unknown word.
    """

    def __init__(
        self,
        train: CubeSet,
        val: CubeSet,
        mask: Tensor,
        *,
        step: int = 2,
        crop: tuple[int, int] | None = None,
        batch_size: int = 5,
        mosaics: float = 0.5,
        augment: bool = True,
        random_mask: bool = False,
        noise: str = "none",
        loss: str = "rmse",
        seed: int = 0,
        protocol: str = "published",
    ) -> None:
        if loss not in LOSSES:
            raise unknown("loss", loss, LOSSES)
        if noise not in ("none", "shot"):
            raise unknown("noise", noise, ("none", "shot"))
        if protocol not in PROTOCOLS:
            raise unknown("protocol", protocol, PROTOCOLS)
        if batch_size < 1 or not 0 <= mosaics <= 1 or seed < 0:
            raise ValueError(
                f"batch_size must be at least 1, mosaics lie in [0, 1], seed not be negative; got {batch_size}, "
                f"{mosaics}, {seed}"
            )
        if mask.dim() != 2:
            raise ValueError(f"the mask must be a plain aperture (h, w), got {tuple(mask.shape)}")
        # Scores alone need no training scene.
        height, width = (min(edges) for edges in zip(*(train.sizes or val.sizes), strict=True))
        self.crop = crop or (min(256, height, mask.shape[0]), min(256, width, mask.shape[1]))
        if self.crop[0] > height or self.crop[1] > width:
            raise ValueError(
                f"the crop {self.crop} does not fit into scenes of {(height, width)}; give a smaller one"
            )
        if self.crop[0] > mask.shape[0] or self.crop[1] > mask.shape[1]:
            raise ValueError(f"the crop {self.crop} does not fit on a mask of {tuple(mask.shape)}")
        self.train, self.val, self.mask, self.step = train, val, mask, step
        self.batch_size, self.mosaics, self.augment, self.random_mask = batch_size, mosaics, augment, random_mask
        self.noise, self.protocol, self.seed = noise, protocol, seed
        self.loss_name = loss

    def batch(self, step: int) -> Sample:
        """The training batch of a step."""
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        if not len(self.train):
            raise ValueError("no training scene; give a folder that holds more than what scores are made on")
        pieced = round(self.mosaics * self.batch_size)
        cubes, masks = [], []
        for place in range(self.batch_size):
            generator = np.random.default_rng((self.seed, step, place))
            cubes.append(self._mosaic(generator) if place < pieced else self._view(generator))
            masks.append(self._mask(generator))
        truth = torch.stack(cubes)
        phi = dispersed_mask(torch.stack(masks), truth.shape[1], self.step)
        noise = torch.Generator().manual_seed(int(np.random.default_rng((self.seed, step)).integers(2**62)))
        return Sample(self.sense(truth, phi, noise), phi, truth)

    def sense(self, truth: Tensor, phi: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The measurement of cubes `(b, l, h, w)`, with the task's noise."""
        y = measure(disperse(truth, self.step), phi)
        return y if self.noise == "none" else shot_noise(expose(y, truth.shape[1]), generator=generator)

    def batches(self, split: str = "val") -> Iterator[Sample]:
        """Whole scenes in their own order, one at a time; from a scene larger than the mask its middle."""
        if split not in ("train", "val"):
            raise ValueError(f"split must be 'train' or 'val', got {split!r}")
        scenes = self.train if split == "train" else self.val
        for index, name in enumerate(scenes.names):
            truth = centre(scenes[index], self.mask.shape)[None]
            mask = self.mask[: truth.shape[-2], : truth.shape[-1]]
            phi = dispersed_mask(mask[None], truth.shape[1], self.step)
            yield Sample(self.sense(truth, phi, torch.Generator().manual_seed(index)), phi, truth, (name,))

    def loss(self, network: nn.Module, sample: Sample) -> Tensor:
        """The loss of a batch. A network with a loss of its own (CST's error map) says how: `training_loss`."""
        criterion = LOSSES[self.loss_name]
        own: Any = getattr(network, "training_loss", None)
        if own is not None:
            return own(sample.y, sample.phi, sample.truth, criterion)
        return criterion(network(sample.y, sample.phi), sample.truth)

    def score(self, pairs: Iterator[tuple[str, Tensor, Tensor]]) -> ReconstructionScore:
        """Scores of `(name, estimate, truth)`, cubes `(l, h, w)`."""
        scenes = []
        for name, estimate, truth in pairs:
            estimate, truth = estimate.double().cpu(), truth.double().cpu()
            scenes.append(
                SceneScore(
                    name,
                    float(psnr(estimate, truth, protocol=self.protocol)),
                    float(ssim(estimate, truth, protocol=self.protocol)),
                    float(sam(estimate, truth, protocol=self.protocol)),
                )
            )
        if not scenes:
            raise ValueError("no scene to score")
        means = [sum(getattr(s, key) for s in scenes) / len(scenes) for key in ("psnr", "ssim", "sam")]
        return ReconstructionScore(means[0], means[1], means[2], tuple(scenes), self.protocol)

    def _view(self, generator: np.random.Generator) -> Tensor:
        cube = self.train[int(generator.integers(len(self.train)))]
        view = _cut(cube, self.crop, generator)
        if not self.augment:
            return view
        if self.crop[0] == self.crop[1]:
            view = torch.rot90(view, int(generator.integers(4)), (1, 2))
        for axis in (1, 2):
            if generator.random() < 0.5:
                view = view.flip(axis)
        return view

    def _mosaic(self, generator: np.random.Generator) -> Tensor:
        (top, left) = (edge // 2 for edge in self.crop)
        heights, widths = (top, self.crop[0] - top), (left, self.crop[1] - left)
        rows = []
        for h in heights:
            parts = []
            for w in widths:
                cube = self.train[int(generator.integers(len(self.train)))]
                parts.append(_cut(cube, (h, w), generator))
            rows.append(torch.cat(parts, 2))
        return torch.cat(rows, 1)

    def _mask(self, generator: np.random.Generator) -> Tensor:
        if not self.random_mask:
            return self.mask[: self.crop[0], : self.crop[1]]
        return _cut(self.mask[None], self.crop, generator)[0]


def centre(cube: Tensor, size: Sequence[int]) -> Tensor:
    """The middle of `(l, h, w)`, at most `size`."""
    h, w = (min(a, b) for a, b in zip(cube.shape[1:], size, strict=True))
    top, left = (cube.shape[1] - h) // 2, (cube.shape[2] - w) // 2
    return cube[:, top : top + h, left : left + w]


def _cut(x: Tensor, size: tuple[int, int], generator: np.random.Generator) -> Tensor:
    top, left = (int(generator.integers(have - want + 1)) for have, want in zip(x.shape[1:], size, strict=True))
    return x[:, top : top + size[0], left : left + size[1]]
