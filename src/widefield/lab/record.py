# SPDX-License-Identifier: Apache-2.0
"""What a run leaves on disk, and what it resumes from.

experiment.json         what was asked for
metrics.jsonl           a line a logged step
checkpoint.safetensors  network, optimiser and step in one file, replaced whole; gone when the run is finished
evidence.npz            example pictures, what the module looks at, spectra
timing.json             seconds; not part of the record, since no two runs take equally long
model.safetensors       the trained network
record.json             the result, written last: a folder with it is finished and never run again
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widefield.core.extras import require
from widefield.core.files import read_json, write_bytes, write_json, write_text
from widefield.lab.experiment import Plan

_MODEL, _OPTIMIZER = "model/", "optimizer/"


@dataclass(frozen=True)
class Record:
    """A run's folder."""

    folder: Path

    @classmethod
    def open(cls, root: Path, plan: Plan) -> Record:
        """The folder of a plan below `root`, made if need be.

        Raises:
            ValueError: the folder holds another experiment.
        """
        record = cls(root / plan.folder)
        path = record.folder / "experiment.json"
        try:
            found = type(plan).from_json(path.read_text(encoding="utf-8")) if path.exists() else None
        except (ValueError, TypeError, AttributeError) as error:
            # The folder's name is the experiment's hash, so what it was is known.
            _set_aside(path, error, "written again")
            found = None
        if found is None:
            write_text(path, plan.to_json() + "\n")
        elif found.to_json() != plan.to_json():  # tuples come back as lists
            raise ValueError(f"{path} holds another experiment; choose another --out or delete that folder")
        if record.finished:
            try:
                plan.check_result(record.result)
            except (ValueError, TypeError, KeyError) as error:
                _set_aside(record.folder / "record.json", error, "this run is done again")
        return record

    @property
    def finished(self) -> bool:
        """Whether the result is there."""
        return (self.folder / "record.json").exists()

    @property
    def result(self) -> dict[str, Any]:
        """The result of a finished run.

        Raises:
            ValueError: the run is not finished, or the file is damaged.
        """
        if not self.finished:
            raise ValueError(f"{self.folder} is not finished: run it again, it resumes")
        return read_json(self.folder / "record.json")

    @property
    def seconds(self) -> float:
        """Time spent training, over all attempts."""
        try:
            return float(read_json(self.folder / "timing.json")["seconds"])
        except (OSError, ValueError, TypeError, KeyError):
            return 0.0

    @property
    def evidence(self) -> Path | None:
        """The file of pictures and spectra, if there is one."""
        path = self.folder / "evidence.npz"
        return path if path.exists() else None

    def finish(self, result: dict[str, Any], model: nn.Module | None) -> None:
        """Writes the network, if there is one, then the result, then forgets the checkpoint."""
        if model is not None:
            save = require("safetensors.torch", "weights").save
            state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
            write_bytes(self.folder / "model.safetensors", save(state))
        write_json(self.folder / "record.json", result)
        (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def log(self, **values: Any) -> None:
        """Appends a line to metrics.jsonl."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def lines(self) -> Iterator[dict[str, Any]]:
        """The logged lines; one that a kill cut short is passed over."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(found, dict) and isinstance(found.get("step"), int):
                yield found

    def save_checkpoint(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, seconds: float
    ) -> None:
        """Replaces the checkpoint: the state after `step` updates."""
        tensors: dict[str, Tensor] = {f"{_MODEL}{k}": v.detach() for k, v in model.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"{_OPTIMIZER}{index}/{name}"] = torch.as_tensor(value).detach()
        tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
        save = require("safetensors.torch", "weights").save
        meta = {"step": str(step), "seconds": f"{seconds:.3f}"}
        write_bytes(self.folder / "checkpoint.safetensors", save(tensors, metadata=meta))

    def load_checkpoint(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
        """Restores the last checkpoint and cuts metrics.jsonl back to it: steps done, seconds spent.

        Warns:
            DamagedFile: the file cannot be read; it is set aside and the run starts over.
        """
        path = self.folder / "checkpoint.safetensors"
        step, seconds = 0, 0.0
        if path.exists():
            try:
                meta, tensors = _read(path)
                step, seconds = int(meta["step"]), float(meta["seconds"])
                if {k for k in tensors if k.startswith(_MODEL)} != {_MODEL + k for k in model.state_dict()}:
                    raise ValueError("it holds the state of another network")
            except Exception as error:
                step, seconds = 0, 0.0
                _set_aside(path, error, "this run starts over")
            else:
                _restore(tensors, model, optimizer)
        kept = [json.dumps(line) for line in self.lines() if line["step"] <= step]
        write_text(self.folder / "metrics.jsonl", "".join(line + "\n" for line in kept))
        return step, seconds


class DamagedFile(UserWarning):
    """A file of a record that cannot be read."""


def _set_aside(path: Path, error: Exception, what: str) -> None:
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    reason = str(error) or type(error).__name__
    warnings.warn(
        f"{path} cannot be read ({reason}); set aside as {aside.name}, {what}", DamagedFile, stacklevel=3
    )


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with require("safetensors", "weights").safe_open(str(path), framework="pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _restore(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict({k.removeprefix(_MODEL): v for k, v in tensors.items() if k.startswith(_MODEL)})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(_OPTIMIZER):
            index, _, key = name.removeprefix(_OPTIMIZER).partition("/")
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
