# SPDX-License-Identifier: Apache-2.0
"""Reason on a graph: positions are gathered into a few nodes, the nodes exchange, the result is given back."""

from widefield.graph.gcu import GCU as GCU
from widefield.graph.glore import GloRe as GloRe
from widefield.graph.latentgnn import LatentGNN as LatentGNN
from widefield.graph.sgr import SymbolicGraphReasoning as SymbolicGraphReasoning
