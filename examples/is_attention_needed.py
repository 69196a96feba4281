# SPDX-License-Identifier: Apache-2.0
"""Is attention needed? One small network of tokens, trained with one mixer after another.

Two handwritten digits stand side by side; do they show the same number? Nothing near a stroke says so: the halves
must be compared. A network whose patches hear of no other ("none") is bound to a guess. Reads the digits that
scikit-learn ships; minutes on a CPU.

    python examples/is_attention_needed.py attention mlp-mixer hamburger-nmf
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from widefield.lab.statistics import estimate
from widefield.models.tokens import TokenClassifier

MIXERS = (
    "none",
    "attention",
    "attention-only",
    "ff-only",
    "mlp-mixer",
    "resmlp",
    "gmlp",
    "hamburger-nmf",
)


def pairs(digits: Tensor, classes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of two digits, `(count, 1, 8, 16)`, half of them of one class, and whether they are: `(count,)`."""
    left = torch.randint(len(digits), (count,), generator=generator)
    same = torch.rand(count, generator=generator) < 0.5
    fits = (classes[left][:, None] == classes) == same[:, None]
    right = torch.multinomial(fits.float(), 1, generator=generator)[:, 0]
    return torch.cat([digits[left], digits[right]], 2)[:, None], same.long()


def accuracy(mixer: str, *, steps: int, seed: int) -> float:
    """Trains one network; its accuracy on pairs of digits that it has never seen."""
    pictures, labels = load_digits(return_X_y=True)
    digits, classes = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 8, 8) / 8 - 1, torch.tensor(labels)
    torch.manual_seed(seed)
    model = TokenClassifier(
        2, image_size=(8, 16), patch=4, in_channels=1, width=48, depth=2, mixer=mixer, prefix_tokens=0,
        positions="table",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = pairs(digits[:1400], classes[:1400], 64, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    x, y = pairs(digits[1400:], classes[1400:], 4000, torch.Generator().manual_seed(0))
    with torch.no_grad():
        return float((model.eval()(x).argmax(1) == y).float().mean())


def main(mixers: Sequence[str] = MIXERS, *, steps: int = 2000, seeds: int = 3) -> dict[str, float]:
    """Prints a line a mixer and returns the mean accuracies."""
    means = {}
    for mixer in mixers:
        found = estimate([accuracy(mixer, steps=steps, seed=seed) for seed in range(seeds)])
        spread = "" if found.half_width is None else f" +- {found.half_width:.3f}"
        print(f"{mixer:16} {found.mean:.3f}{spread}", flush=True)
        means[mixer] = found.mean
    return means


if __name__ == "__main__":
    main(sys.argv[1:] or MIXERS)
