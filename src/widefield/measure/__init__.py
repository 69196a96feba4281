# SPDX-License-Identifier: Apache-2.0
"""Instruments that take any module: what it costs, what it does to a representation, how it passes gradients.

* `cost`, `count`: parameters, multiply-adds, memory, time at an input shape.
* `spectrum`, `effective_rank`: singular values of the features before and after.
* `gradient_agreement`: the gradient policies of an iterative module against each other.
* `capacity`: the largest set that a network fits perfectly under a training procedure.
* `jacobian_singular_values`: the extremes, without the Jacobian.
* `sequence_flow`, `iteration_flow`: how far back a gradient reaches, through steps or through iterations.

`OperatorCounter`, `LiveBytes` and `SpectrumAccumulator` are the same instruments for code that is no module.
"""

from .capacity import Capacity, Gallop, Procedure, Samples, StepByStep, capacity
from .cost import CostReport, Latency, cost
from .flops import Count, OperatorCounter, count
from .flow import Flow, distance_from_orthogonality, iteration_flow, sequence_flow
from .gradient import PolicyGradient, gradient_agreement
from .jacobian import JacobianSpectrum, jacobian_singular_values
from .memory import LiveBytes
from .spectrum import SingularValues, Spectrum, SpectrumAccumulator, effective_rank, spectrum

__all__ = [
    "Capacity",
    "CostReport",
    "Count",
    "Flow",
    "Gallop",
    "JacobianSpectrum",
    "Latency",
    "LiveBytes",
    "OperatorCounter",
    "PolicyGradient",
    "Procedure",
    "Samples",
    "SingularValues",
    "Spectrum",
    "SpectrumAccumulator",
    "StepByStep",
    "capacity",
    "cost",
    "count",
    "distance_from_orthogonality",
    "effective_rank",
    "gradient_agreement",
    "iteration_flow",
    "jacobian_singular_values",
    "sequence_flow",
    "spectrum",
]
