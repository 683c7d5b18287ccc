"""A block of threads: which thread this is, the map of shared memory, and what all phases use to emit code.

`cuda_kernel` lists the phases.

Threads
-------
A block computes `plan.columns` filters, from `first_filter` on, for a number of tiles of output pixels. It
has `plan.teams` teams of `plan.team_threads` threads; each team works on a tile of its own. The warps of a
team form a grid over the products of a tile, `plan.warps` = (along the pixels, along the filters):

    thread = team * team_threads + member
    member = warp * 32 + lane
    warp   = warp_in_columns * warps[0] + warp_in_pixels

Blocks with neighboring numbers have the same tiles and different filters. All filters of a block read the
same channels of the data, `plan.channels` from `first_channel` on: all channels, or those of a bundle of
groups.

Shared memory
-------------
It is a single array of `plan.shared_memory` bytes. Phases address it by byte offset:

    offset          size                                what
    0               plan.data_slots * data_bytes        slots of pixels, `cuda_pixels` has the layout
    weights_at      plan.weight_slots * weight_bytes    slots of weights, `cuda_weights` has the layout
    tables[name]    4 * plan.columns each               bias, slope and scale, if given, `cuda_write`

Slots consist of pieces of `PIECE` = 16 bytes: `plan.per_piece` values, neighbors along the reduction. Each
slot begins at a multiple of 16 bytes, as do the tables, so each piece is aligned as ldmatrix, wgmma and
copies of 16 bytes need it. Which threads may write or read a slot, and when, depends on the schedule: see
`cuda_resident` and `cuda_streaming`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .._kernel import in_a_row, local, variables
from .._tvm import BufferVar, IRBuilder, tir
from .._types import IntExpr
from .._warp import from_lane
from . import tensor_core
from .plan import PIECE, Plan


class Tile(NamedTuple):
    """A tile of output pixels: its image in the batch, and its first row and column."""

    image: tir.PrimExpr
    y0: tir.PrimExpr
    x0: tir.PrimExpr


class Block:
    """The position of a thread in its block, the map of shared memory, and helpers to emit code."""

    def __init__(
        self,
        ib: IRBuilder,
        plan: Plan,
        buffers: dict[str, tir.Buffer],
        number: tir.PrimExpr,
        thread: tir.PrimExpr,
    ) -> None:
        self.ib, self.plan, self.problem, self.thread = ib, plan, plan.problem, thread
        # Of those in global memory, the elements.
        self.buffers = {name: in_a_row(ib, buffer)[0] for name, buffer in buffers.items()}
        self.c_type = tensor_core.C_TYPES[self.problem.dtype]
        # `number` is counted among the blocks with the same filters.
        self.number, column_block = split(number, plan.column_blocks)
        bundle, of_bundle = (
            split(column_block, plan.blocks_of_bundle) if plan.bundles > 1 else (0, column_block)
        )
        self.first_channel: IntExpr = bundle * plan.channels
        self.first_filter = bundle * plan.filters + of_bundle * plan.columns
        self._end_of_filters = (bundle + 1) * plan.filters
        warp = self.uniform("warp_of_block", tir.truncdiv(thread, 32))
        self.team, self.warp = self.split_once("team", warp, plan.team_threads // 32)
        self.member, self.lane = (tir.truncmod(thread, extent) for extent in (plan.team_threads, 32))
        self.warp_in_columns, self.warp_in_pixels = split(self.warp, plan.warps[0])
        self._map_shared_memory()

    # --- shared memory

    def _map_shared_memory(self) -> None:
        plan = self.plan
        self._shared = self.ib.allocate("uint8", (plan.shared_memory,), name="shared", scope="shared.dyn")
        self.data_bytes = plan.chunk_planes * plan.plane * PIECE
        self.weight_bytes = plan.halves * plan.half * PIECE
        self.weights_at = plan.data_slots * self.data_bytes
        at = self.weights_at + plan.weight_slots * self.weight_bytes
        self.tables: dict[str, int] = {}
        for name in ("bias", "slope", "scale"):
            if name in self.buffers:
                self.tables[name] = at
                at += 4 * plan.columns

    def shared(self, byte: IntExpr) -> tir.PrimExpr:
        """The address of a byte of shared memory."""
        return tir.address_of(self._shared[byte])

    def swizzled(self, byte: tir.PrimExpr) -> tir.PrimExpr:
        """Where wgmma looks for a piece: its number in 128 bytes is changed by that of these.

        The hardware does so by the address, so the shared memory of a kernel has to begin where the pattern
        does: nothing else is in it.
        """
        pieces = self.plan.row_pieces
        if pieces == 1:
            return byte
        byte = local(self.ib, "unswizzled", byte)
        return byte ^ ((byte >> 7 & (pieces - 1)) << 4)

    def zero(self, at: int, count: int) -> None:
        """Set `count` bytes of shared memory to 0, a multiple of 16."""
        with self.each(count // PIECE) as i:
            self.call("copy_now<16>", self.shared(at + i * PIECE), self.shared(at), tir.const(False))

    # --- tiles and filters

    def tile(self, number: tir.PrimExpr) -> Tile:
        """The tile of this number; tiles are numbered image by image, row by row."""
        height, width = self.plan.tiles
        image, rest = split(number, height * width)
        row, column = split(rest, width)
        return Tile(
            local(self.ib, "image", image),
            local(self.ib, "y0", row * self.plan.tile[0]),
            local(self.ib, "x0", column * self.plan.tile[1]),
        )

    def is_filter(self, k: tir.PrimExpr) -> tir.PrimExpr:
        """Whether the block has a filter; constant where each block has as many as columns."""
        rest = self.plan.filters % self.plan.columns
        return k < self._end_of_filters if rest else tir.const(True, "bool")

    def channel_of_group(self, k: tir.PrimExpr) -> IntExpr:
        """The first channel, counted within the block, of the group that a filter belongs to."""
        problem, joined = self.problem, self.plan.joined
        if joined == 1:
            return 0
        return tir.truncmod(tir.truncdiv(k, problem.filters_of_group), joined) * problem.channels_of_group

    # --- loops and values

    @contextmanager
    def each(self, count: int, of_team: bool = False) -> Iterator[tir.PrimExpr]:
        """Loop over the indices below `count`, divided among the threads of the block, or of the team."""
        plan = self.plan
        threads, thread = (plan.team_threads, self.member) if of_team else (plan.threads, self.thread)
        # nvcc would unroll a loop of known length, and keep its addresses in registers from tile to tile.
        (item,) = variables(self.ib, "int32", "item")
        item[0] = thread
        with self.ib.while_loop(item[0] < count):
            yield local(self.ib, "index", item[0])
            item[0] = item[0] + threads

    def split_once(self, name: str, index: tir.PrimExpr, by: int) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """Quotient and remainder like `split`, each computed once and kept in a variable of the thread."""
        high = local(self.ib, name, tir.truncdiv(index, by))
        return high, local(self.ib, f"in_{name}", index - high * by)

    def uniform(self, name: str, value: tir.PrimExpr) -> tir.PrimExpr:
        """A value that is the same in all lanes of a warp.

        The shuffle shows this to nvcc, which can then keep the value in a uniform register.
        """
        return local(self.ib, name, from_lane(value, 0))

    def call(self, function: str, *arguments: IntExpr) -> None:
        """Call a function of `tensor_core` for its effect."""
        self.ib.emit(tir.call_extern("void", tensor_core.name(function), *arguments))


def split(index: tir.PrimExpr, by: int) -> tuple[tir.PrimExpr, tir.PrimExpr]:
    """Quotient and remainder."""
    return tir.truncdiv(index, by), tir.truncmod(index, by)


def address(array: BufferVar, index: int) -> tir.PrimExpr:
    """The address of an element of an array in registers or in global memory."""
    return tir.address_of(array[index])
