# SPDX-License-Identifier: Apache-2.0
"""The ham: a map of features replaced by its low-rank reconstruction, and nothing else.

Paper   Is Attention Better Than Matrix Decomposition?, ICLR 2021, arXiv:2109.04553, section 2.2.
Facts   output rank over positions at most heads x rank; cost linear in n; no parameters. ONNX has no Cholesky
        factorisation, which CD needs.
Differs see `factoriser.py` for the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from widefield.core.context import Context
from widefield.core.errors import unknown
from widefield.core.layout import Space
from widefield.core.registry import register
from widefield.decomposition.concept import ConceptDecomposition
from widefield.decomposition.factoriser import ChannelHam, SpatialHam, codes_map, solve
from widefield.decomposition.method import Factors
from widefield.decomposition.nmf import NMF
from widefield.decomposition.vector_quantisation import SoftVQ

TITLE, PAPER = "Is Attention Better Than Matrix Decomposition?", "arXiv:2109.04553"
AXES = {"spatial": SpatialHam, "channel": ChannelHam}


class Ham(Context):
    """M(X): the reconstruction alone, without bread, norm or residual. No parameters.

    NMF rectifies its input first, since it factorises non-negative matrices only.

    Shape: `(b, c, *space) -> (b, c, *space)`.

    Args:
        channels: c.
        rank, steps, eval_steps, gradient, terms, bases, heads: as in `SpatialHam`.
        temperature: of the soft assignments of CD and VQ, 1 / tau in the paper (None: 0.1; see `concept.py`).
        axis: "spatial" (bases are features) or "channel" (bases are maps).
    """

    method_type: type[NMF] | type[ConceptDecomposition] | type[SoftVQ]

    def __init__(
        self,
        channels: int,
        *,
        rank: int = 64,
        steps: int = 6,
        eval_steps: int | None = None,
        gradient: str = "one_step",
        terms: int = 5,
        bases: str = "fixed",
        heads: int = 1,
        temperature: float | None = None,
        axis: str = "spatial",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        if axis not in AXES:
            raise unknown("axis", axis, AXES)
        self.ham = AXES[axis](
            make_method(self.method_type, temperature),
            channels,
            rank=rank,
            heads=heads,
            steps=steps,
            eval_steps=eval_steps,
            gradient=gradient,
            terms=terms,
            bases=bases,
        )
        self.to(device=device, dtype=dtype)

    def enter(self, tokens: Tensor) -> Tensor:
        if not self.ham.method.nonnegative:
            return tokens
        # Features that are exactly zero after a network's own ReLU keep their gradient, which relu would take.
        return torch.where(tokens < 0, 0.0, tokens) if torch.is_grad_enabled() else torch.relu(tokens)

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.ham(tokens)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return y

    def solve(self, x: Tensor) -> Factors:
        """Factors and status of x, `(b, c, *space)`."""
        return solve(self.enter, self.ham, x)

    def codes_map(self, x: Tensor) -> Tensor:
        """`(b, heads rank, *space)`: how much of each basis a position has."""
        return codes_map(self.enter, self.ham, x)

    def mixing_cost(self, space: Space) -> int:
        return self.ham.mixing_cost(math.prod(space))


def make_method(
    kind: type[NMF] | type[ConceptDecomposition] | type[SoftVQ], temperature: float | None
) -> NMF | ConceptDecomposition | SoftVQ:
    """The method at a temperature, or at its default one.

    Raises:
        ValueError: a temperature that is not positive, or one for NMF, whose codes start at 1.
    """
    if temperature is None:
        return kind()
    if kind is NMF:
        if temperature != 1:
            raise ValueError(f"NMF starts its codes at temperature 1 and has no other, got {temperature}")
        return kind()
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return kind(temperature)  # type: ignore[call-arg]


_Module = TypeVar("_Module", bound=type[Context])


def serve(name: str, **facts: Any) -> Callable[[_Module], _Module]:
    """Registers a class of this paper: all of them iterate, keep bases and can start at random."""
    known = {"max_rank": "rank", **facts}
    return register(
        name, family="decomposition", title=TITLE, paper=PAPER, year=2021, iterative=True, has_state=True,
        random_start=True, exact_gradient=False, **known,
    )  # fmt: skip


@serve("ham-nmf")
class HamNMF(Ham):
    method_type = NMF


@serve("ham-cd")
class HamCD(Ham):
    method_type = ConceptDecomposition


@serve("ham-vq")
class HamVQ(Ham):
    method_type = SoftVQ
