# SPDX-License-Identifier: Apache-2.0
"""Adapters of CST, BiSRNet, DGSMP and BIRNAT."""

from __future__ import annotations

from typing import Any

from golden import Case, Replay, Tensors, adapter
from torch import nn

from widefield.models.spectral.birnat import BIRNAT, SelfAttention
from widefield.models.spectral.bisrnet import BinaryBody, BinaryConv, Narrowed, Widened
from widefield.models.spectral.cst import CST, HashAttention, HashBlock, SparsityEstimator
from widefield.models.spectral.dgsmp import DGSMP


def hash_like(case: Case, module: nn.Module, inputs: Tensors) -> None:
    """Has each attention use the directions and offsets that the case was made with, in order of their calls."""
    attentions = [part for part in module.modules() if isinstance(part, HashAttention)]
    for i, attention in enumerate(attentions):
        attention.directions = inputs[f"lsh_alpha{i}"].detach()
        attention.offsets = inputs[f"lsh_beta{i}"].detach()


@adapter("sah_msa")
def hash_attention(case: Case) -> Replay:
    config = case.config
    module = HashAttention(config["dim"], config["heads"], bucket=config["bucket"], rounds=config["rounds"])

    def run(inputs: Tensors) -> Tensors:
        hash_like(case, module, inputs)
        return {"y": module(inputs["x"])}

    return Replay(module, "mst", run)


@adapter("sahab")
def hash_block(case: Case) -> Replay:
    config = case.config
    module = HashBlock(
        config["dim"],
        config["heads"],
        patch=tuple(config["patch"]),
        shift=config["shift"],
        sparse=config["sparse"],
    )

    def run(inputs: Tensors) -> Tensors:
        hash_like(case, module, inputs)
        return {"y": module(inputs["x"].permute(0, 3, 1, 2), inputs["mask"][:, None]).permute(0, 2, 3, 1)}

    return Replay(module, "mst", run)


@adapter("sparsity_estimator")
def sparsity_estimator(case: Case) -> Replay:
    config = case.config
    module = SparsityEstimator(config["in_channels"], config["dim"], sparse=config["sparse"])

    def run(inputs: Tensors) -> Tensors:
        features, error = module(inputs["x"])
        return {"feature": features} | ({} if error is None else {"error_map": error})

    return Replay(module, "mst", run)


@adapter("binary_conv")
def binary_conv(case: Case) -> Replay:
    return Replay(BinaryConv(case.config["in_channels"], case.config["kernel"]), "mst")


@adapter("binary_down", "binary_fusion_increase")
def widened(case: Case) -> Replay:
    config = case.config
    return Replay(Widened(config["in_channels"], config["kernel"], downsample=case.module == "binary_down"), "mst")


@adapter("binary_up", "binary_fusion_decrease")
def narrowed(case: Case) -> Replay:
    config = case.config
    return Replay(Narrowed(config["out_channels"], config["kernel"], upsample=case.module == "binary_up"), "mst")


@adapter("bisrnet_body")
def bisrnet_body(case: Case) -> Replay:
    return Replay(BinaryBody(case.config["dim"], case.config["blocks"]), "mst")


@adapter("dgsmp")
def dgsmp(case: Case) -> Replay:
    """The toolbox always holds four step lengths and connections; those behind the last stage do nothing."""
    config = case.config
    unused = tuple(
        name
        for i in range(config["stages"], 4)
        for name in (f"delta_{i}", f"Den_con{i + 1}.weight", f"Den_con{i + 1}.bias")
    )  # fmt: skip
    for name in unused:
        case.state.pop(name, None)
    widths = [case.state[f"Encoding.E{i}.0.weight"].shape[0] for i in (1, 2, 4)]
    module = DGSMP(config["bands"], config.get("step", 2), stages=config["stages"], widths=tuple(widths))
    return Replay(module, "mst", lambda inputs: {"y": module(inputs["y"])})


@adapter("birnat_attention")
def birnat_attention(case: Case) -> Replay:
    return Replay(SelfAttention(case.config["channels"]), "mst")


@adapter("birnat")
def birnat(case: Case) -> Replay:
    """Widths are read from the state."""
    out = {name.removesuffix(".weight"): value.shape for name, value in case.state.items() if value.dim() == 4}
    first = {"embed": "conv1", "middle": "conv2", "leave": "conv52", "deep": "conv4"}
    rnn = "rnn1."
    recurrent = {
        "state": f"{rnn}extract_feature1.conv.0", "lifted": f"{rnn}conv_x1.0", "mixed": f"{rnn}conv_x1.1",
        "wide": f"{rnn}conv_x1.3", "look": f"{rnn}conv_x2.0", "shrunk": f"{rnn}h_h.0",
    }  # fmt: skip
    module = BIRNAT(
        case.config["bands"],
        case.config["step"],
        first={ours: out[f"first_frame_net.{theirs}"][0] for ours, theirs in first.items()},
        recurrent={ours: out[theirs][0] for ours, theirs in recurrent.items()},
    )
    return Replay(module, "mst", lambda inputs: {"y": module(inputs["y"], inputs["Phi"])})


@adapter("cst")
def cst(case: Case) -> Replay:
    config: dict[str, Any] = case.config
    module = CST(config["bands"], config.get("step", 2), blocks=config["blocks"], sparse=config["sparse"])

    def run(inputs: Tensors) -> Tensors:
        hash_like(case, module, inputs)
        x, error = module.reconstruct(inputs["H"], inputs["mask"])
        return {"y": x} | ({} if error is None else {"error_map": error})

    return Replay(module, "mst", run)
