# SPDX-License-Identifier: Apache-2.0
"""Networks from a snapshot measurement to a spectral cube, one paper a file."""

from widefield.models.spectral.files import load_weights as load_weights
from widefield.models.spectral.network import NetworkEntry as NetworkEntry
from widefield.models.spectral.network import SnapshotNetwork as SnapshotNetwork
from widefield.models.spectral.network import create_network as create_network
from widefield.models.spectral.network import list_networks as list_networks
from widefield.models.spectral.network import network as network
from widefield.models.spectral.network import network_entry as network_entry
