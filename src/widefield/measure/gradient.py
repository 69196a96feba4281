# SPDX-License-Identifier: Apache-2.0
"""How well each gradient policy of an iterative module agrees with a reference, usually back-propagation
through every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .memory import peak_bytes
from .workload import duplicate


@dataclass(frozen=True)
class PolicyGradient:
    """The gradient that one policy gives, against the reference.

    Cosine and ratio are None where a gradient is zero or the module has no parameters.

    Attributes:
        policy: its name.
        input_norm: Euclidean norm of the gradient with respect to the input.
        input_cosine: its cosine with the reference's: 1 is the same direction.
        input_ratio: its norm over the reference's.
        parameter_norm: the same for all parameters as one vector.
        parameter_cosine: see above.
        parameter_ratio: see above.
        output_difference: largest difference of the output from the reference's, over the largest output; a
            policy ought to change the backward alone.
        peak_memory: bytes, of forward and backward, beyond parameters and input.
    """

    policy: str
    input_norm: float
    input_cosine: float | None
    input_ratio: float | None
    parameter_norm: float
    parameter_cosine: float | None
    parameter_ratio: float | None
    output_difference: float
    peak_memory: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Trial:
    output: Tensor
    input_gradient: Tensor
    parameter_gradient: Tensor
    state: dict[str, Tensor]
    peak: int


def gradient_agreement(
    build: Callable[[str], nn.Module],
    x: Tensor,
    *,
    policies: Sequence[str] | Iterable[str],
    reference: str = "unrolled",
    cotangent: Tensor | None = None,
    seed: int = 0,
) -> list[PolicyGradient]:
    """Compares the gradients of one module under several policies.

    Args:
        build: makes the module for a policy's name; weights and forward must be the same for all. The module is
            used in the mode it comes in, on a copy.
        x: (b, c, *space) input.
        policies: names to compare.
        reference: the policy they are held against.
        cotangent: what flows back into the output, of its shape; by default standard normal from `seed`. Ones
            would be blind to a module that normalises its output.
        seed: also of the random start of the module; the global generator is put back.

    Returns:
        One comparison a policy, in the order given.

    Raises:
        ValueError: two policies' modules differ in their state, the output or the cotangent has another shape, or
            the output has no gradient.
        TypeError: `build` does not return a module, or the module does not return a tensor.
    """
    names = list(policies)
    trials: dict[str, _Trial] = {}
    for name in dict.fromkeys([reference, *names]):
        trials[name] = trial(build(name), x, cotangent, seed, name)
        same_state(trials[name].state, trials[reference].state, name, reference)
    return [compare(name, trials[name], trials[reference]) for name in names]


def trial(module: nn.Module, x: Tensor, cotangent: Tensor | None, seed: int, name: str) -> _Trial:
    """Forward and backward of one policy."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"build({name!r}) returned a {type(module).__name__}; it must return an nn.Module")
    module = duplicate(module)
    module.zero_grad(set_to_none=True)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    x = x.detach().clone().requires_grad_()
    outputs: list[Tensor] = []

    def step() -> None:
        y = module(x)
        if not isinstance(y, Tensor):
            raise TypeError(
                f"the module of {name!r} returned a {type(y).__name__}; wrap it so that it returns one tensor"
            )
        if not y.requires_grad:
            raise ValueError(f"the output of {name!r} has no gradient; is its forward under no_grad?")
        outputs.append(y)
        y.backward(seed_like(y, cotangent, seed))

    with torch.enable_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        peak = peak_bytes(step, x.device)
    return _Trial(
        output=outputs[0].detach().double(),
        input_gradient=flat([x.grad], [x]),
        parameter_gradient=flat([p.grad for p in module.parameters()], list(module.parameters())),
        state=state,
        peak=peak,
    )


def seed_like(y: Tensor, cotangent: Tensor | None, seed: int) -> Tensor:
    """The cotangent asked for, or a reproducible random one."""
    if cotangent is None:
        return torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y)
    if cotangent.shape != y.shape:
        raise ValueError(
            f"cotangent of shape {tuple(cotangent.shape)} for an output of shape {tuple(y.shape)}; give "
            f"equal shapes"
        )
    return cotangent.to(y)


def flat(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """All gradients as one float64 vector; a missing one is zero."""
    parts = [
        (torch.zeros_like(tensor) if gradient is None else gradient).detach().double().flatten()
        for gradient, tensor in zip(gradients, like, strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def same_state(state: dict[str, Tensor], reference: dict[str, Tensor], name: str, reference_name: str) -> None:
    """Refuses to compare gradients of different functions."""
    differing = [
        key
        for key in state.keys() | reference.keys()
        if key not in state or key not in reference or not torch.equal(state[key], reference[key])
    ]
    if differing:
        raise ValueError(
            f"build({name!r}) and build({reference_name!r}) differ in {sorted(differing)[0]!r}; gradients can be "
            f"compared at equal weights only. Seed the construction, or load one state_dict into both"
        )


def compare(name: str, given: _Trial, reference: _Trial) -> PolicyGradient:
    """The figures of one policy."""
    if given.output.shape != reference.output.shape:
        raise ValueError(
            f"the output of {name!r} has shape {tuple(given.output.shape)} and the reference's "
            f"{tuple(reference.output.shape)}; build must give modules of one forward"
        )
    scale = float(reference.output.abs().max()) or 1.0
    return PolicyGradient(
        policy=name,
        input_norm=float(given.input_gradient.norm()),
        input_cosine=cosine(given.input_gradient, reference.input_gradient),
        input_ratio=ratio(given.input_gradient, reference.input_gradient),
        parameter_norm=float(given.parameter_gradient.norm()),
        parameter_cosine=cosine(given.parameter_gradient, reference.parameter_gradient),
        parameter_ratio=ratio(given.parameter_gradient, reference.parameter_gradient),
        output_difference=float((given.output - reference.output).abs().max()) / scale,
        peak_memory=given.peak,
    )


def cosine(a: Tensor, b: Tensor) -> float | None:
    """None where a direction is missing."""
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 0 else None


def ratio(a: Tensor, b: Tensor) -> float | None:
    """None where there is nothing to compare with."""
    length = float(b.norm())
    return float(a.norm()) / length if length > 0 else None
