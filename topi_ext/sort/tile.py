"""A block's tile: keys in shared memory, each thread's share of them in registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from .._kernel import local, variables
from .._tvm import BufferVar, IRBuilder, te, tir
from .._types import IntExpr
from .order import Order


@dataclass(frozen=True)
class TileShape:
    """How a tile is divided among the threads of a block. An odd number of items avoids bank conflicts."""

    threads: int  # a power of two
    items: int

    @property
    def size(self) -> int:
        return self.threads * self.items


ONE_TILE = tuple(TileShape(threads, 7) for threads in (32, 64, 128, 256, 512))  # a row in one launch
MANY_TILES = TileShape(256, 11)  # also for a length known only at run time


def tile_shape(length: IntExpr) -> TileShape:
    """The smallest tile that holds a whole row, else the one with the best throughput."""
    if isinstance(length, int):
        return next((shape for shape in ONE_TILE if shape.size >= length), MANY_TILES)
    return MANY_TILES


class Tile:
    """`keys` and, if requested, `places`, the original index of each key."""

    def __init__(
        self, ib: IRBuilder, order: Order, shape: TileShape, thread: tir.PrimExpr, with_places: bool
    ) -> None:
        self.ib, self.order, self.shape, self.thread = ib, order, shape, thread
        self.own = thread * shape.items
        # Threads at the end of the keys access up to their number of items beyond it.
        padded = shape.size + shape.items
        self.keys = ib.allocate(order.held, (padded,), name="tile_keys", scope="shared")
        self._own_keys = ib.allocate(order.held, (shape.items,), name="own_keys", scope="local")
        self.places: Any = None
        self._own_places: Any = None
        if with_places:
            self.places = ib.allocate("int32", (padded,), name="tile_places", scope="shared")
            self._own_places = ib.allocate("int32", (shape.items,), name="own_places", scope="local")

    @contextmanager
    def striped(self, count: IntExpr) -> Iterator[tir.PrimExpr]:
        """The indices below `count` that this thread takes when neighbours access neighbouring memory."""
        with self._each_item() as item:
            index = self.thread + item * self.shape.threads
            with self.ib.if_scope(index < count):
                yield index

    def put(self) -> None:
        """Store this thread's items in its part of shared memory."""
        with self._each_item() as item:
            self.keys[self.own + item] = self._own_keys[item]
            if self.places:
                self.places[self.own + item] = self._own_places[item]

    def sort_own(self, count: IntExpr) -> None:
        """Sort this thread's items in registers; their original indices are their positions.

        Odd-even transposition: it exchanges only neighbors, so it is stable.
        """
        ib, keys, places = self.ib, self._own_keys, self._own_places
        with self._each_item() as item:
            keys[item] = self.keys[self.own + item]
            if places:
                places[item] = self.own + item
        with self._each_item() as turn, ib.for_range(0, self.shape.items // 2, "pair", kind="unroll") as pair:
            left = pair * 2 + turn % 2
            ahead = self.order.before(keys[left + 1], keys[left])
            with ib.if_scope((self.own + left + 1 < count) & ahead):
                self._exchange(keys, left)
                if places:
                    self._exchange(places, left)

    def merge(
        self, a: IntExpr, a_length: tir.PrimExpr, b: IntExpr, b_length: tir.PrimExpr, diagonal: tir.PrimExpr
    ) -> None:
        """Merge this thread's share of the runs at `a` and `b`, from their `diagonal`-th key on.

        The keys are put in registers, with the indices in the tile that they had.
        """
        ib = self.ib
        diagonal = local(ib, "own_diagonal", te.min(diagonal, a_length + b_length))
        from_a = self._count_from_a(a, a_length, b, b_length, diagonal)
        a_end, b_end = a + a_length, b + b_length
        a_next, b_next = variables(ib, "int32", "a_next", "b_next")
        a_key, b_key = variables(ib, self.order.held, "a_key", "b_key")
        a_next[0] = a + from_a
        b_next[0] = b + diagonal - from_a
        a_key[0] = self.keys[a_next[0]]
        b_key[0] = self.keys[b_next[0]]
        with self._each_item() as item:
            ahead = (a_next[0] >= a_end) | self.order.before(b_key[0], a_key[0])
            from_b = ib.let("from_b", (b_next[0] < b_end) & ahead)
            source = local(ib, "source", tir.Select(from_b, b_next[0], a_next[0]))
            self._own_keys[item] = tir.Select(from_b, b_key[0], a_key[0])
            if self.places:
                self._own_places[item] = source
            following = local(ib, "following", self.keys[source + 1])
            with ib.if_scope(from_b):
                b_next[0] = source + 1
                b_key[0] = following
            with ib.else_scope():
                a_next[0] = source + 1
                a_key[0] = following

    def look_up_places(self) -> None:
        """After a merge: the elements of `places` at the indices that this thread's keys had."""
        if self.places:
            with self._each_item() as item:
                self._own_places[item] = self.places[self._own_places[item]]

    def _count_from_a(
        self, a: IntExpr, a_length: tir.PrimExpr, b: IntExpr, b_length: tir.PrimExpr, diagonal: tir.PrimExpr
    ) -> tir.PrimExpr:
        """The number of keys from `a` among the first `diagonal` keys of the merged runs."""
        ib = self.ib
        low, high = variables(ib, "int32", "own_low", "own_high")
        low[0] = te.max(diagonal - b_length, 0)
        high[0] = te.min(diagonal, a_length)
        with ib.while_loop(low[0] < high[0]):
            middle = local(ib, "middle", (low[0] + high[0]) >> 1)
            a_middle = local(ib, "a_middle", self.keys[a + middle])
            b_middle = local(ib, "b_middle", self.keys[b + diagonal - 1 - middle])
            with ib.if_scope(self.order.before(b_middle, a_middle)):
                high[0] = middle
            with ib.else_scope():
                low[0] = middle + 1
        return low[0]

    def _each_item(self) -> AbstractContextManager[tir.PrimExpr]:
        return self.ib.for_range(0, self.shape.items, "item", kind="unroll")

    def _exchange(self, array: BufferVar, left: tir.PrimExpr) -> None:
        with self.ib.new_scope():
            kept = local(self.ib, "kept", array[left])
            array[left] = array[left + 1]
            array[left + 1] = kept
