# SPDX-License-Identifier: Apache-2.0
"""Experiment, engine, record, report: a comparison that can be killed at any moment and trusted afterwards."""

from widefield.lab.comparison import Comparison as Comparison
from widefield.lab.comparison import compare as compare
from widefield.lab.engine import LocalEngine as LocalEngine
from widefield.lab.engine import Outcome as Outcome
from widefield.lab.experiment import Experiment as Experiment
from widefield.lab.experiment import Plan as Plan
from widefield.lab.loop import Progress as Progress
from widefield.lab.record import Record as Record
from widefield.lab.run import run as run
