# SPDX-License-Identifier: Apache-2.0
"""Networks of tokens: one classifier with an exchangeable mixer, RepMLPNet, and the published sizes by name."""

from widefield.models.tokens.classifier import TokenClassifier as TokenClassifier
from widefield.models.tokens.context_mixer import ContextMixer as ContextMixer
from widefield.models.tokens.names import load_weights as load_weights
from widefield.models.tokens.repmlpnet import RepMLPNet as RepMLPNet
from widefield.models.tokens.sizes import ClassifierEntry as ClassifierEntry
from widefield.models.tokens.sizes import classifier_entry as classifier_entry
from widefield.models.tokens.sizes import create_classifier as create_classifier
from widefield.models.tokens.sizes import list_classifiers as list_classifiers
