"""Copies of pixels and weights from global to shared memory: their size, and when other threads see them.

`cuda_pixels` and `cuda_weights` decide which values go where; this module gives them `Copies.copy`, and
`Chunk`, the part of the reduction that a copy is for.

Size and alignment
------------------
A copy has `units[...]` channels of one pixel, or of one filter and tap. Where the number of channels is even,
this is its greatest common divisor with the channels of a piece: each copy is then 2, 4, 8 or 16 bytes that
are aligned in both memories, and is asynchronous from 4 bytes on (cp.async, from sm_80 on). Where the number
of channels is odd, a thread reads those of a piece one by one and writes them together. The weights of joined
groups begin anywhere in a piece, so an odd number of channels is copied one by one.

A copy writes zeros for what does not exist: pixels in the padding, filters after the last one, channels after
the last one. It reads nothing in this case, and its address in global memory is that of element 0, which
exists. A copy with fewer channels than a piece leaves the rest of its piece as it is.

Synchronization
---------------
1. A thread starts copies, and closes a group of them by `commit`.
2. `wait(pending)` waits until all groups of this thread except the last `pending` ones are complete, and
   makes them visible to wgmma, which reads shared memory through another proxy.
3. A barrier after that makes them visible to the other threads.

All threads must close the same number of groups, so a group may be empty. Before sm_80, copies are
synchronous and the barrier is all that counts.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from .._tvm import te, tir
from .._types import IntExpr
from .cuda_block import Block
from .plan import PIECE


class Chunk(NamedTuple):
    """What a chunk of the reduction consists of: its first channel, and for plans `by_taps` its tap.

    `offset` is the distance of that tap from the first one in pixels of the data, as (y, x).
    """

    first_channel: IntExpr
    offset: tuple[IntExpr, IntExpr]


class Copies:
    """Emits copies for a block; shared by the phases that load."""

    def __init__(self, block: Block) -> None:
        self.block, self.plan, self.problem = block, block.plan, block.problem
        per_piece, part = self.plan.per_piece, self.problem.parts["data"]
        self._size = PIECE // per_piece  # bytes of a channel
        self._aligned = {
            # Parts of wider tensors begin and end at multiples of eight channels.
            "data": gcd(self.plan.channels, per_piece, part.first, part.whole),
            "weight": gcd(self.problem.channels_of_group, per_piece),
        }
        # Channels of a copy, of pixels and of weights.
        self.units = {name: count if count > 1 else per_piece for name, count in self._aligned.items()}
        if self.plan.joined > 1:
            self.units["weight"] = self._aligned["weight"]

    # --- what is copied

    def copy(
        self,
        target: tir.PrimExpr,
        name: str,
        source: tir.PrimExpr,
        inside: tir.PrimExpr,
        channel: tir.PrimExpr,
    ) -> None:
        """Copy `units[name]` channels from `channel` on, or zeros where `inside` is 0.

        `target` is a byte of shared memory, `source` an index into the buffer `name`.
        """
        block, count = self.block, self.units[name]
        source = tir.address_of(block.buffers[name][source])
        if count == self._aligned[name]:
            block.call(f"copy_async<{count * self._size}>", block.shared(target), source, inside != 0)
        else:
            left = te.min(self.plan.channels - channel, tir.const(count))
            block.call(
                f"copy_few<{self._size}>", block.shared(target), source, tir.Select(inside != 0, left, 0)
            )

    def chunk(self, chunk: IntExpr) -> Chunk:
        """The chunk of this number; plans `by_taps` have all channels of a tap before those of the next."""
        plan = self.plan
        if plan.resident:
            return Chunk(0, (0, 0))
        if not plan.by_taps:
            return Chunk(chunk * (plan.planes * plan.per_piece), (0, 0))
        tap = self.tap_of(chunk)
        row, column = tir.truncdiv(tap, self.problem.kernel[1]), tir.truncmod(tap, self.problem.kernel[1])
        of_tap = tir.truncmod(chunk, plan.chunks // plan.taps)
        dilation_y, dilation_x = self.problem.dilation
        return Chunk(of_tap * (plan.planes * plan.per_piece), (row * dilation_y, column * dilation_x))

    def tap_of(self, chunk: IntExpr) -> tir.PrimExpr:
        """The tap that a chunk is for, in a plan `by_taps`."""
        return tir.truncdiv(chunk, self.plan.chunks // self.plan.taps)

    def is_channel(self, channel: tir.PrimExpr) -> tir.PrimExpr:
        """Whether a channel exists; constant where no chunk goes beyond the last channel."""
        rest = not self.plan.resident and self.plan.channels % (self.plan.planes * self.plan.per_piece)
        return channel < self.plan.channels if rest else tir.const(True, "bool")

    def byte_in_piece(self, channel: tir.PrimExpr) -> tir.PrimExpr:
        return tir.truncmod(channel, self.plan.per_piece) * self._size

    # --- when it is there

    def commit(self) -> None:
        """Close the group of the copies that this thread has started."""
        self.block.call("copy_commit")

    def wait(self, pending: int = 0) -> None:
        """Wait for this thread's groups, except the last `pending` ones; other threads need a barrier too."""
        self.block.call(f"copy_wait<{pending}>")
        if self.plan.is_async:
            self.block.call("see_copies")
