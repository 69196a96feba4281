# SPDX-License-Identifier: Apache-2.0
"""The one place for epsilons, the float32 island and the normalisations that survive a dead feature.

Half precision breaks the mathematics of a context module, not its speed: sums over all positions overflow
float16, 1e-6 is subnormal there and 1e-12 is zero. So what a module does between entering and leaving runs
in float32 at least, and only here is it decided how.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def tiny(dtype: torch.dtype) -> float:
    """Below this length a vector has no direction. Far under any feature in use, and its square is normal."""
    return {torch.float64: 1e-30, torch.float32: 1e-12}.get(dtype, 1e-4)


def widen(x: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; other dtypes are returned as they are."""
    return x.float() if x.dtype in HALF else x


def float32_island(x: Tensor) -> AbstractContextManager[object]:
    """Switches autocast off on the device of `x`; entered only where it is on, so exported graphs stay plain."""
    kind = x.device.type
    if kind != "meta" and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def inverse_length(x: Tensor, dim: int) -> Tensor:
    """`1 / |x|` along `dim`, which is kept; zero, and without gradient, where there is no direction."""
    # Not vector_norm: over an outer axis it takes three times as long.
    squared = (x * x).sum(dim, keepdim=True)
    alive = squared > tiny(x.dtype) ** 2
    return torch.where(alive, torch.where(alive, squared, 1.0).rsqrt(), 0.0)


def guarded(scale: Tensor, guard: float) -> Tensor:
    """`1 / (guard + |x|)` from `1 / |x|`; zero stays zero."""
    return scale / (1 + guard * scale)


def normal_quantile(u: Tensor) -> Tensor:
    """The number below which a share u of a standard normal lies; u in (0, 1).

    ONNX has no inverse error function: an exported graph takes Giles's polynomials instead, equal to 1e-6
    (Approximating the erfinv function, GPU Computing Gems, 2011, single precision).
    """
    if not torch.compiler.is_exporting():
        return torch.special.ndtri(u)
    x = 2 * u - 1
    w = -torch.log(4 * u * (1 - u))
    middle = _polynomial(w - 2.5, _MIDDLE)
    tail = _polynomial(w.clamp(min=0).sqrt() - 3, _TAIL)
    return 2**0.5 * x * torch.where(w < 5, middle, tail)


_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Horner's rule, highest power first."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def unit(x: Tensor, dim: int, *, guard: float = 0.0) -> Tensor:
    """`x / (guard + |x|)` along `dim`; a vector without direction becomes zero and passes no gradient.

    Dividing by `max(|x|, 1e-12)` instead gives a dead feature a gradient of 1e12 in float32 and NaN in
    float16.

    Args:
        x: any shape.
        dim: the axis of the vectors.
        guard: what the paper adds to the norm (EMANet: 1e-6); 0 for a plain unit vector.
    """
    scale = inverse_length(x, dim)
    return x * (guarded(scale, guard) if guard else scale)
