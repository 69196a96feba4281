# SPDX-License-Identifier: Apache-2.0
"""Reason on a graph: positions are gathered into a few nodes, the nodes exchange, the result is given back."""
