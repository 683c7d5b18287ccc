"""Reading the reshape, transpose and reshape that spell a sub-pixel shuffle."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relay

from ..engine.expressions import static_shape
from ..engine.rule import Refusal
from .layouts import order_of_axes

Shape = tuple[int, ...]

# Where a transpose takes the axes (N, ., ., ., H, W) of channels split in three, by the mode it spells.
DEPTH_TO_SPACE: dict[Shape, str] = {(0, 1, 4, 2, 5, 3): "CRD", (0, 3, 4, 1, 5, 2): "DCR"}
# Where it takes the axes (N, C, H, b, W, b) of height and width split in two.
SPACE_TO_DEPTH: dict[Shape, str] = {(0, 1, 3, 5, 2, 4): "CRD", (0, 3, 5, 1, 2, 4): "DCR"}


class SpelledShuffle(NamedTuple):
    """The block of a shuffle, and the order in which it takes the channels: CRD or DCR."""

    block: int
    mode: str


def read_shuffle(
    data: relay.Expr, split: relay.Expr, moved: relay.Call, result: relay.Expr
) -> SpelledShuffle | Refusal:
    """The depth-to-space that these spell by splitting the channels of `data`, or why they spell none."""
    shapes = _shapes(data, split, result)
    if isinstance(shapes, Refusal):
        return shapes
    (batch, channels, height, width), parts, merged = shapes
    axes = order_of_axes(moved) or ()
    if parts[0] != batch or parts[4:] != (height, width):
        return Refusal(f"the first reshape, to {list(parts)}, splits an axis other than the channels")
    if axes not in DEPTH_TO_SPACE:
        return Refusal(f"no mode of nn.depth_to_space transposes by the axes {list(axes)}")
    mode = DEPTH_TO_SPACE[axes]
    block, other = parts[2:4] if mode == "CRD" else parts[1:3]
    if block != other:
        return Refusal(f"the block of {block}x{other} is not square")
    if merged != (batch, channels // block**2, height * block, width * block):
        return Refusal(f"the last reshape, to {list(merged)}, does not merge the block into height and width")
    return SpelledShuffle(block, mode)


def read_unshuffle(
    data: relay.Expr, split: relay.Expr, moved: relay.Call, result: relay.Expr
) -> SpelledShuffle | Refusal:
    """The space-to-depth that these spell by splitting height and width of `data`, or why they spell none."""
    shapes = _shapes(data, split, result)
    if isinstance(shapes, Refusal):
        return shapes
    (batch, channels, height, width), parts, merged = shapes
    axes = order_of_axes(moved) or ()
    if axes not in SPACE_TO_DEPTH:
        return Refusal(f"nn.space_to_depth does not transpose by the axes {list(axes)}")
    rows, block, columns, other = parts[2:]
    if parts[:2] != (batch, channels) or (rows * block, columns * other) != (height, width):
        return Refusal(f"the first reshape, to {list(parts)}, splits axes other than height and width")
    if block != other:
        return Refusal(f"the block of {block}x{other} is not square")
    if merged != (batch, channels * block**2, rows, columns):
        return Refusal(f"the last reshape, to {list(merged)}, does not merge the block into the channels")
    return SpelledShuffle(block, SPACE_TO_DEPTH[axes])


def _shapes(*exprs: relay.Expr) -> list[Shape] | Refusal:
    """Of the data, what it is split to, and the result."""
    shapes = [shape for shape in map(static_shape, exprs) if shape is not None]
    if len(shapes) < len(exprs):
        return Refusal("the shape is dynamic")
    if [len(shape) for shape in shapes] != [4, 6, 4]:
        return Refusal("the tensors do not have the four, six and four axes of a shuffle")
    return Refusal("the tensor is empty") if any(0 in shape for shape in shapes) else shapes
