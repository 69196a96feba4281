# SPDX-License-Identifier: Apache-2.0
"""Sets of spectral cubes: the folders of the CASSI benchmark, a laboratory's own, and one embedded scene.

    indian_pines        embedded: 28 bands of an airborne scene, cut into four quarters, the last held out
    cave_1024_28        scene*.mat, to train on            CAVE_512_28       *.mat, to train on
    KAIST_CVPR2021      *.mat, to train on                 TSA_simu_data     mask.mat, Truth/*.mat, held out
    a folder of these   trains on the first three, scores on the last (the benchmark's `datasets`)
    any other folder    train/ and val/ (or test/), or all files, a fifth held out by the hash of their names

Cubes are read when they are asked for; the last few stay in memory.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from widefield.core.errors import unknown
from widefield.data.cubes import (
    CUBE_ENDINGS,
    cube_size,
    read_cube,
    read_mask,
    resample_evenly,
)
from widefield.data.images import DataError

KEPT_BYTES = 2**30  # of cubes in memory
TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "valid", "validation", "test")
BENCHMARK_TRAINING = ("cave_1024_28", "CAVE_512_28", "KAIST_CVPR2021")
MASK_FILES = ("mask.mat", "mask.npz", "mask.npy")
_SHOWN = 5


class Cubes:
    """Cubes of files, `(l, h, w)` float32 in [0, 1], brought to one number of bands and one size where asked.

    Args:
        files: one a scene.
        bands: evenly resampled to so many; None for those of the files.
        size: `(h, w)`: the middle of larger scenes; smaller ones are continued by reflection.
    """

    def __init__(self, files: Sequence[Path], *, bands: int | None = None, size: tuple[int, int] | None = None):
        self.files, self.bands, self.size = tuple(files), bands, size
        self._kept: OrderedDict[int, Tensor] = OrderedDict()
        self._sizes: list[tuple[int, int]] | None = None

    @property
    def names(self) -> list[str]:
        """Of the scenes."""
        return [path.stem for path in self.files]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """`(h, w)` of every scene, from the files' headers."""
        if self._sizes is None:
            self._sizes = [self.size or cube_size(path)[1:] for path in self.files]
        return self._sizes

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        if index in self._kept:
            self._kept.move_to_end(index)
            return self._kept[index]
        values = fitted(read_cube(self.files[index]).values, self.bands, self.size)
        self._kept[index] = values
        while len(self._kept) > 1 and sum(v.numel() * v.element_size() for v in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return values


class CubeList:
    """Cubes in memory, under names."""

    def __init__(self, cubes: dict[str, Tensor]) -> None:
        self.cubes = cubes

    @property
    def names(self) -> list[str]:
        """Of the scenes."""
        return list(self.cubes)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """`(h, w)` of every scene."""
        return [(cube.shape[1], cube.shape[2]) for cube in self.cubes.values()]

    def __len__(self) -> int:
        return len(self.cubes)

    def __getitem__(self, index: int) -> Tensor:
        return list(self.cubes.values())[index]


@dataclass(frozen=True)
class CubeData:
    """Scenes to train on and scenes held out.

    Attributes:
        name: for tables and records.
        train, val: the two splits; `train` is empty for a test set.
        bands: of every cube.
        wavelengths: in nm, where the files agree on them.
        mask: plain aperture `(h, w)` that the set brings.
        phi: dispersed mask `(l, h, w')` that the set brings.
        problems: files left out, by name, with the reason.
    """

    name: str
    train: Cubes | CubeList
    val: Cubes | CubeList
    bands: int
    wavelengths: tuple[float, ...] | None = None
    mask: Tensor | None = None
    phi: Tensor | None = None
    problems: list[str] = field(default_factory=list)

    def fingerprint(self) -> str:
        """Changes when the scenes or the splits do: a hash of names, lengths and both ends of the files."""
        digest = hashlib.sha256(repr((self.name, self.bands)).encode())
        for split in (self.train, self.val):
            digest.update(repr((split.names, split.sizes)).encode())
            for path in getattr(split, "files", ()):
                with path.open("rb") as file:
                    digest.update(file.read(2**20))
                    length = file.seek(0, 2)
                    file.seek(max(0, length - 2**20))
                    digest.update(file.read() + str(length).encode())
        return digest.hexdigest()[:16]

    def summary(self) -> str:
        """Counts, sizes, and what was left out; for a person."""
        sizes = sorted(set(self.train.sizes) | set(self.val.sizes))
        span = "x".join(map(str, sizes[0])) if sizes else "none"
        if len(sizes) > 1:
            span += f" to {'x'.join(map(str, sizes[-1]))}"
        extras = [name for name in ("mask", "phi") if getattr(self, name) is not None]
        lines = [
            f"{self.name}: {len(self.train)} training and {len(self.val)} held-out scenes ({span}), "
            f"{self.bands} bands{', with its ' + ' and '.join(extras) if extras else ''}"
        ]
        if self.problems:
            lines.append(f"left out: {len(self.problems)}")
            lines += [f"  {problem}" for problem in self.problems[:_SHOWN]]
            if len(self.problems) > _SHOWN:
                lines.append(f"  and {len(self.problems) - _SHOWN} more")
        return "\n".join(lines)


def fitted(values: Tensor, bands: int | None, size: tuple[int, int] | None) -> Tensor:
    """`(l, h, w)` with so many bands and of that size: the middle, or continued by reflection."""
    if bands is not None:
        values = resample_evenly(values, bands)
    if size is None:
        return values
    for axis, wanted in ((1, size[0]), (2, size[1])):
        have = values.shape[axis]
        if wanted <= have:
            values = values.narrow(axis, (have - wanted) // 2, wanted)
        else:
            places = torch.arange(wanted) % (2 * have)
            values = values.index_select(axis, torch.where(places < have, places, 2 * have - 1 - places))
    return values.contiguous()


def load_cubes(
    name_or_path: str | Path,
    *,
    bands: int | None = None,
    size: Sequence[int] | None = None,
    val_fraction: float = 0.2,
) -> CubeData:
    """Loads a set of cubes; see the top of this file for the layouts.

    Args:
        name_or_path: "indian_pines", a directory, or one file, which is then held out.
        bands: evenly resample every cube to so many.
        size: `(h, w)` of every scene: the middle of larger ones, smaller ones continued by reflection.
        val_fraction: share of the scenes of a plain folder that are held out.

    Raises:
        DataError: an unknown name, a folder without usable cubes, or cubes of several numbers of bands.
    """
    wanted = None if size is None else (int(size[0]), int(size[1]))
    path = Path(name_or_path).expanduser()
    if str(name_or_path) == "indian_pines" and not path.exists():
        return indian_pines(bands=bands, size=wanted)
    if path.is_file():
        return _of_files(path.stem, [], [path], bands, wanted)
    if not path.is_dir():
        raise DataError(
            str(unknown("data set of cubes", str(name_or_path), ["indian_pines"]))
            + ", a directory, or a file of a cube"
        )
    path = path.resolve()
    for name in BENCHMARK_TRAINING:
        if path.name.lower() == name.lower():
            return _of_files(path.name, _cubes_in(path), [], bands, wanted, val_fraction)
    if (truth := _child(path, ("Truth",))) is not None:
        return _of_files(path.name, [], _cubes_in(truth), bands, wanted, masks=path)
    parts = [child for name in BENCHMARK_TRAINING if (child := _child(path, (name,)))]
    test = _child(path, ("TSA_simu_data",))
    if parts or test is not None:
        training = [file for part in parts for file in _cubes_in(part)]
        truth = None if test is None else _child(test, ("Truth",))
        held_out = [] if truth is None else _cubes_in(truth)
        return _of_files(path.name, training, held_out, bands, wanted, val_fraction, masks=test)
    train, val = _child(path, TRAIN_FOLDERS), _child(path, VAL_FOLDERS)
    if train is not None and val is not None:
        return _of_files(path.name, _cubes_in(train), _cubes_in(val), bands, wanted, masks=path)
    return _of_files(path.name, _cubes_in(path), [], bands, wanted, val_fraction, masks=path)


def indian_pines(*, bands: int | None = None, size: tuple[int, int] | None = None) -> CubeData:
    """The embedded scene: AVIRIS, Indian Pines, 128 x 128, 28 of its 200 bands; four quarters, the last held out.

    Data: Baumgardner, Biehl, Landgrebe 2015, doi:10.4231/R7RX991C, CC BY 3.0; values divided by their maximum.
    """
    with resources.files("widefield.data").joinpath("embedded/indian_pines.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)["cube"].astype(np.float32)
    values = torch.from_numpy(np.ascontiguousarray((stored / stored.max()).transpose(2, 0, 1)))
    half = values.shape[1] // 2
    quarters = {
        f"{row}-{column}": fitted(values[:, top : top + half, left : left + half], bands, size)
        for row, top in (("north", 0), ("south", half))
        for column, left in (("west", 0), ("east", half))
    }
    last = {"south-east": quarters.pop("south-east")}
    return CubeData("indian_pines", CubeList(quarters), CubeList(last), next(iter(last.values())).shape[0])


def _of_files(
    name: str,
    train: Sequence[Path],
    val: Sequence[Path],
    bands: int | None,
    size: tuple[int, int] | None,
    val_fraction: float = 0.2,
    masks: Path | None = None,
) -> CubeData:
    problems: list[str] = []
    found: dict[Path, int] = {}
    for path in (*train, *val):
        try:
            found[path] = cube_size(path)[0]
            if path.stat().st_size <= 2**24:  # small files are read, so that broken ones are named now
                read_cube(path)
        except DataError as error:
            found.pop(path, None)
            problems.append(str(error))
    if not found:
        told = "\n  ".join(problems[:_SHOWN]) or f"there are none ({', '.join(CUBE_ENDINGS)})"
        raise DataError(f"{name}: no usable cube:\n  {told}")
    usual = max(set(found.values()), key=lambda b: (list(found.values()).count(b), b))
    if bands is None:
        problems += [f"{p}: {b} bands, the others have {usual}; --bands brings them together"
                     for p, b in found.items() if b != usual]  # fmt: skip
        found = {p: b for p, b in found.items() if b == usual}
    kept_train, kept_val = [p for p in train if p in found], [p for p in val if p in found]
    if not kept_val:
        kept_train, kept_val = _split(kept_train, val_fraction)
    mask = phi = None
    if masks is not None:
        plain = next((masks / f for f in MASK_FILES if (masks / f).is_file()), None)
        try:
            mask = None if plain is None else read_mask(plain)
            dispersed = masks / "mask_3d_shift.mat"
            phi = read_mask(dispersed) if dispersed.is_file() else None
        except DataError as error:
            problems.append(str(error))
    first = read_cube(kept_val[0])
    return CubeData(
        name, Cubes(kept_train, bands=bands, size=size), Cubes(kept_val, bands=bands, size=size), bands or usual,
        first.wavelengths if bands is None else None, mask, phi, problems,
    )  # fmt: skip


def _split(files: Sequence[Path], fraction: float) -> tuple[list[Path], list[Path]]:
    if not 0 < fraction < 1:
        raise DataError(f"val_fraction must lie between 0 and 1, got {fraction}")
    ordered = sorted(files, key=lambda p: (hashlib.sha256(p.name.encode()).hexdigest(), p))
    cut = min(max(round(fraction * len(ordered)), 1), len(ordered))
    return sorted(ordered[cut:], key=_natural), sorted(ordered[:cut], key=_natural)


def _cubes_in(folder: Path) -> list[Path]:
    masks = {*MASK_FILES, "mask_3d_shift.mat"}
    files = [p for p in folder.iterdir() if p.suffix.lower() in CUBE_ENDINGS and p.name not in masks]
    return sorted((p for p in files if not p.name.startswith(".")), key=_natural)


def _natural(path: Path) -> tuple[int, str]:
    digits = "".join(c for c in path.stem if c.isdigit())
    return (int(digits) if digits else 0, path.name)


def _child(folder: Path, names: Sequence[str]) -> Path | None:
    lower = {name.lower() for name in names}
    return next((p for p in sorted(folder.iterdir()) if p.is_dir() and p.name.lower() in lower), None)
