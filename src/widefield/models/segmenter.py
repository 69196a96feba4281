# SPDX-License-Identifier: Apache-2.0
"""A semantic segmentation network around one context module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from widefield.core.norm import make_norm
from widefield.core.registry import create
from widefield.models.plain import plain_backbone
from widefield.weights.backbones import Backbone, load_backbone


class Segmenter(nn.Module):
    """Backbone, reduction, context module, classifier: the network in which context modules are compared.

        (b, 3, h, w)  backbone  (b, c, h/s, w/s)  1x1 conv, norm, ReLU  (b, width, ...)  context  (b, c', ...)
                      1x1 conv  (b, num_classes, h/s, w/s)  bilinear  (b, num_classes, h, w)

    Pictures are uint8 or floating point with values 0..255, not 0..1; the normalisation that the weights of the
    backbone were trained with happens inside, and is saved with them. Any height and width.

    **Paired comparisons.** Each part is initialised from its own generator, seeded by `seed` and the part,
    and the global generator is left as it was. So two segmenters of one seed that differ in the context only
    have the same backbone and reduction, and the same classifier if their contexts give equally many
    channels.

    Args:
        backbone: "plain" (trains from scratch; see `widefield.models.plain`), any convolutional network of timm
            (see `widefield.weights.backbones`), or a `Backbone`.
        context: a registered name, or a module `(b, width, h, w) -> (b, c', h, w)`; if it has no attribute
            `out_channels`, c' is taken to be `width`.
        num_classes: of the output.
        width: channels that the context sees; None: 64 on "plain", else 256.
        output_stride: of the backbone; None: 4 for "plain", else 16.
        pretrained: "auto", "none" or a path, for timm's networks; `weights_note` says what happened.
        context_options: of the registered module.
        seed: of the initialisation.

    Attributes:
        num_features: channels that the classifier sees.
        weights_note: one line on the backbone's weights.

    Raises:
        UnknownName: no such backbone or context. UnknownOption: an option the context does not have.
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        backbone: str | Backbone,
        context: str | nn.Module,
        num_classes: int,
        *,
        width: int | None = None,
        output_stride: int | None = None,
        pretrained: str | Path = "auto",
        context_options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if num_classes < 1 or (width is not None and width < 1):
            raise ValueError(f"num_classes and width must be positive, got {num_classes} and {width}")
        if isinstance(context, nn.Module) and context_options:
            raise ValueError("context_options are for a registered name; a module already has its options")
        self.seed, self._frozen = seed, False
        self.width = width or (64 if backbone == "plain" else 256)
        with _seeded(seed, 0):
            self.backbone, self.weights_note = _build_backbone(backbone, output_stride, pretrained)
        with _seeded(seed, 1):
            conv = nn.Conv2d(self.backbone.out_channels, self.width, 1, bias=False)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            self.reduce = nn.Sequential(conv, make_norm("batch", self.width), nn.ReLU())
        with _seeded(seed, 2):
            named = isinstance(context, str)
            self.context = create(context, self.width, **(context_options or {})) if named else context
        self.num_features = int(getattr(self.context, "out_channels", self.width))
        self.num_classes = num_classes
        self.reset_classifier(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(b, num_classes, h, w)` of pictures `(b, 3, h, w)` with values 0..255."""
        return self.forward_head(self.forward_context(self.forward_features(x)), size=x.shape[-2:])

    def forward_features(self, x: Tensor) -> Tensor:
        """What the context sees: `(b, width, h/s, w/s)`, non-negative."""
        return self.reduce(self.backbone(x))

    def forward_context(self, features: Tensor) -> Tensor:
        """What the classifier sees: `(b, num_features, h/s, w/s)`."""
        return self.context(features)

    def forward_head(
        self, features: Tensor, *, size: Sequence[int] | None = None, pre_logits: bool = False
    ) -> Tensor:
        """Logits, resized to `size` (h, w) if given; the features themselves with `pre_logits`."""
        if pre_logits:
            return features
        logits = self.classifier(features)
        if size is None:
            return logits
        return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)

    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, *, intermediates_only: bool = False
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The feature maps of the backbone's stages, with what `forward_features` returns.

        Args:
            x: pictures.
            indices: which stages; the last so many for an integer, all for None.
            intermediates_only: leave out the final features.

        Raises:
            ValueError: a stage that does not exist.
        """
        stages = self.backbone.forward_intermediates(x)
        wanted = range(len(stages)) if indices is None else indices
        wanted = range(len(stages) - wanted, len(stages)) if isinstance(wanted, int) else wanted
        if any(not -len(stages) <= i < len(stages) for i in wanted):
            raise ValueError(f"the backbone has stages 0..{len(stages) - 1}, got {indices}")
        chosen = [stages[i] for i in wanted]
        return chosen if intermediates_only else (self.reduce(stages[-1]), chosen)

    def get_classifier(self) -> nn.Module:
        """The last layer, a 1x1 convolution."""
        return self.classifier

    def reset_classifier(self, num_classes: int) -> None:
        """A new classifier for so many classes (0: none, the context's output is returned)."""
        self.num_classes = num_classes
        reference = next(self.reduce.parameters())
        if not num_classes:
            self.classifier: nn.Module = nn.Identity()
            return
        with _seeded(self.seed, 3):
            classifier = nn.Conv2d(self.num_features, num_classes, 1)
            nn.init.normal_(classifier.weight, std=0.01)
            nn.init.zeros_(classifier.bias)  # type: ignore[arg-type]
        self.classifier = classifier.to(reference.device, reference.dtype)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Computes the backbone's stages again in the backward pass, to save memory.

        The context is not: its running state would move twice.

        Raises:
            NotImplementedError: the backbone has no such switch.
        """
        self.backbone.set_grad_checkpointing(enable)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are not to be decayed: norms, biases, gates (one dimension or none), and
        those that the context or the backbone names by a method of this name."""
        names = {name for name, parameter in self.named_parameters() if parameter.ndim <= 1}
        for prefix in ("backbone.features", "context"):
            named: Any = getattr(self.get_submodule(prefix), "no_weight_decay", None)
            names |= {f"{prefix}.{name}" for name in (named() if named else ())}
        return names

    def freeze_backbone(self) -> None:
        """Stops training the backbone: no gradients, and its norms keep their statistics, also in `train()`."""
        self._frozen = True
        self.backbone.requires_grad_(False)
        self.backbone.eval()

    def train(self, mode: bool = True) -> Segmenter:
        super().train(mode)
        if self._frozen:
            self.backbone.eval()
        return self


def _build_backbone(
    backbone: str | Backbone, output_stride: int | None, pretrained: str | Path
) -> tuple[Backbone, str]:
    if isinstance(backbone, Backbone):
        if output_stride not in (None, backbone.reduction):
            raise ValueError(
                f"output_stride={output_stride}, but the backbone given has {backbone.reduction}; leave it out"
            )
        return backbone, "the backbone given"
    if backbone == "plain":
        if pretrained not in ("auto", "none"):
            raise ValueError(f"pretrained={str(pretrained)!r}: the plain backbone is trained from scratch")
        return plain_backbone(output_stride=output_stride or 4), "plain: random weights, trained from scratch"
    return load_backbone(backbone, pretrained=pretrained, output_stride=output_stride or 16)


@contextmanager
def _seeded(seed: int, part: int) -> Iterator[None]:
    """The CPU's global generator, seeded for one part of the network and put back afterwards."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed((seed * 4 + part) % 2**63)
    try:
        yield
    finally:
        torch.set_rng_state(state)
