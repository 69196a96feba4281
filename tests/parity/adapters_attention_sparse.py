# SPDX-License-Identifier: Apache-2.0
"""Adapters of sparse and local attention: criss-cross, interlaced, dynamic graphs, reassembly."""

from __future__ import annotations

from golden import Case, Replay, Tensors, adapter
from torch import nn

from widefield import create
from widefield.attention import reassemble
from widefield.weights.reference import Table, reference


@adapter("ccnet")
def ccnet(case: Case) -> Replay:
    config = case.config
    return Replay(create("ccnet", config["channels"], recurrence=config.get("recurrence", 2)), "ccnet")


@adapter("isa")
def isa(case: Case) -> Replay:
    config = case.config
    module = create(
        "isa",
        config["channels"],
        out_channels=config["out_channels"],
        inner=config["key_channels"],
        value_channels=config["value_channels"],
        blocks=config["down_factors"],
        mask_padding=False,
        dropout=0.0,
    )
    return Replay(module, "openseg")


def group_norm(channels: int) -> nn.Module:
    """32 groups as the original, and where those do not divide, the 4 that the cases were made with."""
    return nn.GroupNorm(32 if channels % 32 == 0 else 4, channels)


@adapter("dgmn")
def dgmn(case: Case) -> Replay:
    config = case.config
    options = {"rates": config["dilations"], "groups": config["groups"], "sampling": config["sampling"]}
    if config["block"] == "ReDynamicWeightsCat33":
        return Replay(create("dgmn", config["channels"], shared_modulation=True, **options), "dgmn")
    return Replay(create("dgmn-fast", config["channels"], norm=group_norm, **options), "dgmn")


@adapter("carafe")
def carafe(case: Case) -> Replay:
    config, third_party = case.config, "comp.conv.weight" in case.state
    module = create(
        "carafe",
        config["channels"],
        factor=config["scale"],
        kernel=config["kernel_up"],
        encoder_kernel=config["kernel_encoder"],
        inner=config["compressed_channels"],
        groups=config.get("groups", 1),
        mask_padding=False,
        norm="batch" if third_party else "none",
    )
    return Replay(module, "carafe" if third_party else "mmcv")


class Reassembly(nn.Module):
    """The operator alone, on kernels or on logits of kernels."""

    def __init__(self, factor: int, groups: int) -> None:
        super().__init__()
        self.factor, self.groups = factor, groups

    def run(self, inputs: Tensors) -> Tensors:
        kernels = (
            inputs["mask"] if "mask" in inputs else inputs["logits"].unflatten(1, (self.groups, -1)).softmax(2)
        )
        kernels = kernels if "mask" in inputs else kernels.flatten(1, 2)
        return {"y": reassemble(inputs["x"], kernels, factor=self.factor, groups=self.groups)}


@reference("carafe", Reassembly)
def no_state(module: Reassembly) -> Table:
    return {}


@adapter("carafe-reassembly")
def carafe_reassembly(case: Case) -> Replay:
    module = Reassembly(case.config["scale"], case.config.get("groups", 1))
    return Replay(module, "carafe", module.run)
