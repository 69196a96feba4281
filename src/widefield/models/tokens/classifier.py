# SPDX-License-Identifier: Apache-2.0
"""One network of tokens with an exchangeable mixer: the Vision Transformer, the Mixers, and what is in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widefield.core.cost import Cost
from widefield.core.errors import require_positive, unknown
from widefield.core.registry import list_modules
from widefield.mixing import Block, FeedForward, FixedTokens, Residual, create_block, list_mixers
from widefield.mixing.layers import layer_norm
from widefield.mixing.registry import MixerEntry, mixer_entry
from widefield.models.tokens.context_mixer import ContextMixer
from widefield.models.tokens.positions import PositionMap, PositionTable

Mixer = str | Callable[[int, int], nn.Module]
# What stands around a mixer that is no registered block: nothing in front of the patches, learned positions.
_OTHER = MixerEntry("", Block, "", "", 0, fixed_size=False, prefix_tokens=0, positions="table")
POSITIONS = ("table", "map", "none")


class TokenClassifier(nn.Module):
    """Patches, positions, blocks, head: `(b, in_channels, H, W) -> (b, num_classes)`.

        x = [prefix; E(patches)] + positions,   blocks,   logits = W LN(x)_class   or   W mean(LN(x))

    With a mixer that takes any number of tokens, any height and width that the patch divides; positions are
    interpolated. Otherwise `image_size` is fixed; `resize` gives the network for another.

    Args:
        num_classes: of the logits; 0: the pooled features are returned.
        image_size: (H, W), or one number for both.
        patch: edge of a patch.
        in_channels: of the image.
        width: d, of a token.
        depth: blocks.
        mixer: a block by name (`widefield.mixing.list_mixers()`); a context module by name
            (`widefield.list_modules()`), which acts on the map of the patches, see `ContextMixer`; or a function
            from (width, tokens) to a module `(b, n, width) -> (b, n, width)`. The last two stand in the block of
            the Vision Transformer where its attention was.
        mixer_options: of the block or of the context module.
        prefix_tokens: 0: the head reads the mean of the patches; 1: a class token is in front, and the head reads
            it; 2: a distillation token behind that, with a head of its own. None: the mixer's.
        positions: "table", "map" or "none" (see `MixerEntry`); None: the mixer's.
        position_grid: (height, width) of the positions, where they are stored for another grid than the image's.
        norm_after_pool: without a class token, whether the mean is normalised instead of the tokens.
        drop_path: largest rate of stochastic depth.
        zero_head: whether the head starts at zero, so that a new network calls all classes equal; None: the
            mixer's.
        device, dtype: of the parameters; "meta" costs no memory.

    Attributes:
        num_features: width of what the head reads.
        grid: (height, width) in patches that the network was built for.

    Raises:
        UnknownName: no such mixer or positions. UnknownOption: no such option of the mixer.
        ValueError: an argument out of range; at the call, an image of the wrong shape.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        image_size: int | Sequence[int] = 224,
        patch: int = 16,
        in_channels: int = 3,
        width: int = 192,
        depth: int = 12,
        mixer: Mixer = "attention",
        mixer_options: Mapping[str, Any] | None = None,
        prefix_tokens: int | None = None,
        positions: str | None = None,
        position_grid: tuple[int, int] | None = None,
        norm_after_pool: bool = False,
        drop_path: float = 0.0,
        zero_head: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        require_positive("TokenClassifier", patch=patch, in_channels=in_channels, width=width, depth=depth)
        if len(size) != 2 or min(size) < 1 or size[0] % patch or size[1] % patch:
            raise ValueError(f"TokenClassifier: image_size {image_size} must be multiples of the patch, {patch}")
        if not isinstance(num_classes, int) or num_classes < 0:
            raise ValueError(
                f"TokenClassifier: num_classes must be a whole number, 0 or more; got {num_classes!r}"
            )
        kind = _kind(mixer)
        prefix = kind.prefix_tokens if prefix_tokens is None else prefix_tokens
        if prefix not in (0, 1, 2):
            raise ValueError(f"TokenClassifier: prefix_tokens must be 0, 1 or 2, got {prefix!r}")
        if prefix and isinstance(mixer, str) and not kind.name:
            raise ValueError(
                f"TokenClassifier: {mixer} mixes a map of patches, on which {prefix} prefix tokens have no "
                "place and would never hear of the image; leave prefix_tokens at 0, the head then reads the mean"
            )
        if norm_after_pool and prefix:
            raise ValueError(
                "TokenClassifier: norm_after_pool is for prefix_tokens=0; a class token is not pooled"
            )
        positions = kind.positions if positions is None else positions
        if positions not in POSITIONS:
            raise unknown("positions", positions, POSITIONS)
        self.patch, self.in_channels, self.prefix_tokens = patch, in_channels, prefix
        self.grid = (size[0] // patch, size[1] // patch)
        self.num_features, self.fixed_size = width, kind.fixed_size
        self.zero_head = kind.zero_head if zero_head is None else zero_head
        self.distilled_training = self.grad_checkpointing = False
        tokens = prefix + self.grid[0] * self.grid[1]
        with torch.device(device or torch.get_default_device()):
            self.embed = nn.Conv2d(in_channels, width, patch, patch)
            nn.init.trunc_normal_(self.embed.weight, std=(in_channels * patch**2) ** -0.5)
            nn.init.zeros_(self.embed.bias)  # type: ignore[arg-type]
            self.class_token = _token(width) if prefix else None
            self.distillation_token = _token(width) if prefix == 2 else None
            where = self.grid if position_grid is None else position_grid
            kinds = {"table": PositionTable, "map": PositionMap}
            self.positions = kinds[positions](width, where, prefix) if positions in kinds else None
            rates = [drop_path * (i / max(depth - 1, 1) if kind.growing_drop_path else 1) for i in range(depth)]
            self.blocks = nn.ModuleList(
                _block(mixer, width, tokens, self.grid, dict(mixer_options or {}), rate) for rate in rates
            )
            self.fixed_size |= any(getattr(m, "fixed_size", False) for m in self.blocks.modules())
            norm = kind.norm(width)
            self.norm = nn.Identity() if norm_after_pool else norm
            self.pooled_norm = norm if norm_after_pool else nn.Identity()
            self.head: nn.Module = nn.Identity()
            self.distilled_head: nn.Module | None = None
        self.to(dtype=dtype)
        self.reset_classifier(num_classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits `(b, num_classes)`; of both heads apart after `set_distilled_training`, in training."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """All tokens after the last norm, prefix tokens first: `(b, prefix + n, width)`."""
        tokens, space = self.enter(x)
        for block in self.blocks:
            tokens = self._run(block, tokens, space)
        return self.norm(tokens)

    def enter(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """What the first block sees, and the grid of the patches.

        Raises:
            ValueError: an image of the wrong shape.
        """
        space = self._space(x)
        tokens = self.embed(x).flatten(2).mT  # (b, n, width)
        prefix = [t for t in (self.class_token, self.distillation_token) if t is not None]
        if prefix:
            tokens = torch.cat([*(t.expand(tokens.shape[0], -1, -1).to(tokens.dtype) for t in prefix), tokens], 1)
        if self.positions is not None:
            tokens = tokens + self.positions(space)
        return tokens, space

    def forward_head(self, tokens: Tensor, *, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of what `forward_features` returns; what the head reads with `pre_logits`."""
        pooled = tokens[:, 0] if self.prefix_tokens else self.pooled_norm(tokens.mean(1))
        if self.distilled_head is None:
            return pooled if pre_logits else self.head(pooled)
        if pre_logits:
            return (pooled + tokens[:, 1]) / 2
        one, two = self.head(pooled), self.distilled_head(tokens[:, 1])
        return (one, two) if self.training and self.distilled_training else (one + two) / 2

    def forward_intermediates(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What `forward_features` returns, and the patches after each block as maps `(b, width, h, w)`."""
        tokens, space = self.enter(x)
        maps = []
        for block in self.blocks:
            tokens = self._run(block, tokens, space)
            maps.append(tokens[:, self.prefix_tokens :].mT.unflatten(2, space))
        return self.norm(tokens), maps

    def get_classifier(self) -> nn.Module:
        """The head; of a distilled network, that of the class token."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """New heads for so many classes; 0: none, the pooled features are returned."""
        self.num_classes = num_classes
        like = self.embed.weight
        heads = [
            nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            if num_classes
            else nn.Identity()
            for _ in range(max(self.prefix_tokens, 1))
        ]
        for head in heads:
            if isinstance(head, nn.Linear):
                nn.init.zeros_(head.bias)
                if self.zero_head:
                    nn.init.zeros_(head.weight)
                else:
                    nn.init.trunc_normal_(head.weight, std=0.02)
        self.head = heads[0]
        self.distilled_head = heads[1] if self.prefix_tokens == 2 else None

    def set_distilled_training(self, enable: bool = True) -> None:
        """Whether the two heads' logits are returned apart in training; they are averaged otherwise.

        Raises:
            ValueError: the network has no distillation token.
        """
        if self.prefix_tokens != 2:
            raise ValueError("there is no distillation token to train; build the network with prefix_tokens=2")
        self.distilled_training = enable

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Computes each block again in the backward pass, to save memory."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are not to be decayed: one dimension or none, positions, prefix tokens."""
        outside = ("positions.", "class_token", "distillation_token")
        return {name for name, p in self.named_parameters() if p.ndim <= 1 or name.startswith(outside)}

    def resize(self, image_size: int | Sequence[int]) -> Self:
        """A copy for images of another size: positions and token maps interpolated, all else as it is.

        Raises:
            ValueError: not multiples of the patch, or a context module of fixed size as the mixer.
        """
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        if height % self.patch or width % self.patch or min(height, width) < 1:
            raise ValueError(f"resize: {image_size} must be multiples of the patch, {self.patch}")
        grid = (height // self.patch, width // self.patch)
        copy = deepcopy(self)
        for parent in list(copy.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, FixedTokens):
                    setattr(parent, name, child.resize(self.grid, grid, prefix=self.prefix_tokens))
                elif isinstance(child, ContextMixer) and child.fixed_size:
                    raise ValueError(f"{child.name} is tied to its map size and cannot be resized; build it anew")
        if copy.positions is not None and copy.positions.grid == self.grid:
            copy.positions = copy.positions.resize(grid)
        copy.grid = grid
        return copy

    def cost(self, shape: tuple[int, ...]) -> Cost:
        """Closed-form multiply-adds of one forward at `(b, in_channels, H, W)`, and parameters."""
        b, _, height, width = shape
        space = (height // self.patch, width // self.patch)
        n, d = space[0] * space[1], self.num_features
        total = b * n * self.in_channels * self.patch**2 * d
        for block in self.blocks:
            for part in cast(Block, block).branches():
                if isinstance(part.branch, ContextMixer):
                    total += part.branch.map_cost(b, space)
                else:
                    total += b * part.branch.multiply_adds(self.prefix_tokens + n, d)
        total += b * self.num_classes * d * (1 if self.distilled_head is None else 2)
        return Cost(total, sum(p.numel() for p in self.parameters() if p.requires_grad))

    def _run(self, block: nn.Module, tokens: Tensor, space: tuple[int, int]) -> Tensor:
        if self.grad_checkpointing and self.training and torch.is_grad_enabled():
            again = checkpoint(block, tokens, space, use_reentrant=False)
            assert isinstance(again, Tensor)
            return again
        return block(tokens, space)

    def _space(self, x: Tensor) -> tuple[int, int]:
        p = self.patch
        if x.dim() != 4 or x.shape[1] != self.in_channels or x.shape[2] % p or x.shape[3] % p:
            raise ValueError(
                f"this network takes images (b, {self.in_channels}, h, w) with h and w multiples of the "
                f"patch, {p}; got {tuple(x.shape)}"
            )
        if not torch.is_floating_point(x):
            raise TypeError(
                f"this network takes normalised floating-point images, got {x.dtype}; convert with float()"
            )
        if not torch.compiler.is_compiling() and x.numel() == 0:
            raise ValueError(f"this network needs at least one image and one patch, got {tuple(x.shape)}")
        space = (x.shape[2] // p, x.shape[3] // p)
        if self.fixed_size and space != self.grid:
            raise ValueError(
                f"the mixer of this network is tied to images of {self.grid[0] * p} x {self.grid[1] * p}, got "
                f"{x.shape[2]} x {x.shape[3]}; use resize(({x.shape[2]}, {x.shape[3]})), which interpolates it"
            )
        return space


def _kind(mixer: Mixer) -> MixerEntry:
    if not isinstance(mixer, str):
        return _OTHER
    if mixer in list_mixers():
        return mixer_entry(mixer)
    if mixer not in list_modules():
        raise unknown("mixer", mixer, [*list_mixers(), *list_modules()])
    return _OTHER


def _block(
    mixer: Mixer, width: int, tokens: int, grid: tuple[int, int], options: dict[str, Any], rate: float
) -> Block:
    if isinstance(mixer, str) and mixer in list_mixers():
        return create_block(mixer, width, tokens, **{"drop_path": rate, **options})
    branch = ContextMixer(mixer, width, grid, options) if isinstance(mixer, str) else mixer(width, tokens)
    if not isinstance(mixer, str) and options:
        raise ValueError("mixer_options are for a name; a function already has its options")
    return Block(
        token=Residual(layer_norm(width), branch, width, drop_path=rate),
        channel=Residual(layer_norm(width), FeedForward(width, 4 * width), width, drop_path=rate),
    )


def _token(width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, width), std=0.02))
