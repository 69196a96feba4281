# SPDX-License-Identifier: Apache-2.0
"""How many samples a network can fit: Effective Model Complexity, and what it is measured with."""

from .capacity import Looking, capacity
from .minimum import Convergence, convergence
from .network import Copies
from .procedure import Procedure
from .result import Capacity, Probe, SeedCapacity
from .samples import Samples, fittable, without_conflicts
from .search import Gallop, StepByStep
from .variants import merge_classes, variant

__all__ = [
    "Capacity",
    "Convergence",
    "Copies",
    "Gallop",
    "Looking",
    "Probe",
    "Procedure",
    "Samples",
    "SeedCapacity",
    "StepByStep",
    "capacity",
    "convergence",
    "fittable",
    "merge_classes",
    "variant",
    "without_conflicts",
]
