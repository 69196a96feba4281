# SPDX-License-Identifier: Apache-2.0
"""Mean, interval and verdict over seeds, as `widefield.core.statistics` has them."""

from widefield.core.statistics import CONFIDENCE as CONFIDENCE
from widefield.core.statistics import Estimate as Estimate
from widefield.core.statistics import estimate as estimate
from widefield.core.statistics import verdict as verdict
