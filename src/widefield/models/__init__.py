# SPDX-License-Identifier: Apache-2.0
"""Whole networks, and the published heads, around the context modules."""

from widefield.models.plain import plain_backbone as plain_backbone
from widefield.models.segmenter import Segmenter as Segmenter
from widefield.models.sequences import create_sequence_network as create_sequence_network
from widefield.models.sequences import list_sequence_networks as list_sequence_networks
from widefield.models.sized import create_sized as create_sized
from widefield.weights.backbones import Backbone as Backbone
