# SPDX-License-Identifier: Apache-2.0
"""What the reconstruction networks share: their inputs, their names, and one line of errors.

Every network is `forward(y, phi) -> cube`: the raw measurement `(b, h, w')`, the dispersed mask `(l, h, w')` or
`(b, l, h, w')`, the cube `(b, l, h, w)`. What else a paper feeds its network (the measurement shifted back, the
plain mask, the energy of Phi) follows from these two, so any network runs on any snapshot operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.errors import UnknownOption, require_positive, unknown
from widefield.imaging.dispersion import scene_width


class SnapshotNetwork(nn.Module):
    """Base of the reconstruction networks.

    Args:
        bands: l, of the cube.
        step: columns between neighbouring bands on the sensor; 0 for snapshot video.

    Raises:
        ValueError: no band, or a negative step.
    """

    def __init__(self, bands: int, step: int) -> None:
        super().__init__()
        require_positive(type(self).__name__, bands=bands)
        if not isinstance(step, int) or step < 0:
            raise ValueError(
                f"{type(self).__name__}: step must be a whole number of columns, 0 or more; got {step!r}"
            )
        self.bands, self.step = bands, step

    def check(self, y: Tensor, phi: Tensor | None) -> int:
        """The width of the scene.

        Raises:
            ValueError: a measurement or a mask of another shape than this network's bands and step ask for.
        """
        name = type(self).__name__
        if y.dim() != 3:
            raise ValueError(f"{name} takes a measurement (b, h, w'), got {tuple(y.shape)}")
        if phi is not None:
            wanted = (self.bands, *y.shape[1:])
            one_each = phi.dim() == 4 and phi.shape[0] in (1, y.shape[0])
            if tuple(phi.shape[-3:]) != wanted or not (phi.dim() == 3 or one_each):
                raise ValueError(
                    f"{name} with {self.bands} bands takes a dispersed mask {wanted} for a measurement "
                    f"{tuple(y.shape)}, or one for each sample; got {tuple(phi.shape)}"
                )
        return scene_width(y.shape[-1], self.bands, self.step)


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """`(b, c, h, w)` padded right and below to multiples, by reflection; where the map is too small to reflect,
    by repeating its edge after as much reflection as it has."""
    down, right = (-size % multiple for size in x.shape[-2:])
    while down or right:
        # A reflection takes at most size - 1 rows; a single row can only be repeated.
        h, w = x.shape[-2:]
        now_down, now_right = min(down, max(h - 1, 0)), min(right, max(w - 1, 0))
        if now_down or now_right:
            x = F.pad(x, (0, now_right, 0, now_down), mode="reflect")
            down, right = down - now_down, right - now_right
        else:
            return F.pad(x, (0, right, 0, down), mode="replicate")
    return x


@dataclass(frozen=True)
class NetworkEntry:
    """A published network, or one of its published sizes.

    Attributes:
        name: of the size.
        build: its class; called with `bands`, `step` and options.
        options: what makes it this size.
        title, paper, year: the publication.
        input: what the paper feeds it: "Y", "H" or "HM".
        mask: the form of the mask it sees: "none", "Mask", "Phi" or "Phi, Phi_s".
    """

    name: str
    build: Callable[..., SnapshotNetwork]
    options: Mapping[str, Any]
    title: str
    paper: str
    year: int
    input: str
    mask: str


_NETWORKS: dict[str, NetworkEntry] = {}
_Class = TypeVar("_Class", bound=Callable[..., SnapshotNetwork])
# One file a paper; each registers its sizes.
_FILES = (
    "admm_net", "birnat", "bisrnet", "cst", "dauhst", "dgsmp", "gap_net", "hdnet", "lambda_net", "mst",
    "mst_plus_plus", "tsa_net",
)  # fmt: skip


def network(
    sizes: Mapping[str, Mapping[str, Any]], *, title: str, paper: str, year: int, input: str, mask: str
) -> Callable[[_Class], _Class]:
    """Registers the class below it under the name of each published size, with the options that make that size."""

    def add(build: _Class) -> _Class:
        for name, options in sizes.items():
            _NETWORKS[name] = NetworkEntry(name, build, dict(options), title, paper, year, input, mask)
        return build

    return add


@cache
def _load() -> None:
    for file in _FILES:
        import_module(f"widefield.models.spectral.{file}")


def list_networks() -> list[str]:
    """The names that `create_network` takes, sorted."""
    _load()
    return sorted(_NETWORKS)


def network_entry(name: str) -> NetworkEntry:
    """What is known of a network.

    Raises:
        UnknownName: with the nearest names.
    """
    _load()
    if name not in _NETWORKS:
        raise unknown("reconstruction network", name, _NETWORKS)
    return _NETWORKS[name]


def create_network(name: str, *, bands: int = 28, step: int = 2, **options: Any) -> SnapshotNetwork:
    """Builds a published size for any number of bands and any step.

    Args:
        name: one of `list_networks()`.
        bands, step: of the cube and the sensor.
        options: of the class; they override what the size sets.

    Raises:
        UnknownName: no such network. UnknownOption: no such option. ValueError: an option out of range.
    """
    entry = network_entry(name)
    accepted = [p for p in inspect.signature(entry.build).parameters if p not in ("bands", "step")]
    for option in options:
        if option not in accepted:
            raise UnknownOption(str(unknown(f"option of {name}", option, accepted)))
    return entry.build(bands=bands, step=step, **{**entry.options, **options})
