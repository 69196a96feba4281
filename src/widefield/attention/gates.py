# SPDX-License-Identifier: Apache-2.0
"""The gated way out lives on the ground floor, where graph and decomposition modules use it too."""

from widefield.core.gates import GatedProjection as GatedProjection
