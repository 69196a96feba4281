# SPDX-License-Identifier: Apache-2.0
"""Weights of reconstruction networks from a file: our own, or the toolbox's."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from widefield.core.extras import require
from widefield.models.spectral.network import SnapshotNetwork
from widefield.weights.reference import load_reference


def load_weights(network: SnapshotNetwork, path: Path | str) -> str:
    """Copies the weights of a `.safetensors` or `.pth` file into `network`, without executing code.

    The names may be ours, or those of the toolbox (github.com/caiyuanhao1998/MST).

    Returns:
        Whose names they were: "widefield" or "mst".

    Raises:
        ValueError: the file cannot be read as weights, or holds those of another network; both readings are named.
        FileNotFoundError: no such file.
    """
    state = read_state(Path(path))
    own = network.state_dict()
    if state.keys() == own.keys():
        wrong = [
            f"{k} is {tuple(state[k].shape)}, ours {tuple(v.shape)}"
            for k, v in own.items()
            if state[k].shape != v.shape
        ]
        if wrong:
            raise ValueError(
                f"{path}: weights of another size: {'; '.join(wrong[:5])}; build the network with the options it "
                "was trained with"
            )
        network.load_state_dict(state)
        return "widefield"
    try:
        load_reference(network, state, source="mst")
    except ValueError as error:
        raise ValueError(f"{path} holds neither our weights of this network nor the toolbox's: {error}") from error
    return "mst"


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        ValueError: not a file of weights. FileNotFoundError: no such file.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file of weights")
    try:
        if path.suffix == ".safetensors":
            return require("safetensors.torch", "weights").load_file(str(path))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} cannot be read as weights ({why}); accepted are .safetensors, and .pth files that hold "
            "tensors only (pickled modules are refused, since loading them runs code)"
        ) from error
    while isinstance(found, dict) and not any(isinstance(v, Tensor) for v in found.values()):
        inner = [v for v in found.values() if isinstance(v, dict)]
        if len(inner) != 1:
            raise ValueError(
                f"{path} holds no table of tensors; its keys are {', '.join(map(str, list(found)[:8]))}"
            )
        found = inner[0]
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, not a table of tensors")
    return {str(k): v for k, v in found.items() if isinstance(v, Tensor)}
