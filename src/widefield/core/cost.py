# SPDX-License-Identifier: Apache-2.0
"""What a module says of its own cost, in closed form, to be cross-checked against a counter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of matrix products and convolutions in one forward, and trainable parameters.

    Attributes:
        multiply_adds: one per multiplication followed by an addition (half the "operations" or FLOPs).
        parameters: trainable numbers.
        notes: what the figure leaves out, if anything.
    """

    multiply_adds: int
    parameters: int
    notes: str = "elementwise work (softmax, norms, divisions) not counted"
