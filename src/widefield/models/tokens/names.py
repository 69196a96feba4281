# SPDX-License-Identifier: Apache-2.0
"""Names of the networks of tokens in timm and in their original implementations; files of weights."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torch import Tensor, nn

from widefield.mixing import AttentionBlock, AttentionOnlyPlainBlock
from widefield.models.spectral.files import read_state
from widefield.models.tokens.classifier import TokenClassifier
from widefield.models.tokens.repmlpnet import RepMLPNet, RepMLPUnit
from widefield.weights.reference import Table, list_sources, load_reference, reference, reference_names


def _network(module: TokenClassifier, source: str, embed: str) -> Table:
    table: dict[str, str | tuple[str, ...] | None] = {
        "embed": embed,
        "class_token": "cls_token",
        "distillation_token": "dist_token",
        "positions.table": "pos_embed",
        "positions.map": "pos_encoding.pos_embed",
        "positions.prefix": "pos_encoding.cls_pos_embed",
        "norm": "norm",
        "pooled_norm": "fc_norm",
        "head": "head",
        "distilled_head": "head_dist",
    }
    for i, block in enumerate(module.blocks):
        names = reference_names(block, source)
        table |= {f"blocks.{i}.{ours}": f"blocks.{i}.{theirs}" for theirs, ours in names.items()}
    return table


@reference("timm", TokenClassifier)
def timm(module: TokenClassifier) -> Table:
    transformer = isinstance(module.blocks[0], AttentionBlock | AttentionOnlyPlainBlock)
    return _network(module, "timm", "patch_embed.proj" if transformer else "stem.proj")


@reference("deit", TokenClassifier)
def deit(module: TokenClassifier) -> Table:
    return _network(module, "deit", "patch_embed.proj")


@reference("ff-only", TokenClassifier)
def ff_only(module: TokenClassifier) -> Table:
    return _network(module, "ff-only", "patch_embed.proj")


@reference("repmlp", RepMLPNet)
def repmlpnet(module: RepMLPNet) -> Table:
    """The first embedding has a name of its own; the others are counted from 0."""
    table = {"norm": "head_norm", "head": "head"}
    for i, stage in enumerate(module.stages):
        theirs = f"embeds.{i - 1}" if i else "conv_embedding"
        table |= {f"embeds.{i}.conv": f"{theirs}.conv", f"embeds.{i}.norm": f"{theirs}.bn"}
        for j, unit in enumerate(cast(nn.Sequential, stage)):
            ours = f"stages.{i}.{j}"
            table |= {
                f"{ours}.mixer.{name}": f"{ours}.repmlp_block.{published}"
                for published, name in reference_names(cast(RepMLPUnit, unit).mixer, "repmlp").items()
            }
            table |= {f"{ours}.first_norm": f"{ours}.prebn1", f"{ours}.second_norm": f"{ours}.prebn2"}
            for part, fc in (("enter", "ffn_fc1"), ("leave", "ffn_fc2")):
                table[f"{ours}.{part}"] = f"{ours}.ffn_block.{fc}.conv"
                table[f"{ours}.{part}_norm"] = f"{ours}.ffn_block.{fc}.bn"
    return table


def load_weights(network: TokenClassifier | RepMLPNet, path: Path | str) -> str:
    """Copies the weights of a `.safetensors` or `.pth` file into `network`, without executing code.

    The names may be ours or those of any source that covers the network (timm, deit, ff-only, repmlp). For another
    image size load first, then `resize`.

    Returns:
        Whose names they were: "widefield" or the source.

    Raises:
        ValueError: the file cannot be read as weights, or fits by no naming; the nearest reading is named.
        FileNotFoundError: no such file.
    """
    state = read_state(Path(path))
    own = network.state_dict()
    if state.keys() == own.keys():
        wrong = [
            f"{k} is {tuple(state[k].shape)}, ours {tuple(v.shape)}"
            for k, v in own.items()
            if state[k].shape != v.shape
        ]
        if wrong:
            raise ValueError(
                f"{path}: weights of another size: {'; '.join(wrong[:5])}; build the network likewise"
            )
        network.load_state_dict(state)
        return "widefield"
    source = _nearest(network, state)
    try:
        load_reference(network, state, source=source)
    except ValueError as error:
        text = str(error)
        raise ValueError(
            f"{path} holds weights of no known naming of this network; nearest is {source!r}: "
            f"{text if len(text) < 800 else text[:800] + ' ...'}"
        ) from error
    return source


def _nearest(network: nn.Module, state: dict[str, Tensor]) -> str:
    """The source most of whose names are in the state; timm where another has the same names."""
    names = {name.removeprefix("module.") for name in state}
    shared: dict[str, int] = {}
    for source, kinds in list_sources().items():
        if type(network).__name__ in kinds:
            try:
                shared[source] = len(names & reference_names(network, source).keys())
            except (TypeError, ValueError):
                continue
    if not shared:
        raise ValueError("no published naming covers this network; give a file with widefield's own names")
    return max(shared, key=lambda source: (shared[source], source == "timm"))
