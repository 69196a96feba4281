# SPDX-License-Identifier: Apache-2.0
"""Auto-encoders as a start for a deep network: each layer learns to keep what it is given, before any label is
seen.

greedy   one layer after the other: decode(layer(z)) = z, z from the layers below, which stand still
joint    all layers and a mirrored stack of decoders at once: the input from the top

Paper   Bengio et al., Greedy Layer-Wise Training of Deep Networks, 2006; Vincent et al., 2008 (`noise`).
Differs decoders are linear and have weights of their own; they are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import unknown

MODES = ("none", "greedy", "joint")


def pretrain(
    layers: Sequence[nn.Module],
    batch: Callable[[int], Tensor],
    *,
    mode: str,
    steps: int,
    lr: float = 1e-3,
    noise: float = 0.0,
    told: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains layers as auto-encoders, in place.

    Args:
        layers: each from `(b, d)` to `(b, d')`; left in the mode that they come in.
        batch: step to `(b, d)`.
        mode: "greedy" or "joint" ("none" does nothing).
        steps: of every layer, or of all of them together times the number of layers: the same updates in all.
        lr: of Adam.
        noise: share of the input that is set to zero; the whole one is to be said.
        told: step and loss.

    Returns:
        The reconstruction error, squared, over the variance of what is reconstructed: of every layer, or of all.

    Raises:
        UnknownName: a mode that does not exist. ValueError: no step, or a share that is none.
    """
    if mode not in MODES:
        raise unknown("pre-training", mode, MODES)
    if mode == "none":
        return []
    if steps < 1 or not 0 <= noise < 1:
        raise ValueError(f"pre-training needs at least one step and noise in [0, 1), got {steps} and {noise}")
    if mode == "joint":
        return [_reconstruct([], layers, batch, steps * len(layers), lr, noise, told)]
    return [
        _reconstruct(layers[:depth], layers[depth : depth + 1], batch, steps, lr, noise, told)
        for depth in range(len(layers))
    ]


def _reconstruct(
    below: Sequence[nn.Module],
    trained: Sequence[nn.Module],
    batch: Callable[[int], Tensor],
    steps: int,
    lr: float,
    noise: float,
    told: Callable[[int, float], None] | None,
) -> float:
    def entering(step: int) -> Tensor:
        with torch.no_grad():
            z = batch(step)
            for layer in below:
                z = layer(z)
        return z

    z = entering(0)
    widths, inner = [z.shape[1]], z
    with torch.no_grad():
        for layer in trained:
            inner = layer(inner)
            widths.append(inner.shape[1])
    # The layers' own squash is not in the mirror: what is to be said has no bounds.
    parts: list[nn.Module] = []
    for outer, deeper in zip(reversed(widths[:-1]), reversed(widths[1:]), strict=True):
        parts += [nn.Linear(deeper, outer), nn.Tanh()]
    decoder = nn.Sequential(*parts[:-1]).to(z)
    parameters = [p for module in (*trained, decoder) for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr)
    error, scale = 0.0, 1.0
    for step in range(steps):
        z = entering(step)
        given = z * (torch.rand_like(z) >= noise) if noise else z
        for layer in trained:
            given = layer(given)
        loss = F.mse_loss(decoder(given), z)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        error, scale = float(loss.detach()), float(z.var(0).mean())
        if told:
            told(step, error)
    for parameter in parameters:
        parameter.grad = None
    return error / scale if scale else 0.0
