# SPDX-License-Identifier: Apache-2.0
"""Snapshot compressive imaging: sensing operators, noise, first estimates, projections, classical solvers."""

from widefield.imaging.dispersion import disperse as disperse
from widefield.imaging.dispersion import dispersed_width as dispersed_width
from widefield.imaging.dispersion import roll_back as roll_back
from widefield.imaging.dispersion import roll_forward as roll_forward
from widefield.imaging.dispersion import scene_width as scene_width
from widefield.imaging.dispersion import shift_back as shift_back
from widefield.imaging.dispersion import undisperse as undisperse
from widefield.imaging.sensing import backproject as backproject
from widefield.imaging.sensing import dispersed_mask as dispersed_mask
from widefield.imaging.sensing import energy as energy
from widefield.imaging.sensing import first_estimate as first_estimate
from widefield.imaging.sensing import measure as measure
