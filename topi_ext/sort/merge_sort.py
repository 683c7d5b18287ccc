"""A stable merge sort of many rows at once, emitted as CUDA kernels.

1. One kernel sorts tiles: each thread sorts a few keys in registers, then the runs of a block's threads
   are merged pairwise in shared memory. A row that fits into one tile is done.
2. Each further pass merges pairs of runs, one block a tile of the result. The block finds by search
   which part of either run makes up its tile (the "merge path" of Green, McColl and Bader), fetches just
   these keys, and each thread merges its share of them in shared memory.

Work is balanced for any keys. Rows share blockIdx.x with the tiles, so their number has no limit but TVM's
own, 2**31 elements per tensor. No access depends on the keys being in order. Barriers are placed by hand,
each in control flow that is uniform over the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

from .._kernel import barrier, ceil_div, clamp, launch, local, variables
from .._tvm import BufferVar, IRBuilder, te, tir, topi
from .._types import Condition, IntExpr
from .order import Order
from .tile import Tile, TileShape, tile_shape


@dataclass(frozen=True)
class Buffers:
    """The buffers that passes write: the last one `out`, those before it `swap` and `scratch` in turn.

    Rows of `swap` and `scratch` are as long as those that are sorted; without `scratch`, `out` takes its
    place. Rows that fit into one tile need neither. Each is `Rows`, or indexed in the same way.
    """

    out: Any
    swap: Any = None
    scratch: Any = None

    def __getitem__(self, name: str) -> Any:
        return self.out if name == "scratch" and self.scratch is None else getattr(self, name)


READ_FROM = {"out": "swap", "swap": "scratch", "scratch": "swap"}  # by the buffer that the pass writes


def emit_sort(
    ib: IRBuilder,
    rows: IntExpr,
    length: IntExpr,
    order: Order,
    read_key: Callable,
    keys: Buffers,
    read_payload: Callable | None = None,
    payload: Buffers | None = None,
    keep: int | None = None,
    only_if: Condition | None = None,
) -> None:
    """Emit the kernels that sort `rows` rows of `length` keys, and a payload with them.

    Parameters
    ----------
    rows, length : int or PrimExpr
        Known on the host when the kernels are launched; either may be 0.
    order : Order
        Of the keys; its dtype is that of `read_key` and of the buffers of `keys`.
    read_key, read_payload : (row, index) -> PrimExpr
        What to sort; called within a kernel, so it may compute (a composite key, the index itself).
    keys, payload : Buffers
        None of them may overlap what is read. The payload is of any type.
    keep : int, optional
        Sort only the first `keep` of each row: rows of `out` hold no more, and later passes skip the rest. It
        needs a `scratch`, unless the length is known and fits into one tile.
    only_if : () -> PrimExpr, optional
        Whether to sort, as the kernels find out; else nothing is written.
    """
    rows, length = _host_int32(ib, rows, "rows"), _host_int32(ib, length, "length")
    if any(isinstance(extent, int) and extent == 0 for extent in (rows, length)):
        return
    shape = tile_shape(length)
    tiles = ceil_div(length, shape.size)
    if isinstance(length, int):
        passes = (tiles - 1).bit_length()
    else:
        tiles = ib.let("tiles", tiles)
        passes = ib.let("passes", topi.math.ceil_log2(te.max(tiles, 1)))
    if not (isinstance(passes, int) and passes == 0):
        for name, buffers in {"keys": keys, "payload": payload}.items():
            if buffers and (buffers.swap is None or (keep is not None and buffers.scratch is None)):
                needed = "`swap`" if keep is None else "`swap` and `scratch`, as `out` holds less than a row"
                raise ValueError(f"rows of {length} do not fit into one tile: {name} needs a {needed}")
    sort = _Sort(ib, shape, rows, length, tiles, order, keys, payload, keep, only_if)
    with ib.if_scope(tir.all(*[tir.IntImm("int32", 0) < extent for extent in (rows, length)])):
        for written in _each_target(ib, keys, passes):
            _sort_tiles(sort, read_key, read_payload, written)
        if isinstance(passes, int) and passes == 0:
            return
        with ib.for_range(0, passes, "merge_pass") as merge_pass:
            for written in _each_target(ib, keys, passes - 1 - merge_pass):
                _merge_runs(sort, merge_pass, written)


@dataclass(frozen=True)
class _Sort:
    """The parameters of both kernels; numbers are int or computed on the host."""

    ib: IRBuilder
    shape: TileShape
    rows: IntExpr
    length: IntExpr
    tiles: IntExpr
    order: Order
    keys: Buffers
    payload: Buffers | None
    keep: int | None
    only_if: Condition | None

    def tile(self, thread: tir.PrimExpr) -> Tile:
        return Tile(self.ib, self.order, self.shape, thread, with_places=self.payload is not None)

    def wanted(self, written: str, start: tir.PrimExpr, count: tir.PrimExpr) -> tir.PrimExpr:
        """The number of keys to write of the `count` from `start` on."""
        return te.min(count, self.keep - start) if written == "out" and self.keep is not None else count


def _sort_tiles(sort: _Sort, read_key: Callable, read_payload: Callable | None, written: str) -> None:
    """Sort each tile of each row."""
    ib, shape, order = sort.ib, sort.shape, sort.order
    with launch(ib, sort.rows * sort.tiles, shape.threads, sort.only_if) as (block, thread):
        row = local(ib, "row", tir.truncdiv(block, sort.tiles))
        start = local(ib, "start", tir.truncmod(block, sort.tiles) * shape.size)
        count = local(ib, "count", te.min(shape.size, sort.length - start))
        tile = sort.tile(thread)

        with tile.striped(count) as index:
            tile.keys[index] = order.hold(read_key(row, start + index))
        barrier(ib)
        tile.sort_own(count)
        tile.put()
        barrier(ib)

        with ib.for_range(0, shape.threads.bit_length() - 1, "doubling") as doubling:
            run = local(ib, "run", tir.const(shape.items, "int32") << doubling)
            a = local(ib, "a", ((thread >> (doubling + 1)) << (doubling + 1)) * shape.items)
            a_length = local(ib, "a_length", clamp(count - a, 0, run))
            b_length = local(ib, "b_length", clamp(count - a - run, 0, run))
            tile.merge(a, a_length, a + run, b_length, tile.own - a)
            tile.look_up_places()
            barrier(ib)
            tile.put()
            barrier(ib)

        with tile.striped(sort.wanted(written, start, count)) as index:
            sort.keys[written][row, start + index] = order.give_back(tile.keys[index])
            if sort.payload and read_payload:
                sort.payload[written][row, start + index] = read_payload(row, start + tile.places[index])


def _merge_runs(sort: _Sort, merge_pass: tir.PrimExpr, written: str) -> None:
    """Merge the runs 2i and 2i+1 of each row, all of them 2**merge_pass tiles long."""
    ib, shape, order, read = sort.ib, sort.shape, sort.order, READ_FROM[written]
    pair_tiles = tir.const(2, "int32") << merge_pass
    pairs = ceil_div(sort.tiles, pair_tiles)
    kept = run = tir.const(shape.size, "int32") << merge_pass
    if sort.keep is not None:
        kept_tiles = ceil_div(sort.keep, shape.size)
        pair_tiles, kept = te.min(pair_tiles, kept_tiles), te.min(run, kept_tiles * shape.size)

    with launch(ib, sort.rows * pairs * pair_tiles, shape.threads, sort.only_if) as (block, thread):
        pair = local(ib, "pair", tir.truncdiv(block, pair_tiles))
        row = local(ib, "row", tir.truncdiv(pair, pairs))
        a_start = local(ib, "a_start", tir.truncmod(pair, pairs) * (run * 2))
        b_start = local(ib, "b_start", a_start + te.min(run, sort.length - a_start))
        start = local(ib, "start", tir.truncmod(block, pair_tiles) * shape.size)

        def key_at(index: tir.PrimExpr) -> tir.PrimExpr:
            return order.hold(sort.keys[read][row, index])

        a = _Run(key_at, a_start, local(ib, "a_length", te.min(kept, b_start - a_start)))
        b = _Run(key_at, b_start, local(ib, "b_length", te.min(kept, sort.length - b_start)))
        count = local(ib, "count", te.min(shape.size, a.length + b.length - start))

        with ib.if_scope(count > 0):
            cuts = _cut_runs(ib, order, shape, thread, a, b, start)
            a_count = local(ib, "a_count", cuts[1] - cuts[0])
            a_from = local(ib, "a_from", a_start + cuts[0])
            b_from = local(ib, "b_from", b_start + start - cuts[0] - a_count)

            def origin(index: tir.PrimExpr) -> tir.PrimExpr:
                """The index in the row of the key at this index of the tile."""
                return tir.Select(index < a_count, a_from, b_from) + index

            tile = sort.tile(thread)
            with tile.striped(count) as index:
                tile.keys[index] = key_at(origin(index))
            barrier(ib)
            tile.merge(0, a_count, a_count, count - a_count, tile.own)
            barrier(ib)
            tile.put()
            barrier(ib)
            to = a_start + start
            with tile.striped(sort.wanted(written, to, count)) as index:
                sort.keys[written][row, to + index] = order.give_back(tile.keys[index])
                if sort.payload:
                    value = sort.payload[read][row, origin(tile.places[index])]
                    sort.payload[written][row, to + index] = value


@dataclass(frozen=True)
class _Run:
    key_at: Callable[[tir.PrimExpr], tir.PrimExpr]
    start: tir.PrimExpr
    length: tir.PrimExpr

    def key(self, index: tir.PrimExpr) -> tir.PrimExpr:
        """The key at this index; for an index outside the run, any key of the run."""
        return self.key_at(self.start + clamp(index, 0, self.length - 1))


def _cut_runs(
    ib: IRBuilder, order: Order, shape: TileShape, thread: tir.PrimExpr, a: _Run, b: _Run, start: tir.PrimExpr
) -> BufferVar:
    """How many of the first `start` keys, and of the first `start + tile`, of the merged runs are from `a`.

    Each half of the block searches for one of the two. In a round, every thread probes two neighboring
    positions, between which the cut may lie, so a million keys take three rounds instead of twenty.
    """
    probes = shape.threads // 2
    cuts = ib.allocate("int32", (2,), name="cuts", scope="shared")
    half, probe = tir.truncdiv(thread, probes), tir.truncmod(thread, probes)
    diagonal = local(ib, "diagonal", te.min(start + half * shape.size, a.length + b.length))
    end = local(ib, "end", te.min(diagonal, a.length))
    low, span, stride = variables(ib, "int32", "low", "span", "stride")

    # The cut lies in [low, low + span]; span is the same for the whole block, so all leave the loop at once.
    low[0] = te.max(diagonal - b.length, 0)
    span[0] = te.min(a.length, b.length)
    with ib.while_loop(span[0] > 0):
        stride[0] = tir.truncdiv(span[0], probes) + 1
        left = local(ib, "left", low[0] + probe * stride[0])
        right = local(ib, "right", left + stride[0] - 1)
        # All four keys are loaded before the first is compared.
        a_left, a_right = local(ib, "a_left", a.key(left - 1)), local(ib, "a_right", a.key(right))
        b_left = local(ib, "b_left", b.key(diagonal - left))
        b_right = local(ib, "b_right", b.key(diagonal - 1 - right))
        further_left = (probe > 0) & ((left > end) | order.before(b_left, a_left))
        far_enough = (right >= end) | order.before(b_right, a_right)
        with ib.if_scope(tir.Not(further_left) & far_enough):
            cuts[half] = left
        barrier(ib)
        low[0] = cuts[half]
        span[0] = stride[0] - 1
        barrier(ib)
    with ib.if_scope(probe == 0):
        cuts[half] = low[0]
    barrier(ib)
    return cuts


def _each_target(ib: IRBuilder, keys: Buffers, passes_left: IntExpr) -> Iterator[str]:
    """Bind the buffers of a pass, by the number of passes after it, each in its branch of the host code."""
    even = "out" if keys.scratch is None else "scratch"
    if isinstance(passes_left, int):
        yield "out" if passes_left == 0 else "swap" if passes_left % 2 else even
        return
    with ib.if_scope(passes_left % 2 == 1):
        yield "swap"
    if keys.scratch is not None:
        with ib.if_scope(passes_left == 0):
            yield "out"
    with ib.if_scope(tir.all(passes_left % 2 == 0, passes_left > (-1 if keys.scratch is None else 0))):
        yield even


def _host_int32(ib: IRBuilder, extent: IntExpr, name: str) -> IntExpr:
    """A number of keys or rows as an int, or as an int32 computed on the host."""
    if isinstance(extent, (int, tir.IntImm)):
        return int(extent)
    return ib.let(name, extent.astype("int32"))
