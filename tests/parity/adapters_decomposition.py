# SPDX-License-Identifier: Apache-2.0
"""Adapters of the decompositions.

The originals draw their starting bases, so a case brings them along as inputs. They back-propagate through the
closing code update alone (`codes_only`), through nothing (`stopped`) or, in the mmsegmentation port, through all
steps (`unrolled`). Online bases move in the original's evaluation, ours in training: the replay asks for the
move itself.
"""

from __future__ import annotations

from typing import Any

import torch
from golden import Case, Replay, Tensors, adapter
from torch import nn

from widefield import create
from widefield.core import BatchNorm
from widefield.decomposition.factoriser import SpatialHam
from widefield.decomposition.method import reconstruct
from widefield.models.heads import LightHamHead


def ham_options(config: dict[str, Any]) -> dict[str, Any]:
    tau = config.get("inverse_temperature", 1)
    return {
        "rank": config["rank"],
        "steps": config["train_steps"],
        "eval_steps": config["eval_steps"],
        "gradient": "codes_only",
        "bases": "fixed" if config.get("random_bases", True) else "online",
        "heads": config.get("heads", 1),
        "temperature": None if config["ham"] == "nmf" else 1 / tau,
    }


def momentum(channels: int) -> nn.Module:
    return BatchNorm(channels, momentum=3e-4)


def watch(ham: SpatialHam, inputs: Tensors, name: str, found: Tensors, prefix: str = "") -> None:
    """Gives the ham the case's start and notes the factors that the next forward finds."""
    if name in inputs:
        start = inputs[name].detach()
        ham.starting_bases = lambda matrix: start  # type: ignore[method-assign]
    factors = ham.factors

    def spying(x, **options):
        result = factors(x, **options)
        steps = stepped_codes(ham, x, result.bases)
        found.update({f"{prefix}bases": result.bases, f"{prefix}coef": result.codes, f"{prefix}coef_steps": steps})
        return result

    ham.factors = spying  # type: ignore[method-assign]


@torch.no_grad()
def stepped_codes(ham: SpatialHam, x: torch.Tensor, bases: torch.Tensor) -> torch.Tensor:
    """The codes after the steps and before the closing update, by running the method's own steps once more."""
    matrix = ham.matrix(x)
    prepared = ham.method.prepare(matrix)
    state = ham.method.start(prepared, ham.starting_bases(matrix))
    before = state
    for _ in range(ham.steps if ham.training else ham.eval_steps):
        before, state = state, ham.method.step(state, prepared)
    assert torch.allclose(state[0], bases, rtol=1e-9)
    return state[1] if len(state) > 1 else ham.method.step_codes(before[0], prepared)  # type: ignore[attr-defined]


@adapter("ham")
def ham(case: Case) -> Replay:
    config = case.config
    module = create(
        f"ham-{config['ham']}",
        config.get("ham_channels", config["channels"]),
        axis="spatial" if config.get("spatial", True) else "channel",
        **ham_options(config),
    )

    def run(inputs: Tensors) -> Tensors:
        found: Tensors = {}
        watch(module.ham, inputs, "bases", found)
        y = module(inputs["x"])
        if module.ham.start == "online" and not module.training:
            module.ham.move(found["bases"])
        return {"y": y, **found}

    return Replay(module, "hamburger", run)


@adapter("hamburger")
def hamburger(case: Case) -> Replay:
    config, state = case.config, case.state
    form = {"v1": "hamburger", "v2": "hamburger-v2", "v2+": "hamburger-v2plus"}[config["version"]]
    dual = bool(config.get("dual", False))
    lower = state.get("lower_bread.0.weight", state.get("lower_bread.weight"))
    assert lower is not None
    options = ham_options(config) | {"norm": momentum, "width": lower.shape[0] // (2 if dual else 1)}
    if form == "hamburger-v2plus":
        options |= {"dual": dual, "cheese_factor": config.get("cheese_factor", 1)}
    module = create(f"{form}-{config['ham']}", config["channels"], **options)

    def run(inputs: Tensors) -> Tensors:
        found: Tensors = {}
        if dual:
            watch(module.ham, inputs, "bases_spatial", found, "spatial_")
            watch(module.channel_ham, inputs, "bases_channel", found, "channel_")
        else:
            watch(module.ham, inputs, "bases", found)
        y = module(inputs["x"])
        if module.ham.start == "online" and not module.training:
            module.ham.move(found["bases"])
        return {"y": y, **found}

    return Replay(module, "hamburger", run)


@adapter("light-ham-head")
def light_ham_head(case: Case) -> Replay:
    config = case.config
    module = LightHamHead(
        config["in_channels"],
        config["num_classes"],
        channels=config["channels"],
        ham_channels=config["ham_channels"],
        rank=config["rank"],
        steps=config["train_steps"],
        eval_steps=config["eval_steps"],
        gradient="unrolled",
        groups=config.get("groups", 32),
        dropout=0.0,
    )

    def run(inputs: Tensors) -> Tensors:
        found: Tensors = {}
        watch(module.hamburger.ham, inputs, "bases", found)
        levels = [inputs[f"x{i}"] for i in range(len(config["in_channels"]))]
        return {"y": module(levels), **found}

    return Replay(module, "mmseg", run)


@adapter("emau")
def emau(case: Case) -> Replay:
    config = case.config
    module = create(
        "emau",
        config["channels"],
        rank=config["bases"],
        steps=config["steps"],
        momentum=config["momentum"],
        gradient="stopped",
        norm=momentum,
    )

    def run(inputs: Tensors) -> Tensors:
        found: Tensors = {}
        factors = module.factors

        def spying(tokens, **options):
            result = factors(tokens, **options)
            found["mu"] = result.bases
            return result

        module.factors = spying
        y = module(inputs["x"])
        # The lower projection gets no gradient at all in the original; a zero here is the same claim.
        return {"y": y, "mu_updated": module.bases, **found}

    return Replay(module, "emanet", run)


@adapter("em-attention")
def em_attention(case: Case) -> Replay:
    config = case.config
    module = create(
        "em-attention",
        config["channels"],
        rank=config["bases"],
        steps=config["steps"],
        momentum=1 - config["momentum"],
        renormalise=True,
        guard=0.0,
        gradient="stopped",
    )

    def run(inputs: Tensors) -> Tensors:
        y = module(inputs["x"])
        # The original's output is a constant in x: a graph with the gradient zero.
        return {"y": y + 0 * inputs["x"], "reconstruction": reconstruct(*module.solve(inputs["x"])[:2])}

    return Replay(module, "mmseg", run)
