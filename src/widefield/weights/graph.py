# SPDX-License-Identifier: Apache-2.0
"""Names of graph modules in their original implementations.

glore       facebookresearch/GloRe: conv_state, conv_proj, gcn, conv_extend, blocker
latentgnn   latentgnn/LatentGNN-V1-PyTorch: down_channel, LatentGNN_Kernel_<i>, up_channel, gamma
"""

from __future__ import annotations

from widefield.graph import GloRe, LatentGNN
from widefield.weights.reference import Table, reference


@reference("glore", GloRe)
def glore(module: GloRe) -> Table:
    """Built with gate=1.0 and, for a fixed input size, normalize=False."""
    return {
        "state": "conv_state",
        "assign": "conv_proj",
        "edges": "gcn.conv1",
        "update": "gcn.conv2",
        "out.project": "conv_extend",
        "out.norm": "blocker",
    }


@reference("latentgnn", LatentGNN)
def latentgnn(module: LatentGNN) -> Table:
    """v2l sends, l2v receives; the symmetric form has one of each without a suffix."""
    sends, receives = ("", "") if module.receive is None else ("_v2l", "_l2v")
    table = {"gate": "gamma", **_branch("up", "up_channel")}
    table |= _branch("send", f"down_channel{sends}") | _branch("receive", f"down_channel{receives}")
    for i in range(len(module.kernels)):
        ours, theirs = f"kernels.{i}", f"LatentGNN_Kernel_{i}"
        table |= _branch(f"{ours}.send", f"{theirs}.psi{sends}")
        table |= _branch(f"{ours}.receive", f"{theirs}.psi{receives}")
        table |= _branch(f"{ours}.transform", f"{theirs}.GraphConvWeight")
    return table


def _branch(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.project": f"{theirs}.0", f"{ours}.norm": f"{theirs}.1"}
