"""Load the pixels that a tile sees into shared memory, and find them there: the layout of a slot of pixels.

The load takes a tile, a slot and a chunk; the products (`cuda_multiply`) take byte offsets into the slot.

Layout
------
A slot has `plan.chunk_planes` planes of `plan.plane` pieces. A plane has one piece of each pixel that the
tile sees (`plan.seen`, halo included): `per_piece` channels. Plane p has those from `p * per_piece` on of the
chunk. `plan.row_pieces` planes are interleaved: these pieces of a pixel are its row, up to 128 contiguous
bytes as in global memory, which is what makes copies fast. Rows are swizzled as wgmma expects it
(`Block.swizzled`).
Among the rows, that of the pixel (row, column) has the number

    row * pitch + (column % stride) * columns_of_a_phase + column // stride

(`Plan.place`; the stride is `plan.steps_between[1]`): the columns with the same remainder by the stride, a
phase, are contiguous. From this follows what the instructions need:

- The pixels that eight neighboring output pixels of a row see for one tap are eight contiguous rows. Of one
  piece each, this is a matrix of ldmatrix; of any, the eight rows of a wgmma core matrix.
- Going from one output pixel to the one below, the offset grows by `steps_between[0] * pitch` rows.
- The offset of a tap is the same for all output pixels, and so is that of a plane.

For plans `by_taps` a slot has only the pixels of one tap, one for each output pixel: the stride is 1 here,
and the tap's offset is in the address in global memory.

Where taps are paired (`plan.pairs_taps`), there is one plane of pixels, and if the number of taps is odd a
second one that is all zeros, which `cuda_resident` clears once.
"""

from __future__ import annotations

from .._kernel import local
from .._tvm import tir
from .._types import IntExpr
from .cuda_block import Block, Tile, split
from .cuda_copy import Copies
from .plan import PIECE, Plan


def load_pixels(copies: Copies, tile: Tile, slot: IntExpr, chunk: IntExpr) -> None:
    """Start copying the pixels that a tile sees, the planes of a chunk, into a slot.

    The threads of a team share the copies. Pixels in the padding become zeros.
    """
    block, plan, problem, ib = copies.block, copies.plan, copies.problem, copies.block.ib
    height, width = plan.seen
    part = problem.parts["data"]
    channels = plan.channels if plan.resident else plan.chunk_planes * plan.per_piece
    unit_size = copies.units["data"]
    units = -(-channels // unit_size)
    image, y0, x0 = tile
    first_channel, (tap_y, tap_x) = copies.chunk(chunk)
    start = part.first + block.first_channel
    step_y, step_x = problem.strides if plan.by_taps else (1, 1)
    top, left = problem.padding[:2]
    y0 = local(ib, "y_first", y0 * problem.strides[0] - top + tap_y)
    x0 = local(ib, "x_first", x0 * problem.strides[1] - left + tap_x)
    with block.each(height * width * units, of_team=True) as item:
        pixel, unit = block.split_once("pixel", item, units)
        row, column = block.split_once("row", pixel, width)
        y, x = y0 + row * step_y, x0 + column * step_x
        inside = _within(y, problem.size[0]) & _within(x, problem.size[1])
        channel = unit * unit_size
        inside = inside & copies.is_channel(first_channel + channel)
        inside = local(ib, "inside", inside.astype("int32"))
        source = ((image * problem.size[0] + y) * problem.size[1] + x) * part.whole + start
        source = tir.Select(inside != 0, source + first_channel + channel, 0)
        phase = tir.truncmod(column, plan.steps_between[1]) * plan.columns_of_a_phase
        place = row * plan.pitch + phase + tir.truncdiv(column, plan.steps_between[1])
        piece = plan.piece(tir.truncdiv(channel, plan.per_piece), place, plan.plane)
        target = block.swizzled(slot * block.data_bytes + piece * PIECE) + copies.byte_in_piece(channel)
        copies.copy(target, "data", source, inside, first_channel + channel)


def _within(value: tir.PrimExpr, extent: int) -> tir.PrimExpr:
    """Whether 0 <= value < extent; one comparison, as negative values are large as unsigned ones."""
    return value.astype("uint32") < tir.const(extent, "uint32")


# --- byte offsets, before the swizzle


def offset_of_tap(block: Block, tap: tir.PrimExpr) -> tir.PrimExpr:
    """The distance in bytes from what a pixel sees for the first tap to what it sees for this one."""
    plan = block.plan
    (dilation_y, dilation_x), columns, step = (
        block.problem.dilation,
        block.problem.kernel[1],
        plan.steps_between[1],
    )
    row, column = split(tap, columns)
    phase, x = tir.truncmod(column * dilation_x, step), tir.truncdiv(column * dilation_x, step)
    return (row * (dilation_y * plan.pitch) + phase * plan.columns_of_a_phase + x) * plan.row_bytes


def corner_of_square(plan: Plan, square: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
    """The first row and column, in the tile, of a square of 8 x 8 output pixels."""
    y, x = split(square, plan.tile[1] // 8)
    return y * 8, x * 8


def offset_of_square(plan: Plan, square: tir.PrimExpr) -> tir.PrimExpr:
    """The byte of the row that the first output pixel of a square sees for the first tap."""
    y, x = corner_of_square(plan, square)
    return (y * plan.steps_between[0] * plan.pitch + x) * plan.row_bytes


def offset_of_eight(plan: Plan, number: tir.PrimExpr) -> tir.PrimExpr:
    """The byte of what the first of eight output pixels sees; row r of square s has the number 8 * s + r."""
    square, row = split(number, 8)
    return offset_of_square(plan, square) + row * (plan.steps_between[0] * plan.pitch * plan.row_bytes)
