"""What the kernels of every target have to know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import mul

from .._register import known
from .._tvm import te
from .._types import IntExpr
from ..conv2d_nhwc.problem import Activation


@dataclass(frozen=True)
class Problem:
    """Images of pixels, whose channels are the last axis, or the first behind the images."""

    images: IntExpr
    channels: int
    pixels: IntExpr
    groups: int
    is_last: bool  # whether the channels of a pixel are side by side
    epsilon: float
    activation: Activation

    @classmethod
    def of(cls, data: te.Tensor, axis: int, groups: int, epsilon: float, activation: Activation) -> Problem:
        images, *others = data.shape
        axis = axis % len(data.shape) - 1
        channels = int(others.pop(axis))
        pixels = reduce(mul, (extent if known(extent) is None else int(extent) for extent in others), 1)
        images = images if known(images) is None else int(images)
        return cls(images, channels, pixels, groups, axis == len(others), epsilon, activation)

    @property
    def of_group(self) -> int:
        """The number of channels of a group."""
        return self.channels // self.groups
