"""Fit an image of any size into the fixed input of a network, and bring what is found back to the image.

The image keeps its aspect ratio and is at the top left; the rest has the mean color of ImageNet, which is 0
after torchvision's detectors have normalized it, and 0 is what they pad with.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import interpolate

from .image_input import ImageInput

Prepared = Any  # an image in the size of an input: a NumPy array, or a tensor on a GPU

PADDING = (0.485, 0.456, 0.406)
LUMINANCE = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Placed:
    """Where an image is in the input of a network: sizes are (height, width)."""

    image: tuple[int, int]
    resized: tuple[int, int]
    given: tuple[int, int]  # the size of the input

    @staticmethod
    def of(image: tuple[int, int], taken: ImageInput) -> Placed:
        """For an input whose size may be any, the image is not resized."""
        height, width = image
        given = taken.height or height, taken.width or width
        # With torchvision's own roundings, by which a side may become a pixel shorter than it could be.
        scale = min(given[0] / height, given[1] / width)
        return Placed(image, (max(1, int(height * scale)), max(1, int(width * scale))), given)

    @property
    def factor(self) -> tuple[float, float]:
        """From a coordinate (x, y) in the input to one in the image."""
        return self.image[1] / self.resized[1], self.image[0] / self.resized[0]


class Fitted(NamedTuple):
    """An image that is ready for the network."""

    id: str
    array: Prepared
    placed: Placed


def letterbox(image: np.ndarray, taken: ImageInput, channels: str = "RGB") -> tuple[np.ndarray, Placed]:
    """An RGB image, uint8 (height, width, 3), as the network takes one, without the axis of the batch.

    Resized as `torch.nn.functional.interpolate` does, bilinearly without antialiasing, which torchvision's
    detectors use and `topi_ext.preprocess` computes.
    """
    found, placed = fitted(pixels_of(image), taken, channels)
    return found.numpy(), placed


def pixels_of(image: np.ndarray) -> torch.Tensor:
    """An image as a tensor, of the same memory if possible."""
    if not image.flags.writeable or min(image.strides) < 0:  # which Ray gives, and torch does not take
        image = image.copy()
    return torch.from_numpy(image)


def fitted(image: torch.Tensor, taken: ImageInput, channels: str) -> tuple[torch.Tensor, Placed]:
    """The same for tensors, on any device."""
    height, width, _ = image.shape
    placed = Placed.of((height, width), taken)
    pixels = image.permute(2, 0, 1)[None].float()
    if placed.resized != placed.image:
        pixels = interpolate(pixels, size=placed.resized, mode="bilinear", align_corners=False)
    whole = _padding(image.device).expand(3, *placed.given).clone(memory_format=torch.contiguous_format)
    whole[:, : placed.resized[0], : placed.resized[1]] = pixels[0]
    if taken.layout == "NHWC":
        ordered = whole.flip(0) if channels == "BGR" else whole
        return ordered.round().to(torch.uint8).permute(1, 2, 0).contiguous(), placed
    if taken.channels == 1:
        whole = torch.tensordot(_luminance(image.device), whole, 1)[None]
    return whole.div_(255).to(getattr(torch, taken.dtype)), placed


@functools.cache
def _padding(device: torch.device) -> torch.Tensor:
    """The color of a pixel, (3, 1, 1). All streams can read it, since a copy from the host is waited for."""
    return torch.tensor(PADDING).mul(255)[:, None, None].to(device)


@functools.cache
def _luminance(device: torch.device) -> torch.Tensor:
    """The parts of the channels, for all streams, too."""
    return torch.tensor(LUMINANCE).to(device)
