# SPDX-License-Identifier: Apache-2.0
"""How much better a network is on its training samples than on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from widefield.lab.samples import Prepared
from widefield.lab.statistics import estimate
from widefield.measure.capacity import Copies, Procedure
from widefield.measure.capacity.procedure import DTYPES
from widefield.measure.capacity.train import Fit, Job, missed, train


def generalisation_gap(
    build: Callable[[], nn.Module], prepared: Prepared, procedure: Procedure, seeds: int, device: str = "cpu"
) -> dict[str, Any]:
    """Training minus held-out accuracy of networks trained on all training samples, under the same procedure.

    Of the rates the one with the fewest wrong training samples counts, at its end.

    Returns:
        `mean`, `half_width`, `values` over seeds, and the mean accuracies `train` and `held_out_accuracy`.
    """
    samples, val = prepared.train, prepared.val
    copies = Copies(build, samples.inputs.shape[1:], samples.outputs, dtype=DTYPES[procedure.dtype], device=device)
    jobs = [Job(samples, rate, seed, seed, True) for seed in range(seeds) for rate in procedure.rates]
    fits = train(copies, procedure, jobs, members=max(1, min(256, (1 << 26) // copies.parameters)))
    accuracies = []
    for seed in range(seeds):
        best = min((fit for fit, job in zip(fits, jobs, strict=True) if job.seed == seed), key=_nearness)
        parts = [(s.inputs.to(copies.device, copies.dtype), s.labels.to(copies.device)) for s in (samples, val)]
        accuracies.append([_accuracy(copies, best, x, y, samples.num_classes) for x, y in parts])
    gaps = [a - b for a, b in accuracies]
    found = estimate(gaps)
    return {
        "mean": found.mean, "half_width": found.half_width, "values": gaps,
        "train": sum(a for a, _ in accuracies) / seeds,
        "held_out_accuracy": sum(b for _, b in accuracies) / seeds,
    }  # fmt: skip


def _nearness(fit: Fit) -> tuple[float, float]:
    return fit.wrong, fit.loss if fit.loss == fit.loss else float("inf")


@torch.no_grad()
def _accuracy(copies: Copies, fit: Fit, x: torch.Tensor, y: torch.Tensor, num_classes: int) -> float:
    assert fit.flat is not None
    wrong = 0
    for a, b in zip(x.split(4096), y.split(4096), strict=True):
        output = copies.one(fit.flat, fit.buffers, a)
        wrong += int(missed(output[None], b[None], num_classes, torch.zeros(1, device=a.device)).sum())
    return 1 - wrong / len(x)
