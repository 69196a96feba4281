# SPDX-License-Identifier: Apache-2.0
"""Global information along a sequence: recurrence, recurrence over grids, external memory, and the attentions with
them.

A layer over a sequence is called as `y, state = layer(x, state=None, lengths=None)`, everything batch first.
"""

from widefield.sequence.disan import DiSABlock as DiSABlock
from widefield.sequence.disan import DiSAN as DiSAN
from widefield.sequence.disan import MultiDimensionalAttention as MultiDimensionalAttention
from widefield.sequence.gated_feedback import GatedFeedbackLSTM as GatedFeedbackLSTM
from widefield.sequence.gated_feedback import GatedFeedbackRNN as GatedFeedbackRNN
from widefield.sequence.grid_lstm import DepthGridLSTM as DepthGridLSTM
from widefield.sequence.grid_lstm import GridLSTM as GridLSTM
from widefield.sequence.gru import GRU as GRU
from widefield.sequence.history import HistoryLSTM as HistoryLSTM
from widefield.sequence.hm_lstm import HMLSTM as HMLSTM
from widefield.sequence.hm_lstm import GatedOutput as GatedOutput
from widefield.sequence.init import identity_blocks_ as identity_blocks_
from widefield.sequence.init import orthogonal_blocks_ as orthogonal_blocks_
from widefield.sequence.layer import SequenceLayer as SequenceLayer
from widefield.sequence.layer import padding_mask as padding_mask
from widefield.sequence.lstm import LSTM as LSTM
from widefield.sequence.md_lstm import MDLSTM as MDLSTM
from widefield.sequence.md_lstm import MDRNN as MDRNN
from widefield.sequence.multi_head import MultiHeadAttention as MultiHeadAttention
from widefield.sequence.ntm import NTM as NTM
from widefield.sequence.rnn import RNN as RNN
from widefield.sequence.scores import AdditiveScore as AdditiveScore
from widefield.sequence.scores import BilinearScore as BilinearScore
from widefield.sequence.scores import ConcatenationScore as ConcatenationScore
from widefield.sequence.scores import DotScore as DotScore
from widefield.sequence.scores import GlobalAttention as GlobalAttention
from widefield.sequence.scores import ScoredAttention as ScoredAttention
