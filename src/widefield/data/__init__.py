# SPDX-License-Identifier: Apache-2.0
"""Data sets: the layouts people have on disk, and embedded ones."""

from widefield.data.base import PairSet as PairSet
from widefield.data.base import SegmentationData as SegmentationData
from widefield.data.base import SegmentationSet as SegmentationSet
from widefield.data.base import voc_palette as voc_palette
from widefield.data.classification import ClassificationData as ClassificationData
from widefield.data.classification import load_classification as load_classification
from widefield.data.images import DataError as DataError
from widefield.data.labels import IGNORE as IGNORE
from widefield.data.load import load_segmentation as load_segmentation
from widefield.data.scenes import Scenes as Scenes
from widefield.data.scenes import scenes as scenes
from widefield.data.sequences import read_music as read_music
from widefield.data.sequences import read_text as read_text
