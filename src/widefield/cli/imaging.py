# SPDX-License-Identifier: Apache-2.0
"""The commands of snapshot imaging: `simulate` and `reconstruct`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from widefield.cli import tables
from widefield.cli.words import Flag, Name, integers, set_threads


@dataclass(frozen=True)
class Simulate:
    """What a coded aperture snapshot camera would measure of a cube."""

    cube: Name
    """.mat, .npz, .npy or ENVI (.hdr)"""
    out: Path
    """where the measurement goes: .npz or .mat; it holds the mask too"""
    mask: str = "random"
    """file of the aperture, or 'random'"""
    bands: int | None = None
    """take so many bands, evenly spaced (default: all)"""
    step: int = 2
    """columns between neighbouring bands on the sensor"""
    size: str | None = None
    """height,width: the middle of the cube, or the cube repeated by reflection (default: what the mask covers)"""
    noise: Literal["none", "shot", "gaussian"] = "none"
    """shot: 11 bits at a quantum efficiency of 0.4, exposed as a real camera"""
    deviation: float = 0.01
    """of Gaussian noise"""
    seed: int = 0
    """of a random mask and of the noise"""
    key: str | None = None
    """name of the array, where a file holds several"""
    json: Flag = False
    """print what was written as JSON"""

    def run(self) -> int:
        import torch

        from widefield.data.cube_sets import fitted
        from widefield.data.cubes import read_cube, read_mask, write_measurement
        from widefield.imaging import Snapshot, expose, gaussian_noise, shot_noise
        from widefield.lab.reconstruction import random_mask
        from widefield.tasks.reconstruction import centre

        cube = read_cube(Path(self.cube), self.key)
        values = fitted(cube.values, self.bands, _size(self.size) if self.size else None)
        size = values.shape[1:]
        mask = random_mask((size[0], size[1]), self.seed) if self.mask == "random" else read_mask(Path(self.mask))
        if mask.dim() == 3:
            operator = Snapshot.measured(mask, self.step)
        else:
            values = centre(values, mask.shape)
            mask = mask[: values.shape[1], : values.shape[2]]
            operator = Snapshot.cassi(mask, values.shape[0], self.step)
        y = operator.forward(values[None])
        generator = torch.Generator().manual_seed(self.seed)
        if self.noise == "shot":
            y = shot_noise(expose(y, values.shape[0]), generator=generator)
        elif self.noise == "gaussian":
            y = gaussian_noise(y, self.deviation, generator)
        write_measurement(self.out, y[0], mask=mask, step=self.step)
        said = {
            "measurement": str(self.out), "shape": list(y.shape[1:]), "bands": values.shape[0], "step": self.step,
            "scene": list(values.shape[1:]), "noise": self.noise, "scale": cube.scale,
        }  # fmt: skip
        if self.json:
            tables.print_json(said)
        else:
            print(
                f"{self.out}: {y.shape[1]} x {y.shape[2]} of a scene {values.shape[1]} x {values.shape[2]} with "
                f"{values.shape[0]} bands, step {self.step}, noise {self.noise}; values {cube.scale}"
            )
        return 0


@dataclass(frozen=True)
class Reconstruct:
    """Turn a snapshot measurement into a spectral cube."""

    measurement: Name
    """.npz or .mat"""
    model: str
    """a network (with --weights), 'gap-tv', 'admm-tv', 'twist' or 'first-estimate'; options: name+option=value"""
    mask: str | None = None
    """file of the aperture, plain or dispersed (default: the one that the measurement's file holds)"""
    weights: Path | None = None
    """.safetensors, or a .pth of the published toolbox"""
    out: Path | None = None
    """where the cube goes: .mat, .npz or ENVI .hdr (default: <measurement>-<model>.npz)"""
    truth: Path | None = None
    """a cube to be compared with"""
    picture: Path | None = None
    """a PNG: the cube in colour, chosen bands, spectra (default: beside the cube)"""
    step: int | None = None
    """columns between neighbouring bands (default: what the file says, else 2)"""
    scale: float | None = None
    """the measurement is divided by its maximum and multiplied by this, as is usual for real ones (0.8)"""
    rows: int = 256
    """rows reconstructed at a time; large scenes run in overlapping strips"""
    overlap: int = 32
    """rows that neighbouring strips share"""
    key: str | None = None
    """name of the array in the measurement's file"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where networks run"""
    threads: int | None = None
    """CPU threads (default: torch's)"""
    json: Flag = False
    """print the scores as JSON"""

    def run(self) -> int:
        import time

        from rich.console import Console
        from rich.progress import Progress

        from widefield.data.cubes import read_cube, read_measurement, write_cube
        from widefield.imaging import QUALITY, in_strips
        from widefield.lab.methods import load_estimator
        from widefield.lab.report.cube_picture import write_picture

        set_threads(self.threads)
        snapshot = read_measurement(Path(self.measurement), self.key)
        y = snapshot.values
        if self.scale is not None:
            y = y / y.max() * self.scale
        phi, step = self._phi(snapshot)
        estimator = load_estimator(self.model, phi.shape[0], step, weights=self.weights, device=self.device)
        begun = time.perf_counter()
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(self.model, total=None)
            cube = in_strips(
                estimator, y[None], phi, rows=self.rows, overlap=max(0, min(self.overlap, self.rows - 1)),
                told=lambda done, total: bar.update(task, completed=done, total=total),
            )[0]  # fmt: skip
        seconds = time.perf_counter() - begun
        stem = Path(self.measurement).with_suffix("")
        out = self.out or stem.with_name(f"{stem.name}-{self.model.split('+')[0] or 'mst++'}.npz")
        truth = None if self.truth is None else read_cube(self.truth)
        wavelengths = None if truth is None else truth.wavelengths
        write_cube(out, cube, wavelengths=wavelengths)
        picture = self.picture or out.with_suffix(".png")
        reference = None if truth is None else _fit(truth.values, cube)
        write_picture(picture, cube, truth=reference, wavelengths=wavelengths, title=f"{self.model}")
        said: dict[str, Any] = {
            "cube": str(out), "picture": str(picture), "shape": list(cube.shape), "seconds": round(seconds, 3)
        }  # fmt: skip
        if reference is not None:
            said["protocol"] = "published: clipped to [0, 1], 8 bits, mean over bands"
            for name in ("psnr", "ssim", "sam"):
                said[name] = float(QUALITY[name](cube.double(), reference.double()))
        if self.json:
            tables.print_json(said)
        else:
            print(f"{out}: {' x '.join(map(str, cube.shape))} in {seconds:.1f} s; picture: {picture}")
            if reference is not None:
                print(
                    f"PSNR {said['psnr']:.2f} dB, SSIM {said['ssim']:.3f}, SAM {said['sam']:.2f} degrees "
                    f"({said['protocol']})"
                )
        return 0

    def _phi(self, snapshot: Any) -> tuple[Any, int]:
        from widefield.data.cubes import read_mask
        from widefield.imaging import dispersed_mask

        step = self.step if self.step is not None else snapshot.step if snapshot.step is not None else 2
        mask = read_mask(Path(self.mask)) if self.mask is not None else snapshot.mask
        if mask is None:
            raise ValueError(f"{self.measurement} holds no mask; give --mask FILE")
        height, wide = snapshot.values.shape
        if mask.dim() == 3:
            if tuple(mask.shape[1:]) != (height, wide):
                raise ValueError(
                    f"the dispersed mask is {tuple(mask.shape[1:])} a band, the measurement {(height, wide)}; "
                    "they must be of one size"
                )
            return mask, step
        extra = wide - mask.shape[1]
        if mask.shape[0] != height or extra < 0 or (step == 0) != (extra == 0) or (step and extra % step):
            raise ValueError(
                f"a mask of {tuple(mask.shape)} and a step of {step} do not explain a measurement of "
                f"{(height, wide)}: its rows must be those of the mask, its width that of the mask and a "
                "whole number of steps"
            )
        return dispersed_mask(mask, extra // step + 1, step), step


def _size(text: str) -> tuple[int, int]:
    size = integers(text, "--size")
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"--size takes height,width, got {text!r}")
    return size[0], size[1]


def _fit(truth: Any, cube: Any) -> Any:
    from widefield.data.cubes import resample_evenly
    from widefield.tasks.reconstruction import centre

    if truth.shape[0] != cube.shape[0]:
        truth = resample_evenly(truth, cube.shape[0])
    truth = centre(truth, cube.shape[1:])
    if truth.shape != cube.shape:
        raise ValueError(
            f"the truth is {tuple(truth.shape)}, the cube {tuple(cube.shape)}; they must be of one size"
        )
    return truth
