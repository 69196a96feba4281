# SPDX-License-Identifier: Apache-2.0
"""Published weights, under the names of those who published them."""

from widefield.weights.reference import list_sources as list_sources
from widefield.weights.reference import load_reference as load_reference
from widefield.weights.reference import reference_names as reference_names
