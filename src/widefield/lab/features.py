# SPDX-License-Identifier: Apache-2.0
"""A frozen backbone runs once: its features of every picture, and of its mirror image, kept on disk.

All modules and seeds of a comparison then train on the same features, in minutes instead of hours. What is
given up is augmentation beyond mirroring, and fine-tuning of the backbone; the record says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from widefield.core.extras import require
from widefield.core.files import write_bytes
from widefield.data.base import SegmentationData
from widefield.models.segmenter import Segmenter
from widefield.tasks.segmentation import Segmentation

Watch = Callable[[int, int], None]


def one_size(data: SegmentationData) -> bool:
    """Whether all pictures of both splits have one size, as frozen features need."""
    return len(set(data.train.sizes) | set(data.val.sizes)) == 1


def check_one_size(data: SegmentationData) -> None:
    """Raises `ValueError` where `one_size` is false, with what to do."""
    if not one_size(data):
        raise ValueError(
            f"frozen features need pictures of one size, and those of {data.name} have several; resize them, or "
            "train the backbone too (--freeze-backbone False)"
        )


def _digest(key: str, backbone: nn.Module) -> str:
    found = hashlib.sha256(key.encode())
    for name, value in backbone.state_dict().items():
        found.update(name.encode())
        found.update(value.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:10]


class FrozenFeatures:
    """Features and labels of both splits of a task, by picture.

    Args:
        task: whose pictures; of one size in each split.
        model: whose backbone.
        root: folder of the cache.
        key: what the pictures depend on; the weights are hashed here.
        watch: told how many pictures of how many are done.

    Raises:
        ValueError: pictures of several sizes.
    """

    def __init__(
        self, task: Segmentation, model: Segmenter, root: Path, key: str, *, watch: Watch | None = None
    ) -> None:
        self.task = task
        check_one_size(task.data)
        path = root / f"features-{_digest(key, model.backbone)}.safetensors"
        if not path.exists():
            write_bytes(path, require("safetensors.torch", "weights").save(self._compute(model, watch)))
        try:
            self.tensors: dict[str, Tensor] = require("safetensors.torch", "weights").load_file(path)
        except Exception as error:
            raise ValueError(f"{path} cannot be read ({error}); delete it to have it made again") from error

    @torch.no_grad()
    def _compute(self, model: Segmenter, watch: Watch | None) -> dict[str, Tensor]:
        device = next(model.parameters()).device
        model.eval()
        splits = {"train": self.task.data.train, "val": self.task.data.val}
        total, done = sum(len(s) for s in splits.values()), 0
        found: dict[str, Tensor] = {}
        for split in splits:
            features, mirrored, labels = [], [], []
            for images, truth in self.task.batches(split):
                images = images.to(device)
                # float16 halves the cache; the features of the same picture stay the same for every module.
                features.append(model.backbone(images).half().cpu())
                if split == "train":
                    mirrored.append(model.backbone(images.flip(-1)).half().cpu())
                labels.append(truth.to(torch.uint8))
                done += len(images)
                if watch:
                    watch(done, total)
            found[f"{split}.features"], found[f"{split}.labels"] = torch.cat(features), torch.cat(labels)
            if mirrored:
                found[f"{split}.mirrored"] = torch.cat(mirrored)
        return found

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Features `(b, c, h, w)` and labels `(b, H, W)` of a training step; each mirrored with even odds."""
        indices = torch.tensor(self.task.indices(step))
        flips = np.random.default_rng((self.task.seed, 1, step)).random(len(indices)) < 0.5
        flip = torch.from_numpy(flips) & self.task.augment
        straight, mirrored = self.tensors["train.features"][indices], self.tensors["train.mirrored"][indices]
        labels = self.tensors["train.labels"][indices]
        features = torch.where(flip[:, None, None, None], mirrored, straight).float()
        return features, torch.where(flip[:, None, None], labels.flip(-1), labels).long()

    def batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over a split in its own order."""
        features, labels = self.tensors[f"{split}.features"], self.tensors[f"{split}.labels"]
        size = self.task.batch_size
        for start in range(0, len(features), size):
            yield features[start : start + size].float(), labels[start : start + size].long()
