# SPDX-License-Identifier: Apache-2.0
"""What a module does to numbers: half precision, extreme values, and whether its gradient is its derivative."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from widefield.testing.behaviour import finite, gradients
from widefield.testing.subject import Subject, check

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


@check
def autocast(s: Subject) -> None:
    """Under autocast the output is that of float32 within 1e-2 (float16) or 5e-2 (bfloat16), gradients finite."""
    for dtype, tolerance in TOLERANCE.items():
        for scale in (1e-4, 1.0, 30.0):
            x = scale * s.randn().abs()
            with s.given(f"{scale:g} |randn{tuple(x.shape)}|, autocast {str(dtype).removeprefix('torch.')}"):
                module = s.build().eval()
                expected = module(x).detach().double()
                leaf = x.clone().requires_grad_()
                with torch.autocast("cpu", dtype=dtype):
                    y = module(leaf)
                finite(y, "the output")
                error = float((y.detach().double() - expected).norm() / expected.norm().clamp_min(1e-30))
                assert error <= tolerance, f"relative error {error:.2g}, at most {tolerance:g} is allowed"
                y.float().sum().backward()
                assert leaf.grad is not None, "the input has no gradient"
                finite(leaf.grad, "the gradient of the input")


def _extremes(x: Tensor) -> dict[str, Tensor]:
    pixel, channel, hot = x.clone(), x.clone(), x.clone()
    pixel.flatten(2)[:, :, 0] = 0
    channel[:, -1] = 0
    hot.flatten(2)[:, :, 0] = 1e4
    return {
        "zeros": torch.zeros_like(x),
        "ones": torch.ones_like(x),
        "-1e4 everywhere": torch.full_like(x, -1e4),
        "one dead position": pixel,
        "one dead channel": channel,
        "one position of 1e4": hot,
        "randn times 1e-6": 1e-6 * x,
        "randn times 1e4": 1e4 * x,
    }


@check
def extremes(s: Subject) -> None:
    """Zeros, constants, dead and extreme features give finite outputs and gradients."""
    for train in (False, True):
        for words, x in _extremes(s.randn()).items():
            with s.given(f"{words} {tuple(x.shape)}, {'training' if train else 'evaluation'}"):
                module = s.build().train(train)
                finite(module(x), "the output")
                for name, gradient in gradients(module, x).items():
                    finite(gradient, f"the gradient of {name}")


@check
def gradcheck(s: Subject) -> None:
    """The backward is the derivative of the forward, in the input and all parameters, by finite differences."""
    x = 0.5 * s.randn().double()
    with s.given(f"0.5 randn{tuple(x.shape)}, float64, evaluation"):
        module = s.build().double().eval()
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        parameters = [p for p in module.parameters() if p.requires_grad]

        def run(x: Tensor, *values: Tensor) -> Tensor:
            return functional_call(module, dict(zip(names, values, strict=True)), (x,))

        exact = torch.autograd.gradcheck(
            run, (x.requires_grad_(), *parameters), eps=1e-6, atol=1e-5, fast_mode=True, raise_exception=False
        )
        assert exact, "the gradient is not the derivative by finite differences"
