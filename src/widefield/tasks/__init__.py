# SPDX-License-Identifier: Apache-2.0
"""Tasks: data, loss, metrics and recipe in one place each."""

from widefield.tasks.classification import Classification as Classification
from widefield.tasks.classification import ClassificationMetrics as ClassificationMetrics
from widefield.tasks.classification import ClassificationScore as ClassificationScore
from widefield.tasks.losses import Loss as Loss
from widefield.tasks.losses import cross_entropy as cross_entropy
from widefield.tasks.metrics import NoValidPixelWarning as NoValidPixelWarning
from widefield.tasks.metrics import SegmentationMetrics as SegmentationMetrics
from widefield.tasks.metrics import SegmentationScore as SegmentationScore
from widefield.tasks.recipe import FINE_TUNE as FINE_TUNE
from widefield.tasks.recipe import SCRATCH as SCRATCH
from widefield.tasks.recipe import Recipe as Recipe
from widefield.tasks.recipe import poly_schedule as poly_schedule
from widefield.tasks.segmentation import Segmentation as Segmentation
from widefield.tasks.sequences import AssociativeRecall as AssociativeRecall
from widefield.tasks.sequences import Copy as Copy
from widefield.tasks.sequences import RepeatCopy as RepeatCopy
from widefield.tasks.sequences import SequenceBatch as SequenceBatch
from widefield.tasks.sequences import SequenceTask as SequenceTask
from widefield.tasks.sequences_adding import Adding as Adding
from widefield.tasks.sequences_adding import Digits as Digits
from widefield.tasks.sequences_text import CharacterModel as CharacterModel
from widefield.tasks.sequences_text import Music as Music
