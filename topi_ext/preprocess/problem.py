"""What a call of the operator asks for, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .._types import IntExpr


@dataclass(frozen=True)
class Problem:
    """Sizes are height and width. The batch is not among them: it may be known only at run time."""

    given: tuple[int, ...]
    size: tuple[int, ...]
    padded_size: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    swap_channels: bool
    image_layout: str
    layout: str
    dtype: str
    padded_channels: int  # of the result

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image of the result."""
        height, width = self.padded_size
        channels = self.padded_channels
        return (channels, height, width) if self.layout == "NCHW" else (height, width, channels)

    @property
    def image_elements(self) -> int:
        """Of one image."""
        return prod(self.given) * self.channels

    @property
    def image_strides(self) -> tuple[int, int, int]:
        """Elements from a channel, a row and a column to the next."""
        return self._strides(self.image_layout, self.given, self.channels)

    @property
    def strides(self) -> tuple[int, int, int]:
        """The same of the result."""
        return self._strides(self.layout, self.padded_size, self.padded_channels)

    def _strides(self, layout: str, size: tuple[int, ...], channels: int) -> tuple[int, int, int]:
        height, width = size
        if layout == "NCHW":
            return height * width, width, 1
        return 1, width * channels, channels

    def source(self, channel: IntExpr) -> IntExpr:
        """The channel of the image that a channel of the result comes from."""
        return self.channels - 1 - channel if self.swap_channels else channel
