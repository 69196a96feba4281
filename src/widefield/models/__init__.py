# SPDX-License-Identifier: Apache-2.0
"""Whole networks, and the published heads, around the context modules."""

from widefield.models.plain import plain_backbone as plain_backbone
from widefield.models.segmenter import Segmenter as Segmenter
from widefield.models.sized import create_sized as create_sized
from widefield.weights.backbones import Backbone as Backbone
