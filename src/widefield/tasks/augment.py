# SPDX-License-Identifier: Apache-2.0
"""Scale, crop and flip of a picture and its labels together, from a generator that is handed in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from widefield.core.extras import require
from widefield.data.labels import IGNORE

FILL = (124, 116, 104)
"""The mean colour of ImageNet, for what lies outside the picture."""


def _functional() -> Any:
    return require("torchvision.transforms.v2.functional", "tasks")


def random_view(
    image: Tensor,
    label: Tensor,
    crop: tuple[int, int],
    generator: np.random.Generator,
    *,
    scale: tuple[float, float] = (0.5, 2.0),
    flip: bool = True,
) -> tuple[Tensor, Tensor]:
    """A random scale (uniform in the logarithm), a random crop, a flip from left to right half of the time.

    Args:
        image: `(3, h, w)` uint8.
        label: `(h, w)` int64.
        crop: height and width of the result.
        generator: of all random numbers.
        scale: of the picture before the crop; labels are scaled by the nearest neighbour.
        flip: whether to flip at all.

    Returns:
        Picture and label of the size `crop`; outside the picture the mean colour and 255.
    """
    transforms, height, width = _functional(), image.shape[-2], image.shape[-1]
    factor = float(np.exp(generator.uniform(np.log(scale[0]), np.log(scale[1]))))
    size = [max(1, round(height * factor)), max(1, round(width * factor))]
    image = transforms.resize(image, size, antialias=True)
    label = _resize_label(label, size)
    image, label = _pad(image, label, crop)
    top = int(generator.integers(image.shape[-2] - crop[0] + 1))
    left = int(generator.integers(image.shape[-1] - crop[1] + 1))
    image = transforms.crop(image, top, left, *crop)
    label = transforms.crop(label, top, left, *crop)
    if flip and generator.random() < 0.5:
        image, label = transforms.horizontal_flip(image), transforms.horizontal_flip(label)
    return image.contiguous(), label.contiguous()


def centre_view(image: Tensor, label: Tensor, crop: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The middle of a picture, in its own scale; padded where it is smaller than the crop."""
    image, label = _pad(image, label, crop)
    top, left = (image.shape[-2] - crop[0]) // 2, (image.shape[-1] - crop[1]) // 2
    cut = (..., slice(top, top + crop[0]), slice(left, left + crop[1]))
    return image[cut].contiguous(), label[cut].contiguous()


def _resize_label(label: Tensor, size: list[int]) -> Tensor:
    mode = require("torchvision.transforms.v2", "tasks").InterpolationMode.NEAREST_EXACT
    # Labels are 0..255, so a byte holds them and the resize stays exact.
    scaled = _functional().resize(label.to(torch.uint8)[None], size, interpolation=mode)
    return scaled[0].long()


def _pad(image: Tensor, label: Tensor, crop: tuple[int, int]) -> tuple[Tensor, Tensor]:
    below, right = max(0, crop[0] - image.shape[-2]), max(0, crop[1] - image.shape[-1])
    if not below and not right:
        return image, label
    border, transforms = [right // 2, below // 2, right - right // 2, below - below // 2], _functional()
    return (
        transforms.pad(image, border, fill=list(FILL)),
        transforms.pad(label[None], border, fill=IGNORE)[0],
    )
