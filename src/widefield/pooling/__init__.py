# SPDX-License-Identifier: Apache-2.0
"""Pool: averages over the whole map, or over grids of it, given back to every position."""

from widefield.pooling.acm import AdaptiveContext as AdaptiveContext
from widefield.pooling.aspp import ASPP as ASPP
from widefield.pooling.identity import NoContext as NoContext
from widefield.pooling.image_pool import GlobalAverage as GlobalAverage
from widefield.pooling.image_pool import ImagePool as ImagePool
from widefield.pooling.ppm import PyramidPooling as PyramidPooling
