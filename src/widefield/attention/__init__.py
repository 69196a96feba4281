# SPDX-License-Identifier: Apache-2.0
"""Attend: each position, or channel, becomes a weighted mean of all."""

from widefield.attention.annn import FusionNonLocal as FusionNonLocal
from widefield.attention.annn import PyramidNonLocal as PyramidNonLocal
from widefield.attention.cells import attend_in_cells as attend_in_cells
from widefield.attention.danet import ChannelAttention as ChannelAttention
from widefield.attention.danet import DualAttention as DualAttention
from widefield.attention.danet import PositionAttention as PositionAttention
from widefield.attention.danet import channel_matrix as channel_matrix
from widefield.attention.dnl import DisentangledNonLocal as DisentangledNonLocal
from widefield.attention.external import ExternalAttention as ExternalAttention
from widefield.attention.external import double_normalise as double_normalise
from widefield.attention.gcnet import GlobalContext as GlobalContext
from widefield.attention.non_local import NonLocal as NonLocal
from widefield.attention.non_local import NonLocalBare as NonLocalBare
from widefield.attention.non_local import NonLocalBase as NonLocalBase
from widefield.attention.non_local import NonLocalGaussian as NonLocalGaussian
from widefield.attention.non_local_linear import NonLocalConcat as NonLocalConcat
from widefield.attention.non_local_linear import NonLocalDot as NonLocalDot
from widefield.attention.non_local_linear import dot_product as dot_product
from widefield.attention.non_local_linear import relu_sum as relu_sum
from widefield.attention.ocnet import ObjectContext as ObjectContext
from widefield.attention.ocnet import OCNetBase as OCNetBase
from widefield.attention.ocnet import OCNetPyramid as OCNetPyramid
from widefield.attention.ocnet_asp import OCNetASP as OCNetASP
from widefield.attention.predicted import predicted_attention as predicted_attention
from widefield.attention.predicted import predicted_logits as predicted_logits
from widefield.attention.psanet import PSANet as PSANet
from widefield.attention.psanet import PSANetCompact as PSANetCompact
from widefield.attention.sdpa import attention as attention
from widefield.attention.sdpa import attention_matrix as attention_matrix
