# SPDX-License-Identifier: Apache-2.0
"""Plain chains of layers for many copies at once, without the cost of a transformation at each call.

`torch.func.vmap` batches any network and spends more time on bookkeeping than small networks spend on arithmetic.
Linear layers are one batched product, convolutions one grouped convolution: the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Identity, nn.GELU, nn.SiLU, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Softplus)
Chain = list[tuple[str, nn.Module]]


def chain_of(model: nn.Module) -> Chain | None:
    """The layers with their names, in order; None unless the network is nothing but a chain of plain layers."""
    found: Chain = []
    return found if _collect(model, "", found) else None


def _collect(module: nn.Module, name: str, found: Chain) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, hook) for hook in hooks):
        return False
    # Subclasses may compute something else.
    if type(module) is nn.Sequential:
        return all(_collect(child, f"{name}{key}.", found) for key, child in module.named_children())
    plain = type(module) in (nn.Linear, *_ELEMENTWISE)
    plain |= type(module) is nn.Conv2d and module.padding_mode == "zeros" and module.groups == 1
    plain |= type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
    found.append((name, module))
    return plain and all(p.requires_grad for p in module.parameters())


def run_chain(chain: Chain, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """`(e, b, *shape)` through copy e of the layers, each parameter `(e, *shape)`."""
    e, b = x.shape[:2]
    maps = False  # (b, e * c, h, w), as grouped convolutions take them
    for name, layer in chain:
        if isinstance(layer, nn.Conv2d):
            if not maps:
                x, maps = x.transpose(0, 1).flatten(1, 2), True
            weight, bias = parameters[f"{name}weight"].flatten(0, 1), parameters.get(f"{name}bias")
            bias = None if bias is None else bias.flatten()
            x = F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups=e)
        elif isinstance(layer, nn.Linear):
            if maps:
                x, maps = x.unflatten(1, (e, -1)).transpose(0, 1), False
            weight, bias = parameters[f"{name}weight"].mT, parameters.get(f"{name}bias")
            if x.dim() == 3:
                x = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)
            else:  # the last of several dimensions
                flat = torch.bmm(x.flatten(1, -2), weight).unflatten(1, x.shape[1:-1])
                x = flat if bias is None else flat + bias.view(e, *[1] * (x.dim() - 2), -1)
        elif isinstance(layer, nn.Flatten):
            if maps:
                x, maps = x.unflatten(1, (e, -1)).transpose(0, 1), False
            x = x.reshape(e, b, -1)
        else:
            x = layer(x)
    return x.unflatten(1, (e, -1)).transpose(0, 1) if maps else x
