# SPDX-License-Identifier: Apache-2.0
"""Data sets with one label a sample: pictures in the layouts people have on disk, tables, and embedded ones."""

from widefield.data.classification.base import ArraySet as ArraySet
from widefield.data.classification.base import ClassificationData as ClassificationData
from widefield.data.classification.base import ClassSet as ClassSet
from widefield.data.classification.base import PictureSet as PictureSet
from widefield.data.classification.cifar import read_cifar as read_cifar
from widefield.data.classification.idx import read_idx as read_idx
from widefield.data.classification.load import load_classification as load_classification
from widefield.data.classification.table import read_table as read_table
