# SPDX-License-Identifier: Apache-2.0
"""Adapters of the convolutional reconstruction networks: HDNet, lambda-Net, TSA-Net."""

from __future__ import annotations

from golden import Case, Replay, Tensors, adapter
from torch import nn

from widefield.models.spectral.frequency_loss import frequency_domain_loss
from widefield.models.spectral.hdnet import EFF, HDNet, SDLAttention
from widefield.models.spectral.lambda_net import LambdaNet, LambdaNetAttention
from widefield.models.spectral.tsa_block import TSABlock
from widefield.models.spectral.tsa_net import Res2Net


@adapter("hdnet")
def hdnet(case: Case) -> Replay:
    config = case.config
    module = HDNet(
        config["bands"],
        features=config["features"],
        blocks=(config["res_blocks_before"], config["res_blocks_after"]),
    )
    return Replay(module, "mst", lambda inputs: {"y": module.body(inputs["H"])})


@adapter("sdl_attention")
def sdl_attention(case: Case) -> Replay:
    return Replay(SDLAttention(case.config["channels"]), "mst")


@adapter("eff")
def eff(case: Case) -> Replay:
    return Replay(EFF(case.config["channels"], case.config["splits"]), "mst")


@adapter("fdl_loss")
def fdl_loss(case: Case) -> Replay:
    options = dict(case.config)
    weight = options.pop("loss_weight", 1.0)

    def run(inputs: Tensors) -> Tensors:
        return {"loss": frequency_domain_loss(inputs["pred"], inputs["target"], weight=weight, **options)}

    return Replay(nn.Identity(), None, run)


@adapter("lambda_net")
def lambda_net(case: Case) -> Replay:
    """The widths are those of the state: a reduced case may narrow one of them further than it says."""
    widths = []
    while names := [
        n for n in case.state if n.startswith(f"conv_down{len(widths) + 1}.") and n.endswith(".0.bias")
    ]:
        widths.append(case.state[names[0]].shape[0])
    module = LambdaNet(case.config["bands"], widths=widths)
    return Replay(module, "mst", lambda inputs: {"y": module(inputs["y"], inputs["Phi"])})


@adapter("lambda_attention")
def lambda_attention(case: Case) -> Replay:
    config = case.config
    return Replay(LambdaNetAttention(config["dim"], inner=config["qk_dim"]), "mst")


@adapter("tsa_block")
def tsa_block(case: Case) -> Replay:
    """The originals put the heads before the samples of a batch."""
    config = case.config
    module = TSABlock(
        config["in_channels"],
        config["out_channels"],
        heads=config["heads"],
        size=tuple(config["space"]),
        features=tuple(config["features"]),
        halve=tuple(config["mode"]),
        smooth=config["spectral_mask"],
    )

    def run(inputs: Tensors) -> Tensors:
        x = module.enter(inputs["x"])
        maps = (m.transpose(0, 1).flatten(0, 1) for m in module.maps(x))
        names = ("attn_x", "attn_y", "attn_lambda")
        return {"out": module.mix(x), **dict(zip(names, maps, strict=True))}

    return Replay(module, "mst", run)


@adapter("res2net")
def res2net(case: Case) -> Replay:
    config = case.config
    return Replay(Res2Net(config["channels"], config["width"], config["scale"]), "mst")
