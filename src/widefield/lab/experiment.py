# SPDX-License-Identifier: Apache-2.0
"""One training run as a value: frozen, serialisable, the only thing that crosses a process border."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from widefield.core.errors import unknown

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One training run as a value. Two equal plans give the same record, on the same machine and library versions.

    Attributes:
        batch_size, steps, seed: of the training.
        lr: None takes the task's recipe.
        evaluate_every: steps between two validations; the last step is always validated.
        precision: as lightning-fabric names it, "32-true" or "bf16-mixed".
        device: "cpu", "cuda" or "auto".
    """

    batch_size: int = 32
    steps: int = 400
    seed: int = 0
    lr: float | None = None
    evaluate_every: int = 100
    precision: str = "32-true"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or self.evaluate_every < 1:
            raise ValueError(
                f"steps, batch_size and evaluate_every must be at least 1, got {self.steps}, {self.batch_size}, "
                f"{self.evaluate_every}"
            )
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        try:
            self.to_json()
        except TypeError as error:
            raise ValueError(f"an experiment holds plain numbers, strings and lists only: {error}") from error

    def to_json(self) -> str:
        """Canonical JSON; `from_json` gives an equal plan back."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads `to_json`.

        Raises:
            ValueError: another schema or fields that do not exist.
        """
        values = json.loads(text)
        schema = values.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"the experiment was written with schema {schema}, this version reads {SCHEMA}")
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown("field of an experiment", name, known)
        if values.get("crop") is not None:
            values["crop"] = tuple(values["crop"])
        return cls(**values)

    @property
    def key(self) -> str:
        """Short hash of everything: two plans with one key are the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.label}-seed{self.seed}-{self.key}"

    @property
    def label(self) -> str:
        """What is trained, for file names and messages."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What is trained, for people who watch."""
        return f"{self.label} seed {self.seed}"

    def check_result(self, result: Any) -> None:
        """Raises KeyError, TypeError or ValueError where a record lacks what a comparison reads from it."""
        _ = result["score"], result["parameters"]["total"]


def check_crop(crop: tuple[int, int] | None) -> None:
    """Raises a ValueError for an empty crop."""
    if crop is not None and min(crop) < 1:
        raise ValueError(f"crop must be a height and a width of at least 1, got {crop}")


@dataclass(frozen=True)
class Experiment(Plan):
    """Train one segmenter with one context module on one data set, from one seed.

    Attributes:
        module: registered name of the context module.
        options: of the module.
        data: "scenes", or the directory of a data set.
        data_options: of `load_segmentation`.
        data_state: fingerprint of the data, so that a folder that changed is another experiment.
        backbone, pretrained, output_stride, width: of the `Segmenter`.
        freeze_backbone: the backbone's features are computed once and only what follows is trained.
        crop: of training pictures.
        gate: gates that a paper starts at zero are set to this; None leaves them closed.
    """

    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "scenes"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    data_state: str = ""
    backbone: str = "plain"
    pretrained: str = "auto"
    output_stride: int | None = None
    width: int | None = None
    freeze_backbone: bool = False
    crop: tuple[int, int] | None = None
    gate: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_crop(self.crop)

    @property
    def label(self) -> str:
        return self.module

    @property
    def title(self) -> str:
        gradient = self.options.get("gradient")
        return f"{self.module}{f' {gradient}' if gradient else ''} seed {self.seed}"

    def check_result(self, result: Any) -> None:
        super().check_result(result)
        _ = result["score"]["miou"], result["gradients"]
