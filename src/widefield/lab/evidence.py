# SPDX-License-Identifier: Apache-2.0
"""What a trained module does, to be looked at: predictions, what one position sees, coefficient maps, spectra."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from widefield.core.errors import NoOperator
from widefield.core.files import write_bytes
from widefield.core.layout import to_positions
from widefield.lab.gradients import iterative_parts
from widefield.measure import spectrum
from widefield.models.segmenter import Segmenter
from widefield.tasks.segmentation import Segmentation

EXAMPLES = 4
MAPS = 4
SPECTRUM_BATCHES = 4


class Source(Protocol):
    """Batches, and how they become what the context sees."""

    def batches(self, split: str) -> Any: ...

    def features(self, model: Segmenter, inputs: Tensor) -> Tensor: ...

    def logits(self, model: Segmenter, inputs: Tensor, labels: Tensor) -> Tensor: ...


def save_evidence(
    folder: Path, model: Segmenter, task: Segmentation, source: Source, device: torch.device
) -> Tensor:
    """Writes evidence.npz of a trained model, from the first pictures of the validation split; returns what the
    context saw of the first few.

    The file holds, for k examples, `images_i` `(3, H, W)` uint8, `labels_i` and `predictions_i` `(H, W)` uint8,
    `pixel_i` (row, column on the feature map), `sees_i` `(h, w)`, and where the module has them `attention_i`
    `(h, w)` and `codes_i` `(r, h, w)`; and the singular values before and after, as means over pictures.
    """
    model.eval()
    found: dict[str, np.ndarray] = {}
    batches = source.batches("val")
    index, seen = 0, []
    for inputs, labels in batches:
        inputs = inputs.to(device)
        with torch.no_grad():
            features = source.features(model, inputs)
            if len(seen) < SPECTRUM_BATCHES:
                seen.append(features)
            predictions = source.logits(model, inputs, labels).argmax(1).to(torch.uint8)
        for i in range(min(len(inputs), EXAMPLES - index)):
            image, _ = task.data.val[index]
            row, column = _position(labels[i], features.shape[-2:])
            found |= {
                f"images_{index}": image.numpy().astype(np.uint8),
                f"labels_{index}": labels[i].to(torch.uint8).cpu().numpy(),
                f"predictions_{index}": predictions[i].cpu().numpy(),
                f"pixel_{index}": np.array([row, column], dtype=np.int64),
            }
            found |= {f"{k}_{index}": v for k, v in look(model.context, features[i : i + 1], row, column).items()}
            index += 1
        if index >= EXAMPLES and len(seen) >= SPECTRUM_BATCHES:
            break
    result = spectrum(model.context, seen)
    found["spectrum_before"] = np.asarray(result.before.values, dtype=np.float64)
    found["spectrum_after"] = np.asarray(result.after.values, dtype=np.float64)
    found["effective_rank_before"] = np.array(result.before.effective_rank)
    found["effective_rank_after"] = np.array(result.after.effective_rank)
    packed = io.BytesIO()
    np.savez_compressed(packed, **found)  # type: ignore[arg-type]
    write_bytes(folder / "evidence.npz", packed.getvalue())
    return seen[0][:EXAMPLES]


def look(context: nn.Module, features: Tensor, row: int, column: int) -> dict[str, np.ndarray]:
    """What the position (row, column) of one map `(1, c, h, w)` sees through a module.

    Returns:
        `sees` `(h, w)`: size of the gradient of the output there with respect to the input at every position,
        the largest 1, through all the steps of an iterative module whatever gradient it trains with;
        `attention` `(h, w)`: the row of the mixing matrix, where there is one; `codes` `(r, h, w)`: how much of
        each of the strongest bases a position has, where there are bases.
    """
    space = features.shape[-2:]
    found = {"sees": _sees(context, features, row, column)}
    operator: Any = getattr(context, "operator", None)
    if operator is not None:
        try:
            with torch.no_grad():
                weights = operator(features, torch.tensor([row * space[1] + column], device=features.device))[0, 0]
            if weights.numel() == space[0] * space[1]:
                found["attention"] = weights.reshape(space).float().cpu().numpy()
        except NoOperator:
            pass
    codes_map: Any = getattr(context, "codes_map", None)
    if codes_map is not None:
        codes = codes_map(features)[0].float()
        strongest = to_positions(codes[None])[0][0].square().sum(1).argsort(descending=True)[:MAPS]
        found["codes"] = codes[strongest].cpu().numpy()
    return found


def _sees(context: nn.Module, features: Tensor, row: int, column: int) -> np.ndarray:
    parts = iterative_parts(context)
    kept = [part.gradient for part in parts]
    try:
        for part in parts:
            part.gradient = "unrolled"
        with torch.enable_grad():
            x = features.detach().requires_grad_()
            here = context(x)[0, :, row, column]
            (gradient,) = torch.autograd.grad((here * here.detach()).sum(), x)
    finally:
        for part, policy in zip(parts, kept, strict=True):
            part.gradient = policy
    size = gradient[0].square().sum(0).sqrt()
    return (size / size.max().clamp(min=torch.finfo(size.dtype).tiny)).float().cpu().numpy()


def _position(labels: Tensor, space: torch.Size) -> tuple[int, int]:
    """The labelled position nearest to the middle, on the feature map."""
    valid = (labels != 255).nonzero().double()
    height, width = labels.shape
    middle = torch.tensor([height / 2, width / 2], dtype=torch.float64, device=labels.device)
    row, column = (valid[(valid - middle).square().sum(1).argmin()] if len(valid) else middle).tolist()
    return min(int(row * space[0] / height), space[0] - 1), min(int(column * space[1] / width), space[1] - 1)
