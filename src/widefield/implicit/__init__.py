# SPDX-License-Identifier: Apache-2.0
"""One fixed-point loop, four gradients."""

from widefield.implicit.adjoint import AdjointFailure as AdjointFailure
from widefield.implicit.adjoint import AdjointReport as AdjointReport
from widefield.implicit.fixed_point import GRADIENTS as GRADIENTS
from widefield.implicit.fixed_point import Solution as Solution
from widefield.implicit.fixed_point import fixed_point as fixed_point
