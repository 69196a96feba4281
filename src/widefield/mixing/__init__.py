# SPDX-License-Identifier: Apache-2.0
"""Mixing tokens without, or with nothing but, attention: one paper a file.

A block is a map of tokens `(b, n, d)`, or of maps `(b, c, h, w)` for the RepMLP family, to their own shape.
"""

from widefield.mixing.attention import AttentionBlock as AttentionBlock
from widefield.mixing.attention import SelfAttention as SelfAttention
from widefield.mixing.attention_only import AttentionOnlyBlock as AttentionOnlyBlock
from widefield.mixing.attention_only import AttentionOnlyPlainBlock as AttentionOnlyPlainBlock
from widefield.mixing.attention_only import FeatureAttention as FeatureAttention
from widefield.mixing.ff_only import FeedForwardOnlyBlock as FeedForwardOnlyBlock
from widefield.mixing.ff_only import TokenFeedForward as TokenFeedForward
from widefield.mixing.gmlp import GatedBlock as GatedBlock
from widefield.mixing.gmlp import SpatialGating as SpatialGating
from widefield.mixing.layers import Block as Block
from widefield.mixing.layers import FeedForward as FeedForward
from widefield.mixing.layers import Residual as Residual
from widefield.mixing.layers import TokenLinear as TokenLinear
from widefield.mixing.mlp_mixer import MixerBlock as MixerBlock
from widefield.mixing.mlp_mixer import TokenMixing as TokenMixing
from widefield.mixing.registry import MixerEntry as MixerEntry
from widefield.mixing.registry import create_block as create_block
from widefield.mixing.registry import list_mixers as list_mixers
from widefield.mixing.registry import mixer_entry as mixer_entry
from widefield.mixing.registry import register_mixer as register_mixer
from widefield.mixing.repmlp import RepMLP as RepMLP
from widefield.mixing.repmlp_block import RepMLPBlock as RepMLPBlock
from widefield.mixing.resampling import FixedTokens as FixedTokens
from widefield.mixing.resmlp import Affine as Affine
from widefield.mixing.resmlp import ResMLPBlock as ResMLPBlock
