# SPDX-License-Identifier: Apache-2.0
"""BIRNAT: band after band, forward and back, each from the measurement without what is known of the others.

    first band    a CNN on [y', Phi y'],  y' = y / sum Phi
    forward       band i + 1 from band i, the state, y', and y - Phi (bands so far) - Phi y' (bands to come)
    backward      band i - 1 likewise, from the last band on; bands to come are those of the forward pass

Paper   BIRNAT: Bidirectional Recurrent Neural Networks with Adversarial Training for Video Snapshot Compressive
        Imaging, ECCV 2020; for spectra TPAMI 2022. No arXiv. The form is the toolbox's of MST (arXiv:2111.07910):
        a generator alone, no adversarial training.
Facts   convolutions: linear in the number of pixels, and sequential in the bands. Everything is in the dispersed
        frame until the end.
*differs*: a pixel that no band reaches has y' = y (the code divides by zero). Odd sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from widefield.attention.sdpa import attention
from widefield.core.errors import require_positive
from widefield.core.gates import scalar_gate
from widefield.core.numerics import widen
from widefield.core.pointwise import Pointwise
from widefield.imaging import undisperse
from widefield.models.spectral.network import SnapshotNetwork, network
from widefield.weights.reference import Table, reference

SLOPE = 0.01

# Channels, as published.
FIRST = {"embed": 32, "middle": 64, "deep": 128, "leave": 16}
RECURRENT = {"state": 20, "look": 10, "lifted": 16, "wide": 40, "mixed": 32, "shrunk": 30}


class SelfAttention(nn.Module):
    """`x + g W softmax(q^T k) v`, with biases, not scaled; g learned and 0 at the start.

    Shape: `(b, channels, h, w) -> (b, channels, h, w)`. n x n maps are never held whole.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        require_positive("SelfAttention", channels=channels)
        inner = max(1, channels // 8)
        self.key = Pointwise(channels, inner)
        self.query = Pointwise(channels, inner)
        self.value = Pointwise(channels, channels)
        self.project = Pointwise(channels, channels)
        self.gate = scalar_gate(0.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).flatten(2) for project in (self.query, self.key, self.value))
        y = self.project(attention(q, k, v, scale=1.0).unflatten(2, x.shape[2:]))
        return x + self.gate.to(x.dtype) * y


class ResidualPart(nn.Module):
    """`x + f(x)`, three times; f is 3x3, 1x1, 3x3 with leaky ReLU between: `(b, channels, h, w)` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.LeakyReLU(SLOPE),
                nn.Conv2d(channels, channels, 1),
                nn.LeakyReLU(SLOPE),
                nn.Conv2d(channels, channels, 3, padding=1),
            )
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


class FirstBand(nn.Module):
    """The first band: `(b, 1 + bands, h, w')` to `(b, 1, h, w')`, at half the size within.

    Args:
        bands: of the mask.
        widths: channels of the stages; see `FIRST`.
        attend: call the self-attention, which the toolbox's file builds and leaves out. Its parameters are held
            either way, so that its states load, and frozen where it is not called.
    """

    def __init__(self, bands: int, widths: Mapping[str, int], *, attend: bool) -> None:
        super().__init__()
        embed, middle, deep, leave = (widths[key] for key in ("embed", "middle", "deep", "leave"))
        self.attend = attend
        self.enter = nn.Sequential(
            nn.Conv2d(bands + 1, embed, 5, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(embed, middle, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(middle, middle, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(middle, deep, 3, 2, padding=1),
            nn.LeakyReLU(SLOPE),
        )
        self.body = nn.Sequential(
            ResidualPart(deep),
            nn.Conv2d(deep, deep, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(deep, deep, 1),
            ResidualPart(deep),
            nn.Conv2d(deep, deep, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(deep, deep, 1),
            ResidualPart(deep),
        )
        self.attention = SelfAttention(deep).requires_grad_(attend)
        self.leave = nn.Sequential(
            nn.ConvTranspose2d(deep, middle, 3, 2, padding=1, output_padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(middle, embed, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(embed, leave, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(leave, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(self.enter(x))
        if self.attend:
            z = self.attention(z)
        return self.leave(z)[..., : x.shape[2], : x.shape[3]]


class Look(nn.Sequential):
    """Features of one map, by way of half its size: `(b, 1, h, w')` to `(b, out, h, w')`."""

    def __init__(self, lifted: int, mixed: int, wide: int, state: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(1, lifted, 5, padding=2),
            nn.Conv2d(lifted, mixed, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(mixed, wide, 3, 2, padding=1),
            nn.Conv2d(wide, state, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(state, state, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.ConvTranspose2d(state, out_channels, 3, 2, padding=1, output_padding=1),
        )

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)[..., : input.shape[2], : input.shape[3]]


class Cell(nn.Module):
    """One band from the one before it.

    Shape: state `(b, state, h, w')`, features of y' and of the residual `(b, look, h, w')` each, and a band
    `(b, 1, h, w')`, to the next state and band.
    """

    def __init__(self, widths: Mapping[str, int]) -> None:
        super().__init__()
        state, look, lifted, wide, mixed, shrunk = (
            widths[key] for key in ("state", "look", "lifted", "wide", "mixed", "shrunk")
        )
        whole = 2 * state + 2 * look
        self.look_normed = Look(lifted, mixed, wide, state, look)
        self.look_residual = Look(look, look, wide, state, look)
        self.extract = nn.Sequential(
            nn.Conv2d(1, state, 5, padding=2),
            nn.Conv2d(state, state, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(state, state, 3, padding=1),
            nn.Conv2d(state, wide, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(wide, state, 3, padding=1),
        )
        self.first = ResidualPart(whole)
        self.second = ResidualPart(whole)
        self.update = nn.Sequential(
            nn.Conv2d(whole, shrunk, 3, padding=1),
            nn.Conv2d(shrunk, state, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(state, state, 3, padding=1),
        )
        self.emit = nn.Sequential(
            nn.Conv2d(whole, wide, 3, padding=1),
            nn.Conv2d(wide, shrunk, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(shrunk, state, 3, padding=1),
            nn.Conv2d(state, state, 1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(state, state, 3, padding=1),
            nn.Conv2d(state, 1, 1),
        )

    def forward(self, state: Tensor, normed: Tensor, residual: Tensor, band: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.cat([state, normed, self.look_residual(residual), self.extract(band)], 1)
        h = self.second(self.first(h))
        return self.update(h), self.emit(h)


@network(
    {"birnat": {}}, title="Recurrent Neural Networks for Snapshot Compressive Imaging", paper="TPAMI 2022",
    year=2022, input="Y", mask="Phi",
)  # fmt: skip
class BIRNAT(SnapshotNetwork):
    """Bidirectional recurrent network over the bands.

    Shape: measurement `(b, h, w')` and mask `(l, h, w')` or `(b, l, h, w')` to `(b, l, h, w)`.

    Args:
        bands, step: of the cube and the sensor.
        attend: call the self-attention of the first band's network, as the paper and not as the toolbox.
        first: channels of the first band's network; what is not named keeps its published width (`FIRST`).
        recurrent: those of both recurrent passes (`RECURRENT`).

    Raises:
        ValueError: a width below 1.
    """

    def __init__(
        self,
        bands: int = 28,
        step: int = 2,
        *,
        attend: bool = False,
        first: Mapping[str, int] | None = None,
        recurrent: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(bands, step)
        widths = _widths("first", FIRST, first), _widths("recurrent", RECURRENT, recurrent)
        self.state_width = widths[1]["state"]
        self.first_band = FirstBand(bands, widths[0], attend=attend)
        self.ahead = Cell(widths[1])
        self.back = Cell(widths[1])

    def forward(self, y: Tensor, phi: Tensor) -> Tensor:
        self.check(y, phi)
        phi = phi.to(y.dtype).expand(len(y), -1, -1, -1)
        total = widen(phi).sum(1)
        normed = (widen(y) / torch.where(total == 0, 1, total)).to(y.dtype)  # y'
        band = self.first_band(torch.cat([normed[:, None], normed[:, None] * phi], 1))
        bands, state = self.pass_ahead(band, y, normed, phi)
        cube = self.pass_back(bands, state, y, normed, phi)
        return undisperse(cube, self.step)

    def pass_ahead(self, band: Tensor, y: Tensor, normed: Tensor, phi: Tensor) -> tuple[list[Tensor], Tensor]:
        """All bands `(b, 1, h, w')` from the first, and the last state."""
        state = y.new_zeros(len(y), self.state_width, *y.shape[1:])
        seen = self.ahead.look_normed(normed[:, None])
        known = phi[:, :1] * band
        ahead = phi[:, 1:].sum(1, keepdim=True)
        bands = [band]
        for i in range(1, self.bands):
            ahead = ahead - phi[:, i : i + 1]  # the mask of the bands behind the one to come
            residual = y[:, None] - known - ahead * normed[:, None]
            state, band = self.ahead(state, seen, residual, band)
            bands.append(band)
            known = known + phi[:, i : i + 1] * band
        return bands, state

    def pass_back(self, bands: list[Tensor], state: Tensor, y: Tensor, normed: Tensor, phi: Tensor) -> Tensor:
        """The cube `(b, l, h, w')` from the bands of the pass ahead, the last of which it keeps."""
        seen = self.back.look_normed(normed[:, None])
        band, coded = bands[-1], phi * torch.cat(bands, 1)
        known = coded[:, -1:]
        ahead = coded[:, :-1].sum(1, keepdim=True)
        found = [band]
        for i in reversed(range(self.bands - 1)):
            ahead = ahead - coded[:, i : i + 1]
            state, band = self.back(state, seen, y[:, None] - known - ahead, band)
            found.append(band)
            known = known + phi[:, i : i + 1] * band
        return torch.cat(found[::-1], 1)


def _widths(option: str, published: Mapping[str, int], chosen: Mapping[str, int] | None) -> dict[str, int]:
    widths: dict[str, Any] = {**published, **(chosen or {})}
    strange = [key for key in widths if key not in published]
    if strange or min(widths.values()) < 1:
        raise ValueError(
            f"BIRNAT: {option} takes widths of at least 1 for {', '.join(published)}; got {dict(chosen or {})!r}"
        )
    return widths


ATTENTION = {"key": "conv1", "query": "conv2", "value": "conv3", "project": "conv4", "gate": "gamma1"}


def _part(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.parts.{i}": f"{theirs}.conv{i + 1}" for i in range(3)}


@reference("mst", SelfAttention)
def _attention(module: SelfAttention) -> Table:
    return ATTENTION


@reference("mst", BIRNAT)
def _birnat(module: BIRNAT) -> Table:
    table: dict[str, str] = {}
    first = {"enter.0": "conv1", "enter.2": "conv2", "enter.4": "conv3", "enter.6": "conv4", "leave.0": "conv5",
             "leave.2": "conv51", "leave.4": "conv52", "leave.6": "conv6", "body.1": "conv7", "body.3": "conv8",
             "body.5": "conv9", "body.7": "conv10"}  # fmt: skip
    first |= {f"attention.{a}": f"att1.{b}" for a, b in ATTENTION.items()}
    for i, place in enumerate((0, 4, 8)):
        first |= _part(f"body.{place}", f"res_part{i + 1}")
    table |= {f"first_band.{a}": f"first_frame_net.{b}" for a, b in first.items()}
    cell = {"look_normed": "conv_x1", "look_residual": "conv_x2", "extract": "extract_feature1.conv",
            "update": "h_h", "emit": "up_feature1.conv"}  # fmt: skip
    cell |= _part("first", "res_part1") | _part("second", "res_part2")
    for ours, theirs in (("ahead", "rnn1"), ("back", "rnn2")):
        table |= {f"{ours}.{a}": f"{theirs}.{b}" for a, b in cell.items()}
    return table
