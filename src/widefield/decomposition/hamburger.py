# SPDX-License-Identifier: Apache-2.0
"""Hamburger: two breads around a matrix decomposition.

    Y = X + W_u M(W_l X)

Paper   Is Attention Better Than Matrix Decomposition?, ICLR 2021, arXiv:2109.04553.
Facts   cost O(t r c n), rank of the context at most heads x rank, projections of 2 c d n.
Differs see `factoriser.py` for the start. The one-step gradient differentiates the last step over bases and
        codes, as the paper's pseudo-code says; gradient="codes_only" is what the authors released. Their norms
        move their running statistics by 3e-4 a step, made for 30,000 steps of fine-tuning; here it is torch's
        0.1, since after a short training the evaluation would still use the statistics of the start. For theirs
        pass `norm=lambda c: BatchNorm(c, momentum=3e-4)`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from widefield.core.context import Context
from widefield.core.gates import scalar_gate
from widefield.core.layout import Space
from widefield.core.norm import NormName, make_norm
from widefield.core.pointwise import Pointwise
from widefield.decomposition.concept import ConceptDecomposition
from widefield.decomposition.factoriser import ChannelHam, SpatialHam, codes_map, solve
from widefield.decomposition.ham import make_method, serve
from widefield.decomposition.method import Factors
from widefield.decomposition.nmf import NMF
from widefield.decomposition.vector_quantisation import SoftVQ


def initialise_breads(module: nn.Module) -> None:
    """Normal weights of variance 2 / fan-out, as the authors' code; biases as torch has them."""
    for part in module.modules():
        if isinstance(part, Pointwise):
            nn.init.normal_(part.weight, std=(2 / part.out_channels) ** 0.5)


class Hamburger(Context):
    """V1, two breads: `ReLU(x + norm(W_u M(W_l x)))`; NMF rectifies `W_l x`.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels: of the input.
        rank: R, bases of each head.
        steps: K, of the optimiser in training; eval_steps in evaluation (None: the same).
        gradient: "one_step", "unrolled", "neumann", "implicit", or "codes_only" (see `decompose`).
        terms: of the Neumann series.
        bases: "fixed", "random" or "online" (see `SpatialHam`).
        width: d, channels inside (None: as many as the input).
        heads: blocks of the d channels, each decomposed on its own.
        temperature: of the soft assignments of CD and VQ, 1 / tau in the paper (None: 0.1; see `concept.py`).
        norm: after the upper bread.
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
        width: int | None = None,
        heads: int = 1,
        temperature: float | None = None,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        self.width = channels if width is None else width
        self.lower_bread = Pointwise(channels, self.width)
        self.ham = SpatialHam(
            make_method(self.method_type, temperature), self.width, rank=rank, heads=heads, steps=steps,
            eval_steps=eval_steps, gradient=gradient, terms=terms, bases=bases,
        )  # fmt: skip
        self._top(norm)
        initialise_breads(self)
        self.to(device=device, dtype=dtype)

    def _top(self, norm: NormName) -> None:
        self.upper_bread = Pointwise(self.width, self.channels, bias=False)
        self.norm = make_norm(norm, self.channels)

    def enter(self, tokens: Tensor) -> Tensor:
        z = self.lower_bread(tokens)
        return torch.relu(z) if self.ham.method.nonnegative else z

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return self.ham(tokens)

    def leave(self, context: Tensor) -> Tensor:
        return self.norm(self.upper_bread(context))

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x + y)

    def solve(self, x: Tensor) -> Factors:
        """Factors and status of x, `(b, channels, *space)`."""
        return solve(self.enter, self.ham, x)

    def codes_map(self, x: Tensor) -> Tensor:
        """`(b, heads rank, *space)`: how much of each basis a position has."""
        return codes_map(self.enter, self.ham, x)

    def mixing_cost(self, space: Space) -> int:
        return self.ham.mixing_cost(math.prod(space))


class HamburgerMinus(Hamburger):
    """The minus form: the upper bread gets what the decomposition leaves over, `W_l x - M(W_l x)`.

    Everything else as V1. No released code has it.
    """

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        return tokens - self.ham(tokens)


class HamburgerV2(Hamburger):
    """V2, with cheese: `ReLU(x + W_u ReLU(norm(W_c M(W_l x))))`; the upper bread has no norm.

    Shape and arguments as V1; `norm` is that of the cheese.
    """

    def _top(self, norm: NormName) -> None:
        self.cheese = Pointwise(self.width, self.width, bias=False)
        self.norm = make_norm(norm, self.width)
        self.upper_bread = Pointwise(self.width, self.channels, bias=False)

    def leave(self, context: Tensor) -> Tensor:
        return self.upper_bread(torch.relu(self.norm(self.cheese(context))))


class HamburgerV2Plus(Context):
    """V2+: `ReLU(a W_u cheese(M(W_l x)) + b x)` with learned scalars a and b, spatial and channel ham.

    Shape: `(b, channels, *space) -> (b, channels, *space)`.

    Args:
        channels, rank, steps, eval_steps, gradient, terms, bases, heads, temperature: as V1. The channel ham
            has bases as long as the map and always starts from the same spread numbers, or random ones.
        width: d of each ham (None: as many as the input).
        dual: a channel ham beside the spatial one, each on its own half of the 2 d channels of the lower
            bread.
        cheese_factor: the cheese narrows the channels by it (by twice of it if dual).
        gate: a at the start; 0 is the authors' `zero_ham`, 1 their other setting.
        norm: of the cheese.
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
        width: int | None = None,
        heads: int = 1,
        temperature: float | None = None,
        dual: bool = True,
        cheese_factor: int = 1,
        gate: float = 0.0,
        norm: NormName = "batch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels)
        self.width = channels if width is None else width
        self.dual = dual
        inside = self.width * (2 if dual else 1)
        narrow = cheese_factor * (2 if dual else 1)
        if cheese_factor < 1 or inside % narrow:
            raise ValueError(
                f"the cheese cannot narrow {inside} channels by {narrow} (cheese_factor {cheese_factor}"
                f"{', doubled for the dual ham' if dual else ''}); choose a factor that divides"
            )
        self.lower_bread = Pointwise(channels, inside)
        method = make_method(self.method_type, temperature)
        shared: dict[str, Any] = {
            "rank": rank, "heads": heads, "steps": steps, "eval_steps": eval_steps, "gradient": gradient,
            "terms": terms,
        }  # fmt: skip
        self.ham = SpatialHam(method, self.width, bases=bases, **shared)
        if dual:
            fixed = "random" if bases == "random" else "fixed"
            self.channel_ham = ChannelHam(method, self.width, bases=fixed, **shared)
        self.cheese = Pointwise(inside, inside // narrow, bias=False)
        self.norm = make_norm(norm, inside // narrow)
        self.upper_bread = Pointwise(inside // narrow, channels, bias=False)
        self.ham_scale = scalar_gate(gate)
        self.shortcut_scale = nn.Parameter(torch.ones(1))
        initialise_breads(self)
        self.to(device=device, dtype=dtype)

    def enter(self, tokens: Tensor) -> Tensor:
        z = self.lower_bread(tokens)
        return torch.relu(z) if self.ham.method.nonnegative else z

    def mix(self, tokens: Tensor, space: Space) -> Tensor:
        if not self.dual:
            return self.ham(tokens)
        spatial, channel = tokens.split(self.width, 1)
        return torch.cat([self.ham(spatial), self.channel_ham(channel)], 1)

    def leave(self, context: Tensor) -> Tensor:
        return self.ham_scale * self.upper_bread(torch.relu(self.norm(self.cheese(context))))

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(y + self.shortcut_scale * x)

    def open_gate_(self, value: float = 1.0) -> bool:
        with torch.no_grad():
            self.ham_scale.fill_(value)
        return True

    def _spatial_tokens(self, tokens: Tensor) -> Tensor:
        return self.enter(tokens)[:, : self.width]

    def codes_map(self, x: Tensor) -> Tensor:
        """`(b, heads rank, *space)`: how much of each basis of the spatial ham a position has."""
        return codes_map(self._spatial_tokens, self.ham, x)

    def solve(self, x: Tensor) -> Factors:
        """Factors and status of the spatial ham for x, `(b, channels, *space)`."""
        return solve(self._spatial_tokens, self.ham, x)

    def mixing_cost(self, space: Space) -> int:
        n = math.prod(space)
        return self.ham.mixing_cost(n) + (self.channel_ham.mixing_cost(n) if self.dual else 0)


@serve("hamburger-nmf")
class HamburgerNMF(Hamburger):
    method_type = NMF


@serve("hamburger-cd")
class HamburgerCD(Hamburger):
    method_type = ConceptDecomposition


@serve("hamburger-vq")
class HamburgerVQ(Hamburger):
    method_type = SoftVQ


@serve("hamburger-minus-nmf", max_rank=None)
class HamburgerMinusNMF(HamburgerMinus):
    method_type = NMF


@serve("hamburger-minus-cd", max_rank=None)
class HamburgerMinusCD(HamburgerMinus):
    method_type = ConceptDecomposition


@serve("hamburger-minus-vq", max_rank=None)
class HamburgerMinusVQ(HamburgerMinus):
    method_type = SoftVQ


@serve("hamburger-v2-nmf")
class HamburgerV2NMF(HamburgerV2):
    method_type = NMF


@serve("hamburger-v2-cd")
class HamburgerV2CD(HamburgerV2):
    method_type = ConceptDecomposition


@serve("hamburger-v2-vq")
class HamburgerV2VQ(HamburgerV2):
    method_type = SoftVQ


@serve("hamburger-v2plus-nmf", identity_at_init=True)
class HamburgerV2PlusNMF(HamburgerV2Plus):
    method_type = NMF


@serve("hamburger-v2plus-cd", identity_at_init=True)
class HamburgerV2PlusCD(HamburgerV2Plus):
    method_type = ConceptDecomposition


@serve("hamburger-v2plus-vq", identity_at_init=True)
class HamburgerV2PlusVQ(HamburgerV2Plus):
    method_type = SoftVQ
