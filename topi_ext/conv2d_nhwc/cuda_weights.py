"""Load weights into shared memory, in an order that suits the result: the layout of a slot of weights.

Resident plans load all weights of the block's filters once (`load_all_weights`). Streaming plans load those
of one step at a time (`load_weights_of_step`): one tap and the planes of a chunk. All threads of the block
share the copies. The products (`cuda_multiply`) take byte offsets into the slot.

Layout
------
The reduction goes over halves: a half is one tap and one plane, that is one piece of each filter. A slot
has `plan.halves` halves of `plan.half` pieces. A half has one piece for each filter of the block (channels of
the tap). `plan.row_pieces` halves are interleaved and swizzled, as the planes of pixels are (`cuda_pixels`).
The halves are, in order:

    streaming               the planes of the chunk, of one tap
    resident                tap by tap, the planes of each
    resident, paired taps   the taps in ascending order of their offset in the plane of pixels (`tap_places`)
                            and, if their number is odd, one that is all zeros

The channels are those that the block reads. Where it has several groups of a grouped convolution, only the
weights of a filter for its own group's channels are copied; `cuda_resident` has set the others to 0.

Order of filters
----------------
Of a row of 8 x 8 sums, the instructions give two neighboring columns to each of four threads
(`cuda_multiply`). If filters were columns in their own order, a thread would have two filters here and two
there. So in each group of `plan.group` filters (8, 16 or 32), filter `thread * run + j` goes to column

    (j // 2) * 8 + thread * 2 + j % 2

where `run` is `plan.run`, a quarter of a group. Then each thread has `run` contiguous filters, up to 16 bytes
of the result, and writes them without exchanging values with other threads. Only this module and
`Product.run_of_sums` know about the permutation.
"""

from __future__ import annotations

from .._kernel import local
from .._tvm import tir
from .._types import IntExpr
from .cuda_copy import Copies
from .plan import PIECE


def load_all_weights(copies: Copies) -> None:
    """Start copying all weights of the block's filters, which are contiguous in the tensor, into slot 0."""
    block, plan, channels = copies.block, copies.plan, copies.problem.channels_of_group
    unit_size = copies.units["weight"]
    units = -(-channels // unit_size)
    position_of_tap = {tap: i for i, (_, tap) in enumerate(plan.tap_places)}
    in_order = all(tap == i for tap, i in position_of_tap.items())
    with block.each(plan.columns * plan.taps * units) as item:
        rest, unit = block.split_once("rest", item, units)
        row, tap = block.split_once("row", rest, plan.taps)
        k = block.first_filter + row
        inside = local(block.ib, "inside", block.is_filter(k).astype("int32"))
        channel = unit * unit_size
        source = (k * plan.taps + tap) * channels + channel
        place = block.channel_of_group(k) + channel
        if plan.pairs_taps:
            half = tap if in_order else _lookup(tap, position_of_tap)
        else:
            half = tap * plan.chunk_planes + tir.truncdiv(place, plan.per_piece)
        source = tir.Select(inside != 0, source, 0)
        copies.copy(_offset(copies, 0, half, row, place), "weight", source, inside, channel)


def load_weights_of_step(copies: Copies, chunk: IntExpr, tap: IntExpr, slot: IntExpr) -> None:
    """Start copying the weights of one tap and of the planes of a chunk into a slot.

    In a plan `by_taps` the chunk says which tap.
    """
    block, plan, ib = copies.block, copies.plan, copies.block.ib
    unit_size = copies.units["weight"]
    units = plan.chunk_planes * plan.per_piece // unit_size
    first_channel, _ = copies.chunk(chunk)
    if plan.by_taps:
        tap = copies.tap_of(chunk)
    # A thread has the same channels in each turn, and its rows are a constant distance apart, so nvcc makes
    # constants of the other differences.
    rows = plan.threads // units
    first_row, unit = block.split_once("row", block.thread, units)
    with ib.for_range(0, -(-plan.columns // rows), "i", kind="unroll") as i:
        row, channel = first_row + i * rows, unit * unit_size
        k = block.first_filter + row
        inside = block.is_filter(k) & copies.is_channel(first_channel + channel)
        inside = local(ib, "inside", inside.astype("int32"))
        source = (k * plan.taps + tap) * plan.channels + first_channel + channel
        target = _offset(copies, slot, tir.truncdiv(channel, plan.per_piece), row, channel)
        with ib.if_scope(row < plan.columns):
            source = tir.Select(inside != 0, source, 0)
            copies.copy(target, "weight", source, inside, first_channel + channel)


def _offset(
    copies: Copies, slot: IntExpr, half: tir.PrimExpr, row: tir.PrimExpr, channel: tir.PrimExpr
) -> tir.PrimExpr:
    """The byte of shared memory for a channel of the block's filter `row`, in a half of a slot."""
    block, plan = copies.block, copies.plan
    group, run = plan.group, plan.run
    begin, within = block.split_once("group", row, group)
    thread, of_thread = block.split_once("owner", within, run)
    column = begin * group + tir.truncdiv(of_thread, 2) * 8 + thread * 2 + tir.truncmod(of_thread, 2)
    at = block.weights_at + slot * block.weight_bytes + plan.piece(half, column, plan.half) * PIECE
    return block.swizzled(at) + copies.byte_in_piece(channel)


def _lookup(index: tir.PrimExpr, table: dict[int, int]) -> tir.PrimExpr:
    """The entry of a small constant table, by a chain of selects."""
    value = tir.const(0)
    for key, of_key in table.items():
        value = tir.Select(index == key, tir.const(of_key), value)
    return value
