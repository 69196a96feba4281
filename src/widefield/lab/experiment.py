# SPDX-License-Identifier: Apache-2.0
"""One training run as a value: frozen, serialisable, the only thing that crosses a process border."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from widefield.core.errors import unknown

SCHEMA = 1


@dataclass(frozen=True)
class Experiment:
    """Train one segmenter with one context module on one data set, from one seed.

    Two equal experiments give the same record, on the same machine and library versions.

    Attributes:
        module: registered name of the context module.
        options: of the module.
        data: "scenes", or the directory of a data set.
        data_options: of `load_segmentation`.
        data_state: fingerprint of the data, so that a folder that changed is another experiment.
        backbone, pretrained, output_stride, width: of the `Segmenter`.
        freeze_backbone: the backbone's features are computed once and only what follows is trained.
        crop, batch_size, steps, seed: of the training.
        lr: None takes the task's recipe.
        evaluate_every: steps between two validations; the last step is always validated.
        gate: gates that a paper starts at zero are set to this; None leaves them closed.
        precision: as lightning-fabric names it, "32-true" or "bf16-mixed".
        device: "cpu", "cuda" or "auto".
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
    batch_size: int = 32
    steps: int = 400
    seed: int = 0
    lr: float | None = None
    evaluate_every: int = 100
    gate: float | None = 1.0
    precision: str = "32-true"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or self.evaluate_every < 1:
            raise ValueError(
                f"steps, batch_size and evaluate_every must be at least 1, got {self.steps}, {self.batch_size}, "
                f"{self.evaluate_every}"
            )
        if self.crop is not None and min(self.crop) < 1:
            raise ValueError(f"crop must be a height and a width of at least 1, got {self.crop}")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        try:
            self.to_json()
        except TypeError as error:
            raise ValueError(f"an experiment holds plain numbers, strings and lists only: {error}") from error

    def to_json(self) -> str:
        """Canonical JSON; `from_json` gives an equal experiment back."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Experiment:
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
        """Short hash of everything: two experiments with one key are the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.module}-seed{self.seed}-{self.key}"
