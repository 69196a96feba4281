# SPDX-License-Identifier: Apache-2.0
"""Adapters of recurrent layers, memories and the attentions used with them."""

from __future__ import annotations

import torch
from golden import Case, Replay, Tensors, adapter

from widefield import sequence as s


@adapter("rnn", "lstm", "gru")
def fused(case: Case) -> Replay:
    """Our states have the batch first."""
    config = case.config
    options = {"layers": config["num_layers"], "bidirectional": config.get("bidirectional", False)}
    kind = {"rnn": s.RNN, "lstm": s.LSTM, "gru": s.GRU}[case.module]
    if case.module == "rnn":
        options["nonlinearity"] = config.get("nonlinearity", "tanh")
    module = kind(config["input_size"], config["hidden_size"], **options)

    def run(inputs: Tensors) -> Tensors:
        given = [inputs[name].transpose(0, 1) for name in ("h0", "c0") if name in inputs]
        y, state = module(inputs["x"], tuple(given))
        return {"y": y} | {n: part.transpose(0, 1) for n, part in zip(("h", "c"), state, strict=False)}

    return Replay(module, "torch", run)


@adapter("multihead_attention")
def multi_head(case: Case) -> Replay:
    """The fused kernel's output is the one compared, where the weights are not asked for."""
    module = s.MultiHeadAttention(case.config["embed_dim"], heads=case.config["num_heads"])

    def run(inputs: Tensors) -> Tensors:
        mask = ~inputs["padding"].bool()
        y, weights = module.weighted(inputs["query"], inputs["memory"], mask)
        fused = module(inputs["query"], inputs["memory"], mask)
        torch.testing.assert_close(fused, y, rtol=1e-10, atol=1e-10)
        return {"y": fused, "weights": weights}

    return Replay(module, "torch", run)


@adapter("ntm")
def ntm(case: Case) -> Replay:
    """Theirs has the steps first and its output behind the sigmoid."""
    c = case.config
    module = s.NTM(
        c["num_inputs"], c["num_outputs"], rows=c["N"], width=c["M"], heads=c["num_heads"],
        controller_size=c["controller_size"], layers=c["controller_layers"], learned_weights=False,
    )  # fmt: skip

    def run(inputs: Tensors) -> Tensors:
        x = inputs["x"].transpose(0, 1)
        start = module.initial_state(x.shape[0], x)
        y, (memory, reads, weights, h, cell) = module(x, (inputs["memory"], *start[1:]))
        return {
            "y": torch.sigmoid(y).transpose(0, 1), "memory": memory, "reads": reads.transpose(0, 1),
            "weights": weights.transpose(0, 1), "controller_h": h.transpose(0, 1),
            "controller_c": cell.transpose(0, 1),
        }  # fmt: skip

    return Replay(module, "pytorch-ntm", run)


@adapter("hm_lstm")
def hm_lstm(case: Case) -> Replay:
    module = s.HMLSTM(case.config["input_size"], case.config["hidden_sizes"])

    def run(inputs: Tensors) -> Tensors:
        trace = module.trace(inputs["x"])
        return {"h": trace.h, "z": trace.z}

    # The weights of an input that is always zero.
    case.state.pop(f"cells.{len(module.hidden_sizes) - 1}.U", None)
    return Replay(module, "hmlstm", run)


@adapter("grid_lstm")
def grid_lstm(case: Case) -> Replay:
    c = case.config
    module = s.GridLSTM(
        c["input_channels"], c["hidden_channels"], dims=c["dimensions"], plain=c.get("nonlstm_dimensions", ()),
        backwards=c.get("backwards", False),
    )  # fmt: skip
    return Replay(module, "gridlstm")


@adapter("additive_attention", "bilinear_attention", "concatenation_attention")
def scores(case: Case) -> Replay:
    sizes = case.config["vector_dim"], case.config["matrix_dim"]
    module = {
        "additive_attention": lambda: s.AdditiveScore(*sizes, bias=False),
        "bilinear_attention": lambda: s.BilinearScore(*sizes, bias=True),
        "concatenation_attention": lambda: s.ConcatenationScore(*sizes),
    }[case.module]()
    attention = s.ScoredAttention(module)

    def run(inputs: Tensors) -> Tensors:
        weights = attention.weights(inputs["vector"][:, None], inputs["matrix"], inputs["mask"].bool())
        return {"weights": weights[:, 0]}

    return Replay(module, "allennlp", run)


@adapter("global_attention")
def global_attention(case: Case) -> Replay:
    kind, size = case.config["attn_type"], case.config["dim"]
    score = {
        "dot": lambda: s.DotScore(size, scaled=False),
        "general": lambda: s.BilinearScore(size, size),
        "mlp": lambda: s.AdditiveScore(size, size),
    }[kind]()
    module = s.GlobalAttention(score, size, squash=kind != "mlp", bias=kind == "mlp")

    def run(inputs: Tensors) -> Tensors:
        mask = s.padding_mask(inputs["lengths"].long(), inputs["memory"].shape[1])
        mixed, weights = module(inputs["query"], inputs["memory"], mask)
        return {"mixed": mixed, "weights": weights}

    return Replay(module, "opennmt", run)


@adapter("disan")
def disan(case: Case) -> Replay:
    width = case.config["width"]
    directions = {"forward_block": "forward", "backward_block": "backward", "undirected_block": "both"}
    if case.meta["variant"] in directions:
        module = s.DiSABlock(width, direction=directions[case.meta["variant"]])
    elif case.meta["variant"] == "network":
        module = s.DiSAN(width)
    else:
        module = s.MultiDimensionalAttention(width)
    return Replay(module, "disan", lambda inputs: {"y": module(inputs["x"], mask=inputs["mask"].bool())})
