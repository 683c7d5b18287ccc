"""The first elements of long rows on CPUs: a heap of the best so far, whose worst few vectors reach."""

from __future__ import annotations

from .._floats import Locals
from .._kernel import between, ramp
from .._tvm import BufferVar, IRBuilder, tir
from .._types import IntExpr
from .order import Order
from .rows import Rows

LANES, VECTORS = 16, 4  # elements that are looked at together
LONG = 1 << 14  # elements of a row: shorter ones take next to no time by TVM's own function


def emit_first(
    ib: IRBuilder, data: Rows, order: Order, keep: int, values: Rows | None, indices: Rows | None
) -> None:
    """Write the first `keep` of each row, and their indices; `keep` is at most the length of a row."""
    length = int(data.length)
    with ib.for_range(0, data.count, "row", kind="parallel") as row:
        heap = _Heap(ib, keep)

        def key(index: tir.PrimExpr) -> tir.PrimExpr:
            """Less than the keys of all elements that come later; no two are the same."""
            return (order.rank(data[row, index]).astype("int64") << 32) + index.astype("int64")

        with ib.for_range(0, keep, "index") as index:
            heap.keys[index] = key(index)
        heap.order()

        def offer(index: tir.PrimExpr) -> None:
            with ib.if_scope(order.rank(data[row, index]) < heap.worst_rank()):
                heap.replace_worst(key(index))

        together = LANES * VECTORS
        with ib.for_range(0, (length - keep) // together, "group") as group:
            start = keep + group * together
            ranks = [order.rank(data[row, ramp(start + at * LANES, 1, LANES)]) for at in range(VECTORS)]
            is_better = _least(ib, ranks) < heap.worst_rank()
            with ib.if_scope(is_better), between(ib, start, start + together) as index:
                offer(index)
        with between(ib, length - (length - keep) % together, length) as index:
            offer(index)
        heap.sort()
        with ib.for_range(0, keep, "place") as place:
            index = (heap.keys[place] & tir.const(0xFFFFFFFF, "int64")).astype("int32")
            if values is not None:
                values[row, place] = data[row, index]
            if indices is not None:
                indices[row, place] = index.astype(indices.dtype)


def _least(ib: IRBuilder, vectors: list[tir.PrimExpr]) -> tir.PrimExpr:
    """The least number in vectors of int32."""
    (least, *others), local = vectors, Locals(ib, "global")
    for vector in others:
        least = tir.min(least, vector)
    lanes = ib.allocate("int32", LANES, "lanes", scope="global")
    lanes[ramp(0, 1, LANES)] = least
    result = local.variable("least", lanes[0])
    with between(ib, 1, LANES) as lane:
        result[0] = tir.min(result[0], lanes[lane])
    return result[0]


class _Heap:
    """Keys of which the first is the greatest, and each is at least those at twice its place, plus 1 or 2."""

    def __init__(self, ib: IRBuilder, size: int) -> None:
        self._ib, self._size = ib, size
        self._local = Locals(ib, "global")
        self.keys: BufferVar = ib.allocate("int64", size, "heap", scope="global")

    def order(self) -> None:
        with self._ib.for_range(0, self._size // 2, "place") as place:
            start = self._size // 2 - 1 - place
            self._sink(self._local("key", self.keys[start]), start, self._size)

    def worst_rank(self) -> tir.PrimExpr:
        return (self.keys[0] >> 32).astype("int32")

    def replace_worst(self, key: tir.PrimExpr) -> None:
        self._sink(self._local("key", key), 0, self._size)

    def sort(self) -> None:
        """From the least to the greatest, after which this is no heap."""
        with self._ib.for_range(0, self._size - 1, "place") as place:
            last = self._size - 1 - place
            key = self._local("key", self.keys[last])
            self.keys[last] = self.keys[0]
            self._sink(key, 0, last)

    def _sink(self, key: tir.PrimExpr, start: IntExpr, end: IntExpr) -> None:
        """Put a key at this place of a heap, and what is greater below it, one up."""
        keys, variable = self.keys, self._local.variable
        at = variable("at", tir.const(0, "int32") + start)
        below = variable("below", 2 * at[0] + 1)
        with self._ib.while_loop(below[0] < end):
            has_other = self._ib.if_scope(below[0] + 1 < end)
            with has_other, self._ib.if_scope(keys[below[0]] < keys[below[0] + 1]):
                below[0] = below[0] + 1
            with self._ib.if_scope(key < keys[below[0]]):
                keys[at[0]] = keys[below[0]]
                at[0] = below[0]
                below[0] = 2 * at[0] + 1
            with self._ib.else_scope():
                below[0] = tir.const(0, "int32") + end
        keys[at[0]] = key
