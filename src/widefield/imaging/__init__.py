# SPDX-License-Identifier: Apache-2.0
"""Snapshot compressive imaging: sensing operators, noise, projections, classical solvers, scores."""

from widefield.imaging.dispersion import disperse as disperse
from widefield.imaging.dispersion import dispersed_width as dispersed_width
from widefield.imaging.dispersion import roll_back as roll_back
from widefield.imaging.dispersion import roll_forward as roll_forward
from widefield.imaging.dispersion import scene_width as scene_width
from widefield.imaging.dispersion import shift_back as shift_back
from widefield.imaging.dispersion import undisperse as undisperse
from widefield.imaging.noise import expose as expose
from widefield.imaging.noise import gaussian_noise as gaussian_noise
from widefield.imaging.noise import photons as photons
from widefield.imaging.noise import shot_noise as shot_noise
from widefield.imaging.operator import Snapshot as Snapshot
from widefield.imaging.priors import denoise_soft as denoise_soft
from widefield.imaging.priors import denoise_tv as denoise_tv
from widefield.imaging.projection import Accelerated as Accelerated
from widefield.imaging.projection import project_admm as project_admm
from widefield.imaging.projection import project_gap as project_gap
from widefield.imaging.projection import project_gap_accelerated as project_gap_accelerated
from widefield.imaging.projection import project_hqs as project_hqs
from widefield.imaging.quality import PROTOCOLS as PROTOCOLS
from widefield.imaging.quality import QUALITY as QUALITY
from widefield.imaging.quality import ergas as ergas
from widefield.imaging.quality import psnr as psnr
from widefield.imaging.quality import rmse as rmse
from widefield.imaging.quality import sam as sam
from widefield.imaging.quality import ssim as ssim
from widefield.imaging.quality import uiqi as uiqi
from widefield.imaging.sensing import backproject as backproject
from widefield.imaging.sensing import dispersed_mask as dispersed_mask
from widefield.imaging.sensing import energy as energy
from widefield.imaging.sensing import first_estimate as first_estimate
from widefield.imaging.sensing import measure as measure
from widefield.imaging.solvers import SOLVERS as SOLVERS
from widefield.imaging.solvers import solve as solve
from widefield.imaging.strips import in_strips as in_strips
