"""The inputs of networks that take images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class ImageInput:
    """An input that takes one image: uint8 (1, H, W, 3), or floats from 0 to 1, (1, C, H, W) or (C, H, W).

    A length that may be any is None.
    """

    height: Any
    width: Any
    channels: int
    layout: str
    dtype: str

    @staticmethod
    def of(shape: Sequence[int | None], dtype: str) -> ImageInput | None:
        """The image input of this shape and type; None if it is not an image."""
        if len(shape) == 4 and shape[0] in (1, None) and shape[3] == 3 and dtype == "uint8":
            return ImageInput(shape[1], shape[2], 3, "NHWC", dtype)
        layout = {3: "CHW", 4: "NCHW"}.get(len(shape))
        if layout is None or not dtype.startswith("float") or shape[-3] not in (1, 3):
            return None
        if len(shape) == 4 and shape[0] not in (1, None):
            return None
        return ImageInput(shape[-2], shape[-1], shape[-3], layout, dtype)

    @property
    def size_text(self) -> str:
        return "x".join("any" if length is None else str(length) for length in (self.height, self.width))

    def takes(self, image: Image.Image) -> bool:
        wanted = (self.width, self.height)
        return all(length in (None, found) for length, found in zip(wanted, image.size))

    def array(self, image: Image.Image, channels: str = "RGB") -> np.ndarray:
        """A PIL image as an array for this input; `channels` is the order of the channels of a camera."""
        pixels = np.asarray(image.convert("RGB" if self.channels == 3 else "L"))
        if self.layout == "NHWC":
            return np.ascontiguousarray(pixels[None, :, :, :: -1 if channels == "BGR" else 1])
        values = (pixels.astype("float32") / 255).astype(self.dtype)
        values = values.transpose(2, 0, 1) if self.channels == 3 else values[None]
        return np.ascontiguousarray(values if self.layout == "CHW" else values[None])
