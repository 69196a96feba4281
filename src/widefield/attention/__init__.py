# SPDX-License-Identifier: Apache-2.0
"""Attend: each position, or channel, becomes a weighted mean of all."""

from widefield.attention.bilateral import Bilateral as Bilateral
from widefield.attention.carafe import Carafe as Carafe
from widefield.attention.carafe import reassemble as reassemble
from widefield.attention.ccnet import CrissCrossAttention as CrissCrossAttention
from widefield.attention.ccnet import criss_cross as criss_cross
from widefield.attention.ccnet import criss_cross_matrix as criss_cross_matrix
from widefield.attention.danet import ChannelAttention as ChannelAttention
from widefield.attention.danet import DualAttention as DualAttention
from widefield.attention.danet import PositionAttention as PositionAttention
from widefield.attention.danet import channel_matrix as channel_matrix
from widefield.attention.dgmn import DynamicGraphMessages as DynamicGraphMessages
from widefield.attention.dgmn import DynamicGraphMessagesFast as DynamicGraphMessagesFast
from widefield.attention.distances import gaussian_attention as gaussian_attention
from widefield.attention.distances import gaussian_matrix as gaussian_matrix
from widefield.attention.isa import InterlacedAttention as InterlacedAttention
from widefield.attention.local_relation import LocalRelation as LocalRelation
from widefield.attention.mean_shift import MeanShift as MeanShift
from widefield.attention.mean_shift import MeanShiftFlat as MeanShiftFlat
from widefield.attention.mean_shift import flat_mean as flat_mean
from widefield.attention.non_local import NonLocal as NonLocal
from widefield.attention.non_local import NonLocalBare as NonLocalBare
from widefield.attention.non_local import NonLocalBase as NonLocalBase
from widefield.attention.non_local import NonLocalGaussian as NonLocalGaussian
from widefield.attention.non_local_linear import NonLocalConcat as NonLocalConcat
from widefield.attention.non_local_linear import NonLocalDot as NonLocalDot
from widefield.attention.non_local_linear import dot_product as dot_product
from widefield.attention.non_local_linear import relu_sum as relu_sum
from widefield.attention.non_local_means import NonLocalMeans as NonLocalMeans
from widefield.attention.sdpa import attention as attention
from widefield.attention.sdpa import attention_matrix as attention_matrix
