# SPDX-License-Identifier: Apache-2.0
"""Names of sequence layers in their original implementations.

torch        torch.nn.RNN, LSTM, GRU, MultiheadAttention
pytorch-ntm  loudinthecloud/pytorch-ntm: ntm.controller, ntm.heads.<i>, ntm.fc, ntm.memory.mem_bias
hmlstm       clemens33/hmlstm: cells.<i>.W (from below), R (own past), U (from above)
gridlstm     kkleidal/GridLSTM-PyTorch: lstms.<i>, nonlstms.<i>
allennlp     its attention modules
opennmt      OpenNMT-py's GlobalAttention
disan        taoshen58/DiSAN, TensorFlow variables; matrices are (in, out)
"""

from __future__ import annotations

from widefield.sequence import (
    HMLSTM,
    NTM,
    AdditiveScore,
    BilinearScore,
    ConcatenationScore,
    DiSABlock,
    DiSAN,
    GlobalAttention,
    GridLSTM,
    MultiDimensionalAttention,
    MultiHeadAttention,
)
from widefield.sequence.fused import FusedLayer
from widefield.weights.reference import Table, Transposed, reference


@reference("torch", FusedLayer)
def fused(module: FusedLayer) -> Table:
    return {f"core.{name}": name for name, _ in module.core.named_parameters()}


@reference("torch", MultiHeadAttention)
def multi_head(module: MultiHeadAttention) -> Table:
    return {"project.weight": "in_proj_weight", "project.bias": "in_proj_bias", "output": "out_proj"}


@reference("pytorch-ntm", NTM, ignored=("ntm.heads.*.memory.mem_bias", "memory.mem_bias"))
def ntm(module: NTM) -> Table:
    """The memory's start is stored under every head too; those copies are passed over."""
    table = {"memory_start": "ntm.memory.mem_bias", "output": "ntm.fc"}
    for i in range(module.heads):
        table[f"first_reads.{i}"] = f"ntm.read{i}_bias"
        table[f"read.{i}"] = f"ntm.heads.{2 * i}.fc_read"
        table[f"write.{i}"] = f"ntm.heads.{2 * i + 1}.fc_write"
    table |= {"first_h": "ntm.controller.lstm_h_bias", "first_c": "ntm.controller.lstm_c_bias"}
    for layer in range(module.layers):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            table[f"controller.{layer}.{kind}"] = f"ntm.controller.lstm.{kind}_l{layer}"
    return table


@reference("hmlstm", HMLSTM, ignored=("*.round.th", "*.hardsigm.one", "*.hardsigm.zero"))
def hm_lstm(module: HMLSTM) -> Table:
    """The highest layer's input from above is one zero: its U has no use."""
    layers = range(len(module.hidden_sizes))
    table: dict[str, str | tuple[str, ...] | None] = {
        "slope": tuple(f"cells.{i}.calc_z.hardsigm.a" for i in layers)
    }
    for i in layers:
        table |= {f"own.{i}": f"cells.{i}.R", f"below.{i}": f"cells.{i}.W", f"bias.{i}": f"cells.{i}.b"}
        if i + 1 < len(layers):
            table[f"above.{i}"] = f"cells.{i}.U"
    return table


@reference("gridlstm", GridLSTM)
def grid_lstm(module: GridLSTM) -> Table:
    """Both of torch's biases are kept."""
    table, plain, full = {}, 0, 0
    for axis in range(module.dims):
        if axis in module.cell.plain:
            table[f"cell.hidden.{axis}"] = f"nonlstms.{plain}.0.weight"
            plain += 1
            continue
        table |= {
            f"cell.input.{axis}": f"lstms.{full}.weight_ih",
            f"cell.hidden.{axis}": f"lstms.{full}.weight_hh",
            f"cell.bias.{axis}": f"lstms.{full}.bias_ih",
            f"cell.hidden_bias.{axis}": f"lstms.{full}.bias_hh",
        }
        full += 1
    return table


@reference("allennlp", AdditiveScore)
def additive(module: AdditiveScore) -> Table:
    """Built with bias=False."""
    return {
        "of_query.weight": Transposed("_w_matrix"),
        "of_key.weight": Transposed("_u_matrix"),
        "vector.weight": "_v_vector",
    }


@reference("allennlp", BilinearScore)
def bilinear(module: BilinearScore) -> Table:
    """Built with bias=True."""
    return {"weight": "_weight_matrix", "bias": "_bias"}


@reference("allennlp", ConcatenationScore)
def concatenation(module: ConcatenationScore) -> Table:
    return {"vector.weight": "_weight_vector", "vector.bias": "_bias"}


@reference("opennmt", GlobalAttention)
def global_attention(module: GlobalAttention) -> Table:
    score = "attention.score"
    return {
        "mix": "linear_out",
        f"{score}.of_query": "linear_query",
        f"{score}.of_key": "linear_context",
        f"{score}.vector": "v",
        f"{score}.weight": Transposed("linear_in.weight"),
    }


@reference("disan", DiSABlock)
def block(module: DiSABlock) -> Table:
    return _block("", "block/")


@reference("disan", MultiDimensionalAttention)
def pool(module: MultiDimensionalAttention) -> Table:
    return _pool("", "pool/")


@reference("disan", DiSAN)
def network(module: DiSAN) -> Table:
    inner = "DiSAN/ct_attn/dir_attn_"
    return {
        **_block("ahead.", f"{inner}fw/"),
        **_block("back.", f"{inner}bw/"),
        **_pool("pool.", "DiSAN/sent_enc_attn/multi_dimensional_attention/"),
    }


def _linear(ours: str, theirs: str, bias: bool = True) -> dict[str, str]:
    return {f"{ours}.weight": Transposed(f"{theirs}/W")} | ({f"{ours}.bias": f"{theirs}/bias"} if bias else {})


def _block(ours: str, theirs: str) -> dict[str, str]:
    return {
        **_linear(f"{ours}dense", f"{theirs}bn_dense_map/linear_map"),
        **_linear(f"{ours}source", f"{theirs}attention/linear_dependent", bias=False),
        **_linear(f"{ours}target", f"{theirs}attention/linear_head", bias=False),
        f"{ours}score_bias": f"{theirs}attention/f_bias",
        **_linear(f"{ours}gate_dense", f"{theirs}output/linear_fusion_i"),
        **_linear(f"{ours}gate_attended", f"{theirs}output/linear_fusion_a"),
        f"{ours}gate_bias": f"{theirs}output/o_bias",
    }


def _pool(ours: str, theirs: str) -> dict[str, str]:
    return {
        **_linear(f"{ours}hidden", f"{theirs}bn_dense_map1/linear_map"),
        **_linear(f"{ours}score", f"{theirs}bn_dense_map2/linear_map"),
    }
