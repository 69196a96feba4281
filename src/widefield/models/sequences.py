# SPDX-License-Identifier: Apache-2.0
"""Whole networks over sequences, by name: a layer of `widefield.sequence` and a linear map of what it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from widefield.core.errors import UnknownOption, require_positive, unknown
from widefield.sequence import (
    GRU,
    HMLSTM,
    LSTM,
    NTM,
    RNN,
    DepthGridLSTM,
    GatedFeedbackLSTM,
    GatedFeedbackRNN,
    HistoryLSTM,
    SequenceLayer,
)
from widefield.sequence.layer import State

_SQUASHES: dict[str, Callable[[], nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


class SequenceNetwork(nn.Module):
    """`(b, t, d)` to `(b, t, output_size)` and the state after it.

    Args:
        layer: any of `widefield.sequence`.
        output_size: of the linear map behind it; None where the layer has one of its own.
    """

    def __init__(self, layer: SequenceLayer, output_size: int | None) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Identity() if output_size is None else nn.Linear(layer.output_size, output_size)

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        y, after = self.layer(x, state, lengths)
        return self.head(y), after


class DeepNetwork(nn.Module):
    """A deep feed-forward network over the whole sequence at once: `(b, t, d)` to `(b, 1, output_size)`.

    Args:
        input_size: t d.
        output_size: of the answer.
        hidden_size, layers: of the squashed linear layers.
        nonlinearity: "sigmoid", "tanh" or "relu". Through many sigmoids the gradient vanishes: that is what
            pre-training was for.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        hidden_size: int = 64,
        layers: int = 5,
        nonlinearity: Literal["sigmoid", "tanh", "relu"] = "sigmoid",
    ) -> None:
        super().__init__()
        require_positive("mlp", input_size=input_size, hidden_size=hidden_size, layers=layers)
        if nonlinearity not in _SQUASHES:
            raise unknown("nonlinearity", nonlinearity, _SQUASHES)
        self.input_size = input_size
        self.layers = nn.ModuleList()
        for layer in range(layers):
            linear = nn.Linear(hidden_size if layer else input_size, hidden_size)
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
            self.layers.append(nn.Sequential(linear, _SQUASHES[nonlinearity]()))
        self.head = nn.Linear(hidden_size, output_size)

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        x = self.flat(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)[:, None], ()

    def flat(self, x: Tensor) -> Tensor:
        """`(b, t, d)` to `(b, t d)`.

        Raises:
            ValueError: another length than it was built for.
        """
        if x[0].numel() != self.input_size:
            raise ValueError(f"mlp was built for {self.input_size} numbers, got the shape {tuple(x.shape)}")
        return x.flatten(1)


@dataclass(frozen=True)
class _Entry:
    build: Callable[..., nn.Module]
    settings: Mapping[str, Any] = field(default_factory=dict)


_H = {"hidden_size": 64}
NETWORKS: dict[str, _Entry] = {
    "rnn": _Entry(RNN, _H | {"recurrent": "uniform"}),
    "rnn-orthogonal": _Entry(RNN, _H),
    "rnn-relu-orthogonal": _Entry(RNN, _H | {"nonlinearity": "relu"}),
    "irnn": _Entry(RNN, _H | {"nonlinearity": "relu", "recurrent": "identity"}),
    "lstm": _Entry(LSTM, _H),
    "lstm-forget-0": _Entry(LSTM, _H | {"forget_bias": 0.0}),
    "gru": _Entry(GRU, _H),
    "gated-feedback-rnn": _Entry(GatedFeedbackRNN, _H),
    "gated-feedback-lstm": _Entry(GatedFeedbackLSTM, _H),
    "hm-lstm": _Entry(HMLSTM, {"hidden_sizes": (64, 64, 64)}),
    "grid-lstm": _Entry(DepthGridLSTM, _H),
    "history-lstm": _Entry(HistoryLSTM, _H),
    "ntm": _Entry(NTM),
    "ntm-feedforward": _Entry(NTM, {"controller": "feedforward"}),
    "mlp": _Entry(DeepNetwork),
}
_NOT_OPTIONS = {"input_size", "output_size", "device", "dtype"}


def list_sequence_networks() -> list[str]:
    """All names."""
    return list(NETWORKS)


def sequence_options(name: str) -> dict[str, Any]:
    """Options of a network with their defaults.

    Raises:
        UnknownName: no such network.
    """
    if name not in NETWORKS:
        raise unknown("sequence network", name, NETWORKS)
    entry = NETWORKS[name]
    found = {
        option: parameter.default
        for option, parameter in inspect.signature(entry.build).parameters.items()
        if option not in _NOT_OPTIONS
    }
    return found | dict(entry.settings)


def create_sequence_network(
    name: str,
    input_size: int,
    output_size: int,
    options: Mapping[str, Any] | None = None,
    *,
    fixed_steps: int | None = None,
) -> nn.Module:
    """A network by name.

    Args:
        name: one of `list_sequence_networks()`.
        input_size, output_size: widths of x and of the answer.
        options: of the layer.
        fixed_steps: of every sequence, where they are of one length; a feed-forward network needs it.

    Raises:
        UnknownName, UnknownOption: no such network or option. ValueError: a value that cannot be, or a
            feed-forward network on sequences of any length.
    """
    accepted, given = sequence_options(name), dict(options or {})
    for option in given:
        if option not in accepted:
            raise UnknownOption(str(unknown(f"option of {name}", option, accepted)))
    entry = NETWORKS[name]
    settings = dict(entry.settings) | given
    if isinstance(settings.get("hidden_sizes"), int):
        settings["hidden_sizes"] = (settings["hidden_sizes"],)
    if entry.build is DeepNetwork:
        if fixed_steps is None:
            raise ValueError(f"{name} takes sequences of one length only: the tasks adding and digits")
        return DeepNetwork(fixed_steps * input_size, output_size, **settings)
    if entry.build is NTM:
        return SequenceNetwork(NTM(input_size, output_size, **settings), None)
    layer: Any = entry.build(input_size, **settings)
    return SequenceNetwork(layer, output_size)


def hidden_layers(network: nn.Module) -> Sequence[nn.Module]:
    """What auto-encoders can be trained on: the squashed layers of a deep feed-forward network.

    Raises:
        ValueError: a network without such layers.
    """
    if not isinstance(network, DeepNetwork):
        raise ValueError("pre-training by auto-encoders is for deep feed-forward networks: the model mlp")
    return list(network.layers)
