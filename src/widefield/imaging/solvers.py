# SPDX-License-Identifier: Apache-2.0
"""Reconstruction without training: GAP-TV, ADMM-TV, TwIST, and plug-and-play with any denoiser.

Papers  GAP-TV: Generalized alternating projection based total variation minimization for compressive sensing, ICIP
        2016, arXiv:1511.03890. TwIST: A new TwIST: two-step iterative shrinkage/thresholding algorithms for image
        restoration, TIP 2007. ADMM-TV and plug-and-play: Plug-and-play algorithms for large-scale snapshot
        compressive imaging, CVPR 2020, arXiv:2003.13654.
*differs*: TwIST takes the step length 1 / max Phi_s, the exact inverse of the largest eigenvalue of `A^T A`, in
place of a guess that is corrected on the way; its total variation is that of each band, not of the volume.

Every solver is a fixed-point iteration of one step, so `widefield.implicit.fixed_point` runs it and says, for each
sample, how it went. The data step lies in the dispersed frame, the denoiser in the frame of the cube.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widefield.core.errors import UnknownOption, unknown
from widefield.core.status import Status
from widefield.imaging.dispersion import disperse, undisperse
from widefield.imaging.operator import Snapshot
from widefield.imaging.priors import cosine_length, denoise_soft, denoise_tv, total_variation
from widefield.imaging.projection import project_admm, project_gap, project_gap_accelerated
from widefield.implicit import fixed_point

Denoiser = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Progress:
    """Handed to `callback` after every iteration.

    Attributes:
        iteration, iterations: the one done, counted from 1, and how many at most.
        estimate: `(b, l, h, w)`, not to be written into.
    """

    iteration: int
    iterations: int
    estimate: Tensor


Callback = Callable[[Progress], None]


class Reconstruction(NamedTuple):
    """The cube `(b, l, h, w)` and how the iteration went, for each sample. Neither is clipped to [0, 1]."""

    estimate: Tensor
    status: Status


def solve_gap_tv(
    y: Tensor,
    operator: Snapshot,
    *,
    iterations: int = 60,
    weight: float = 0.1,
    inner: int = 5,
    accelerated: bool = True,
    relaxation: float = 1.0,
    tolerance: float | None = None,
    start: Tensor | None = None,
    callback: Callback | None = None,
) -> Reconstruction:
    """GAP-TV: a step onto `A x = y`, then total variation denoising of every band.

    Args:
        y: `(b, h, w')`.
        iterations: at most so many.
        weight, inner: of the total variation, and iterations inside each denoising.
        accelerated: gather the misfits of the steps before.
        relaxation: length of an accelerated step.
        tolerance: a sample stops when it moves by less than this part of itself; None for all iterations.
        start: `(b, l, h, w)`; by default the least-squares estimate `A^T y / Phi_s`.
        callback: called after each iteration.
    """
    return solve_pnp(
        y, operator, denoiser=_tv(weight, inner), iterations=iterations, accelerated=accelerated,
        relaxation=relaxation, tolerance=tolerance, start=start, callback=callback,
    )  # fmt: skip


@torch.no_grad()
def solve_pnp(
    y: Tensor,
    operator: Snapshot,
    *,
    denoiser: Denoiser,
    iterations: int = 60,
    accelerated: bool = True,
    relaxation: float = 1.0,
    tolerance: float | None = None,
    start: Tensor | None = None,
    callback: Callback | None = None,
) -> Reconstruction:
    """Plug-and-play GAP: as GAP-TV, with any denoiser `(b, l, h, w)` to `(b, l, h, w)`. No gradient."""
    phi, energy, step = operator.phi, operator.energy, operator.step
    denoise = _same_shape(denoiser)
    tell = _Teller(callback, iterations)

    def one(state: tuple[Tensor, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        x, y1 = state
        z = disperse(x, step)
        if accelerated:
            z, y1 = project_gap_accelerated(z, y, y1, phi, energy, relaxation)
        else:
            z = project_gap(z, y, phi, energy)
        return tell(denoise(undisperse(z, step))), y1

    begin = _start(y, operator, start)
    return _iterate(one, (begin, torch.zeros_like(y)), y, iterations, tolerance)


@torch.no_grad()
def solve_admm_tv(
    y: Tensor,
    operator: Snapshot,
    *,
    iterations: int = 60,
    weight: float = 0.1,
    inner: int = 5,
    gamma: float = 0.01,
    denoiser: Denoiser | None = None,
    tolerance: float | None = None,
    start: Tensor | None = None,
    callback: Callback | None = None,
) -> Reconstruction:
    """ADMM with total variation, or with another denoiser. Arguments as of `solve_gap_tv`.

    Args:
        gamma: penalty of the data step.
        denoiser: in place of total variation; `weight` and `inner` then say nothing.
    """
    phi, energy, step = operator.phi, operator.energy, operator.step
    denoise = _tv(weight, inner) if denoiser is None else _same_shape(denoiser)
    tell = _Teller(callback, iterations)

    def one(state: tuple[Tensor, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        theta, b = state
        x = undisperse(project_admm(disperse(theta, step), disperse(b, step), y, phi, energy, gamma), step)
        theta = denoise(x - b)
        return tell(theta), b - (x - theta)

    begin = _start(y, operator, start)
    return _iterate(one, (begin, torch.zeros_like(begin)), y, iterations, tolerance)


@torch.no_grad()
def solve_twist(
    y: Tensor,
    operator: Snapshot,
    *,
    iterations: int = 100,
    weight: float = 0.05,
    inner: int = 5,
    prior: str = "tv",
    smallest: float = 1e-3,
    tolerance: float | None = None,
    start: Tensor | None = None,
    callback: Callback | None = None,
) -> Reconstruction:
    """TwIST: `min |y - A x|^2 / 2 + weight P(x)` by a two-step iteration. Arguments as of `solve_gap_tv`.

    Args:
        prior: "tv", or "soft" for the l1 norm of the cosine coefficients of every band.
        smallest: the smallest eigenvalue of `A^T A` over the largest that the two steps are tuned to.

    A two-step that would raise the cost is replaced by a plain shrinkage step.
    """
    if prior not in _PRIORS:
        raise unknown("prior", prior, _PRIORS)
    if not 0 < smallest <= 1:
        raise ValueError(f"smallest must lie in (0, 1], got {smallest}")
    shrink, penalty = _PRIORS[prior]
    # Per sample: masks may differ, and a sample must not depend on its batch.
    largest = operator.energy.flatten(-2).amax(-1).expand(y.shape[0])[:, None, None, None]
    rho = (1 - smallest) / (1 + smallest)
    alpha = 2 / (1 + (1 - rho**2) ** 0.5)
    beta = 2 * alpha / (1 + smallest)
    tell = _Teller(callback, iterations)

    def cost(x: Tensor, y: Tensor) -> Tensor:
        misfit = (y - operator.forward(x)).square().flatten(1).sum(1) / 2
        return misfit + weight * penalty(x).sum(1)

    def one(state: tuple[Tensor, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        x, before = state
        descent = x + operator.adjoint(y - operator.forward(x)) / largest
        single = shrink(descent, weight / largest, inner)
        double = (1 - alpha) * before + (alpha - beta) * x + beta * single
        lower = cost(double, y) <= cost(x, y)
        return tell(torch.where(lower[:, None, None, None], double, single)), x

    begin = _start(y, operator, start)
    return _iterate(one, (begin, begin), y, iterations, tolerance)


SOLVERS: dict[str, Callable[..., Reconstruction]] = {
    "gap-tv": solve_gap_tv,
    "admm-tv": solve_admm_tv,
    "twist": solve_twist,
    "pnp": solve_pnp,
}


def solve(name: str, y: Tensor, operator: Snapshot, **options: Any) -> Reconstruction:
    """Reconstructs `y` `(b, h, w')` with a solver of this name: "gap-tv", "admm-tv", "twist" or "pnp".

    Args:
        options: of the solver's function.

    Raises:
        UnknownName: no such solver. UnknownOption: no such option. ValueError: shapes or options that do not fit.
    """
    if name not in SOLVERS:
        raise unknown("solver", name, SOLVERS)
    accepted = [
        option for option in inspect.signature(SOLVERS[name]).parameters if option not in ("y", "operator")
    ]
    for option in options:
        if option not in accepted:
            raise UnknownOption(str(unknown(f"option of {name}", option, accepted)))
    return SOLVERS[name](y, operator, **options)


_PRIORS: dict[str, tuple[Callable[[Tensor, Tensor, int], Tensor], Callable[[Tensor], Tensor]]] = {
    "tv": (lambda x, weight, inner: denoise_tv(x, weight, iterations=inner), total_variation),
    "soft": (lambda x, weight, inner: denoise_soft(x, weight), cosine_length),
}


class _Teller:
    def __init__(self, callback: Callback | None, iterations: int) -> None:
        self.callback, self.iterations, self.done = callback, iterations, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.done += 1
        if self.callback is not None:
            self.callback(Progress(self.done, self.iterations, x))
        return x


def _tv(weight: float, inner: int) -> Denoiser:
    return lambda x: denoise_tv(x, weight, iterations=inner)


def _same_shape(denoiser: Denoiser) -> Denoiser:
    def denoise(x: Tensor) -> Tensor:
        out = denoiser(x)
        if out.shape != x.shape:
            raise ValueError(
                f"the denoiser made {tuple(out.shape)} of a cube {tuple(x.shape)}; it must keep the shape"
            )
        return out

    return denoise


def _start(y: Tensor, operator: Snapshot, start: Tensor | None) -> Tensor:
    # The least-squares estimate is asked for also where a start is given: it checks the shape of y.
    least_squares = operator.adjoint(y / operator.energy)
    if start is None:
        return least_squares
    if start.shape != least_squares.shape:
        raise ValueError(f"start must be a cube {tuple(least_squares.shape)}, got {tuple(start.shape)}")
    return start


def _iterate(
    one: Callable[[Any, Tensor], Any],
    state: tuple[Tensor, ...],
    y: Tensor,
    iterations: int,
    tolerance: float | None,
) -> Reconstruction:
    solution = fixed_point(one, state, y, steps=iterations, gradient="unrolled", tolerance=tolerance)
    return Reconstruction(solution.state[0], solution.status)  # type: ignore[arg-type]
