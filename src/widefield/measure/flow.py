# SPDX-License-Identifier: Apache-2.0
"""How a gradient travels through a recurrence: through the steps of a sequence, or the iterations of an optimiser.

    ds_t / ds_{t-k} = J_t J_{t-1} ... J_{t-k+1}          J: Jacobian of one step in the whole state s

The order of the factors matters, and so does every input on the way: nothing is replaced by a power of one matrix.
A state is all that is carried: h of a plain network, h and c of an LSTM, the codes of a decomposition.

For a plain network with `|phi'| <= rho` on the way and U of largest singular value gamma the norm is at most
`(rho gamma)^k`: vanishing is certain where that is below 1; above, nothing follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from widefield.decomposition.factoriser import SpatialHam
from widefield.sequence import RNN, SequenceLayer
from widefield.sequence.fused import FusedLayer

from .jacobian import jacobian_singular_values
from .workload import duplicate

State = tuple[Tensor, ...]
Step = Callable[[int, State], State]  # number of the step, state `(copies, ...)` to the next one
LARGEST = 600  # numbers in a state whose Jacobians are formed; beyond, products with them alone
FEW = 6  # lags at which those are looked at


@dataclass(frozen=True)
class Flow:
    """Of one recurrence, seen from its last step.

    Means over sequences are geometric. Zero stays zero.

    Attributes:
        lags: k = 0 ... .
        gradient: norm of `d <g, y> / d s_{t-k}` over that at k = 0, g a random cotangent of the last output.
        jacobian_lags: those at which the Jacobian's norm was found.
        jacobian: largest singular value of `ds_t / ds_{t-k}` there.
        bound: `(rho gamma)^k` at every lag; None for what is no plain network.
        spectrum: singular values of the last step's Jacobian of the first sequence, descending; empty for a large
            state.
        rate: factor a step, by least squares on the logarithm of `gradient` (None: it is 0 somewhere).
    """

    lags: tuple[int, ...]
    gradient: tuple[float, ...]
    jacobian_lags: tuple[int, ...]
    jacobian: tuple[float, ...]
    bound: tuple[float, ...] | None
    spectrum: tuple[float, ...]
    rate: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def sequence_flow(layer: SequenceLayer, x: Tensor, *, seed: int = 0) -> Flow:
    """The flow from the last step of `x`, `(b, t, d)`, back to the first, in float64.

    Args:
        layer: any whose state keeps its shape; its weights are not changed.
        x: inputs.
        seed: of the cotangent.

    Raises:
        ValueError: a state that grows, as that of a network that attends over its history.
    """
    x = x.detach().double()
    layer = cast(SequenceLayer, duplicate(layer).double().eval())
    steps = x.shape[1]

    def stepper(sample: int) -> Step:
        def step(t: int, state: State) -> State:
            return layer(x[sample : sample + 1, t : t + 1].expand(state[0].shape[0], 1, -1), state)[1]

        return step

    def output(sample: int, state: State) -> Tensor:
        return layer(x[sample : sample + 1, -1:], state)[0]

    starts = [tuple(s.detach().clone() for s in layer.initial_state(1, x)) for _ in range(len(x))]
    bound = None
    if isinstance(layer, RNN) and layer.layers == 1 and layer.directions == 1:
        bound = _bound(layer, x)
    return _flow([stepper(i) for i in range(len(x))], starts, steps, output, bound, seed)


def iteration_flow(ham: SpatialHam, x: Tensor, *, steps: int, seed: int = 0) -> Flow:
    """The same of the iterations of a ham, an optimiser being a recurrent network with a constant input.

    Args:
        ham: a decomposition (`Hamburger(...).ham`, `HamNMF(...).ham`).
        x: `(b, c, n)`; not negative for NMF.
        steps: iterations.
        seed: of the cotangent.
    """
    x = x.detach().double()
    with torch.no_grad():
        matrices = ham.matrix(x)
        bases = ham.starting_bases(matrices)
        starts = []
        for matrix, base in zip(matrices.split(1), bases.split(1), strict=True):
            starts.append(tuple(ham.method.start(ham.method.prepare(matrix), base)))

    def stepper(sample: int) -> Step:
        def step(t: int, state: State) -> State:
            matrix = matrices[sample : sample + 1].expand(state[0].shape[0], -1, -1).contiguous()
            return tuple(ham.method.step(state, ham.method.prepare(matrix)))

        return step

    def output(sample: int, state: State) -> Tensor:
        after = stepper(sample)(0, state)
        return torch.cat([part.flatten() for part in after])

    return _flow([stepper(i) for i in range(len(matrices))], starts, steps, output, None, seed)


def distance_from_orthogonality(matrix: Tensor) -> float:
    """`|U^T U - I| / sqrt(n)`, Frobenius, of `(gates * n, n)`: the mean square over the gates, rooted."""
    blocks = matrix.detach().double().unflatten(0, (-1, matrix.shape[1]))
    excess = blocks.mT @ blocks - torch.eye(matrix.shape[1], dtype=torch.float64, device=matrix.device)
    return float(excess.square().sum((1, 2)).mean().sqrt()) / math.sqrt(matrix.shape[1])


def recurrent_matrices(module: torch.nn.Module) -> dict[str, Tensor]:
    """Name and `(gates * h, h)` of every recurrent matrix of torch's kernels inside a module."""
    found: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, FusedLayer):
            names = [n for n, _ in part.core.named_parameters() if n.startswith("weight_hh")]
            found |= {f"{prefix}.core.{name}".lstrip("."): getattr(part.core, name) for name in names}
    return found


def _flow(
    steppers: Sequence[Step],
    starts: Sequence[State],
    steps: int,
    output: Callable[[int, State], Tensor],
    bound: tuple[float, ...] | None,
    seed: int,
) -> Flow:
    gradients, norms, spectrum = [], [], ()
    lags = tuple(range(steps))
    exact = sum(s.numel() for s in starts[0]) <= LARGEST
    chosen = (
        lags if exact else tuple(sorted({round((steps - 1) ** (i / FEW)) for i in range(1, FEW + 1)} & set(lags)))
    )
    for sample, (step, start) in enumerate(zip(steppers, starts, strict=True)):
        # s_0 ... s_{T-1}: the last step is taken by `output`, seen from s_{T-1}.
        states = [tuple(s.clone().requires_grad_() for s in start)]
        with torch.enable_grad():
            for t in range(steps - 1):
                states.append(step(t, states[-1]))
                if [s.shape for s in states[-1]] != [s.shape for s in start]:
                    raise ValueError("the state grows from step to step; its Jacobians have no product to follow")
            y = output(sample, states[-1])
            cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            flat = [part for state in states for part in state]
            found = torch.autograd.grad(
                (y * cotangent.to(y)).sum(), flat, allow_unused=True, materialize_grads=True
            )
        each = [found[i : i + len(start)] for i in range(0, len(found), len(start))]
        gradients.append([math.sqrt(sum(float(g.square().sum()) for g in parts)) for parts in reversed(each)])
        states = [tuple(s.detach() for s in state) for state in states]
        if exact:
            product, sizes = None, []
            for t in reversed(range(steps - 1)):
                jacobian = one_step_jacobian(step, t, states[t])
                if product is None and not spectrum:
                    spectrum = tuple(torch.linalg.svdvals(jacobian).tolist())
                product = jacobian if product is None else product @ jacobian
                sizes.append(float(torch.linalg.matrix_norm(product, 2)))
            norms.append([1.0, *sizes])
        else:
            norms.append([_norm(step, states, lag) for lag in chosen])
    gradient = [_geometric([g[k] / g[0] if g[0] else 0.0 for g in gradients]) for k in lags]
    jacobian = [_geometric([n[i] for n in norms]) for i in range(len(chosen))]
    return Flow(
        lags, tuple(gradient), chosen, tuple(jacobian), bound, spectrum,
        _rate(gradient) if min(gradient) > 0 and steps > 1 else None,
    )  # fmt: skip


def one_step_jacobian(step: Step, t: int, state: State) -> Tensor:
    """`(n, n)` of one step in the whole state `(1, ...)` of n numbers.

    The state is repeated n times as a batch, and copy i is asked for the gradient of its output i: one backward,
    through any kernel.
    """
    size = sum(s.numel() for s in state)
    copies = tuple(s.expand(size, *s.shape[1:]).clone().requires_grad_() for s in state)
    with torch.enable_grad():
        after = torch.cat([s.flatten(1) for s in step(t, copies)], 1)
        rows = torch.autograd.grad(after.diagonal().sum(), copies, allow_unused=True, materialize_grads=True)
    return torch.cat([row.flatten(1) for row in rows], 1)


def _norm(step: Step, states: Sequence[State], lag: int) -> float:
    """Largest singular value over `lag` steps of a large state, by products with the Jacobian."""
    last = len(states) - 1
    given = states[last - lag]
    sizes, shapes = [s.numel() for s in given], [s.shape for s in given]

    def through(flat: Tensor) -> Tensor:
        state = tuple(part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True))
        for t in range(last - lag, last):
            state = step(t, state)
        return torch.cat([part.flatten() for part in state])

    point = torch.cat([s.flatten() for s in given])
    return jacobian_singular_values(through, point, largest=1, tol=1e-4).largest[0]


def _bound(layer: RNN, x: Tensor) -> tuple[float, ...]:
    """`prod_t |U| max |phi'(a_t)|` from the last step back, the largest over the sequences."""
    with torch.no_grad():
        y = layer(x)[0]
        slopes = (1 - y * y if layer.nonlinearity == "tanh" else (y > 0).to(y)).amax((0, 2))
        (weight,) = layer.parameters_of("weight_hh")
        gamma = float(torch.linalg.matrix_norm(weight.double(), 2))
    found = [1.0]
    # s_{T-1} is the last state: its step is number T - 2.
    for slope in reversed(slopes[:-1].tolist()):
        found.append(found[-1] * gamma * slope)
    return tuple(found)


def _geometric(values: Sequence[float]) -> float:
    if min(values) <= 0:
        return 0.0
    return math.exp(sum(math.log(v) for v in values) / len(values))


def _rate(values: Sequence[float]) -> float:
    """Factor a step."""
    logs = torch.tensor(values, dtype=torch.float64).log()
    k = torch.arange(len(values), dtype=torch.float64)
    k = k - k.mean()
    return float(torch.exp((k @ logs) / (k @ k)))
