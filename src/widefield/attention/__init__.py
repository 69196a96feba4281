# SPDX-License-Identifier: Apache-2.0
"""Attend: each position, or channel, becomes a weighted mean of all."""

from widefield.attention.danet import ChannelAttention as ChannelAttention
from widefield.attention.danet import DualAttention as DualAttention
from widefield.attention.danet import PositionAttention as PositionAttention
from widefield.attention.danet import channel_matrix as channel_matrix
from widefield.attention.non_local import NonLocal as NonLocal
from widefield.attention.non_local import NonLocalBare as NonLocalBare
from widefield.attention.non_local import NonLocalBase as NonLocalBase
from widefield.attention.non_local import NonLocalGaussian as NonLocalGaussian
from widefield.attention.non_local_linear import NonLocalConcat as NonLocalConcat
from widefield.attention.non_local_linear import NonLocalDot as NonLocalDot
from widefield.attention.non_local_linear import dot_product as dot_product
from widefield.attention.non_local_linear import relu_sum as relu_sum
from widefield.attention.sdpa import attention as attention
from widefield.attention.sdpa import attention_matrix as attention_matrix
