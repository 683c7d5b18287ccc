"""`depth_to_space` and `space_to_depth` whose results may be read in any order.

TVM computes their indices with `truncdiv` and `truncmod`. Where the result is reversed, as by a flip of an
upscaled image, `truncmod(15 - i, 2)` is vectorized on CPUs and simplified to `truncmod(1 - i, 2)`, which is
negative: other elements are read, or memory outside the tensor. Importing this module computes the indices
with `floordiv` and `floormod`, for which that simplification is right.
"""

from __future__ import annotations

from tvm import te, tir, topi


def depth_to_space(data: te.Tensor, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> te.Tensor:
    batch, channels, height, width = _in_order(layout, data.shape)
    filters = tir.floordiv(channels, block_size * block_size)

    def pixel(*at: tir.Var) -> tir.PrimExpr:
        n, c, y, x = _in_order(layout, at)
        within = tir.floormod(y, block_size) * block_size + tir.floormod(x, block_size)
        channel = within * filters + c if mode == "DCR" else c * (block_size * block_size) + within
        source = n, channel, tir.floordiv(y, block_size), tir.floordiv(x, block_size)
        return data(*_as(layout, source))

    shape = _as(layout, (batch, filters, height * block_size, width * block_size))
    return te.compute(shape, pixel, name="depth_to_space", tag=topi.tag.INJECTIVE)


def space_to_depth(data: te.Tensor, block_size: int, layout: str = "NCHW") -> te.Tensor:
    batch, channels, height, width = _in_order(layout, data.shape)

    def pixel(*at: tir.Var) -> tir.PrimExpr:
        n, c, y, x = _in_order(layout, at)
        within, channel = tir.floordiv(c, channels), tir.floormod(c, channels)
        down, across = tir.floordiv(within, block_size), tir.floormod(within, block_size)
        return data(*_as(layout, (n, channel, y * block_size + down, x * block_size + across)))

    lengths = (tir.floordiv(length, block_size) for length in (height, width))
    shape = _as(layout, (batch, channels * (block_size * block_size), *lengths))
    return te.compute(shape, pixel, name="space_to_depth", tag=topi.tag.INJECTIVE)


def _in_order(layout: str, axes: tuple[tir.PrimExpr, ...]) -> list[tir.PrimExpr]:
    """Axes of this layout in the order of NCHW."""
    if layout not in ("NCHW", "NHWC"):
        raise ValueError(f"only NCHW and NHWC layouts are supported, not {layout}")
    return [axes[layout.index(letter)] for letter in "NCHW"]


def _as(layout: str, axes: tuple[tir.PrimExpr, ...]) -> list[tir.PrimExpr]:
    """Axes in the order of NCHW in that of this layout."""
    return [axes["NCHW".index(letter)] for letter in layout]


topi.nn.depth_to_space, topi.nn.space_to_depth = depth_to_space, space_to_depth
