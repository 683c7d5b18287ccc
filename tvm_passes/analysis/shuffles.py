"""Sub-pixel shuffles, and the reshape, transpose and reshape that spell one, for graphs of either TVM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engine.contract import Refusal

Shape = tuple[int, ...]

# Where a transpose takes the axes (N, ., ., ., H, W) of channels split in three, by the mode it spells.
DEPTH_TO_SPACE: dict[Shape, str] = {(0, 1, 4, 2, 5, 3): "CRD", (0, 3, 4, 1, 5, 2): "DCR"}
# Where it takes the axes (N, C, H, b, W, b) of height and width split in two.
SPACE_TO_DEPTH: dict[Shape, str] = {(0, 1, 3, 5, 2, 4): "CRD", (0, 3, 5, 1, 2, 4): "DCR"}


class Shuffle(NamedTuple):
    """The block of a depth-to-space or space-to-depth, and the order in which it takes the channels."""

    block: int
    mode: str = "DCR"  # or CRD

    def deep(self, channels: int) -> np.ndarray:
        """The deep channels, by (row in the block, column in the block, channel in space)."""
        block = self.block
        order = np.arange(channels * block**2)
        if self.mode == "DCR":
            return order.reshape(block, block, channels)
        return order.reshape(channels, block, block).transpose(1, 2, 0)

    def spread(self, vector: np.ndarray) -> np.ndarray:
        """A value for each deep channel, from one for each channel in space."""
        deep = np.empty(len(vector) * self.block**2, vector.dtype)
        deep[self.deep(len(vector))] = vector
        return deep


def read_shuffle(
    data: Shape | None, split: Shape | None, result: Shape | None, *, axes: Shape | None
) -> Shuffle | Refusal:
    """The depth-to-space that splits channels of `data`, and transposes by `axes`, or why there is none."""
    shapes = _known(data, split, result)
    if isinstance(shapes, Refusal):
        return shapes
    (batch, channels, height, width), parts, merged = shapes
    if parts[0] != batch or parts[4:] != (height, width):
        return Refusal(f"the first reshape, to {list(parts)}, splits an axis other than the channels")
    if axes not in DEPTH_TO_SPACE:
        return Refusal(f"no mode of nn.depth_to_space transposes by the axes {list(axes or ())}")
    mode = DEPTH_TO_SPACE[axes]
    block, other = parts[2:4] if mode == "CRD" else parts[1:3]
    if block != other:
        return Refusal(f"the block of {block}x{other} is not square")
    if merged != (batch, channels // block**2, height * block, width * block):
        return Refusal(f"the last reshape, to {list(merged)}, does not merge the block into height and width")
    return Shuffle(block, mode)


def read_unshuffle(
    data: Shape | None, split: Shape | None, result: Shape | None, *, axes: Shape | None
) -> Shuffle | Refusal:
    """The space-to-depth that splits height and width of `data`, or why there is none."""
    shapes = _known(data, split, result)
    if isinstance(shapes, Refusal):
        return shapes
    (batch, channels, height, width), parts, merged = shapes
    if axes not in SPACE_TO_DEPTH:
        return Refusal(f"nn.space_to_depth does not transpose by the axes {list(axes or ())}")
    rows, block, columns, other = parts[2:]
    if parts[:2] != (batch, channels) or (rows * block, columns * other) != (height, width):
        return Refusal(f"the first reshape, to {list(parts)}, splits axes other than height and width")
    if block != other:
        return Refusal(f"the block of {block}x{other} is not square")
    if merged != (batch, channels * block**2, rows, columns):
        return Refusal(f"the last reshape, to {list(merged)}, does not merge the block into the channels")
    return Shuffle(block, SPACE_TO_DEPTH[axes])


def _known(*shapes: Shape | None) -> list[Shape] | Refusal:
    """The shapes of the data, of what it is split to, and of the result."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return Refusal("the shape is dynamic")
    if [len(shape) for shape in known] != [4, 6, 4]:
        return Refusal("the tensors do not have the four, six and four axes of a shuffle")
    return Refusal("the tensor is empty") if any(0 in shape for shape in known) else known
