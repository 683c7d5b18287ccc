"""A stable merge sort of many rows at once, emitted as CUDA kernels.

1. One kernel sorts tiles: each thread sorts a few keys in registers, then the runs of a block's threads
   are merged pairwise in shared memory. A row that fits into one tile is done.
2. Each further pass merges pairs of runs, one block a tile of the result. The block finds by search
   which part of either run makes up its tile (the "merge path" of Green, McColl and Bader), fetches just
   these keys, and each thread merges its share of them in shared memory.

All work is balanced whatever the keys are, there is no limit on rows (they share blockIdx.x with the
tiles), and nothing depends on the keys being in order: a search stays within its bounds for any keys.

Barriers are placed by hand, each in control flow that is uniform over the block. The attribute
`hand_threaded`, which keeps TVM from adding its own, must stand inside the thread extents: outside them
it is lost, and barriers in divergent branches hang the GPU.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Optional

from tvm import te, tir, topi

from .order import Order


@dataclass(frozen=True)
class TileShape:
    """How a block shares out its tile. An odd number of items a thread avoids bank conflicts."""

    threads: int  # a power of two
    items: int

    @property
    def size(self) -> int:
        return self.threads * self.items


ONE_TILE = tuple(TileShape(threads, 7) for threads in (32, 64, 128, 256, 512))  # a row in one launch
MANY_TILES = TileShape(256, 11)  # also for a length known only at run time


def tile_shape(length) -> TileShape:
    """The smallest tile that holds a whole row, else the one with the best throughput."""
    if isinstance(length, int):
        return next((shape for shape in ONE_TILE if shape.size >= length), MANY_TILES)
    return MANY_TILES


class PingPong:
    """Rows along `axis` of two buffers of one shape, of which a pass reads one and writes the other."""

    def __init__(self, ib, out, swap, axis=-1):
        self.out, self.swap = ib.buffer_ptr(out), ib.buffer_ptr(swap)
        self.place = places(out.shape, axis)

    def read(self, row, index, from_out: bool):
        return (self.out if from_out else self.swap)[self.place(row, index)]

    def write(self, row, index, value, to_out: bool):
        (self.out if to_out else self.swap)[self.place(row, index)] = value


def places(shape, axis) -> Callable:
    """The function from (row, index along the axis) to the indices of a buffer of this shape."""
    others = list(shape)
    axis %= len(others)
    del others[axis]

    def place(row, index):
        at = []
        for extent in reversed(others[1:]):
            at.insert(0, tir.truncmod(row, extent))
            row = tir.truncdiv(row, extent)
        at = [row, *at] if others else []
        return [*at[:axis], index, *at[axis:]]

    return place


def emit_sort(
    ib,
    rows,
    length,
    order: Order,
    read_key: Callable,
    keys: PingPong,
    read_payload: Optional[Callable] = None,
    payload: Optional[PingPong] = None,
    keep=None,
) -> None:
    """Emit the kernels that sort `rows` rows of `length` keys, and a payload with them.

    Parameters
    ----------
    rows, length : int or PrimExpr
        Known on the host when the kernels are launched; either may be 0.
    order : Order
        Of the keys; its dtype is that of `read_key` and `keys`.
    read_key, read_payload : (row, index) -> PrimExpr
        What to sort; called within a kernel, so it may compute (a composite key, the index itself).
    keys, payload : PingPong
        The result is in their `out`; `swap` is scratch, and neither may overlap what is read.
    keep : int, optional
        Only the first `keep` of each row are wanted; what follows them in `out` is undefined.
    """
    rows, length = _host_int32(ib, rows, "rows"), _host_int32(ib, length, "length")
    if any(isinstance(extent, int) and extent == 0 for extent in (rows, length)):
        return
    shape = tile_shape(length)
    tiles = _ceil_div(length, shape.size)
    if isinstance(length, int):
        passes = (tiles - 1).bit_length()
    else:
        tiles = ib.let("tiles", tiles)
        passes = ib.let("passes", topi.math.ceil_log2(te.max(tiles, 1)))

    with ib.if_scope(tir.all(*[tir.IntImm("int32", 0) < extent for extent in (rows, length)])):
        data = _Rows(ib, rows, length, order, keys, payload)
        # Every pass writes the buffer that the one before did not; the last one writes `out`.
        for to_out in _by_parity(ib, passes):
            _sort_tiles(data, shape, tiles, read_key, read_payload, to_out)
        if isinstance(passes, int) and passes == 0:
            return
        with ib.for_range(0, passes, "merge_pass") as merge_pass:
            for to_out in _by_parity(ib, passes - 1 - merge_pass):
                _merge_runs(data, shape, tiles, merge_pass, keep, to_out)


@dataclass(frozen=True)
class _Rows:
    """What both kernels work on."""

    ib: object
    count: object
    length: object
    order: Order
    keys: PingPong
    payload: Optional[PingPong]


def _sort_tiles(data, shape, tiles, read_key, read_payload, to_out):
    """Sort each tile of each row by itself."""
    ib = data.ib
    with _launch(ib, data.count * tiles, shape.threads) as (block, thread):
        row = _local(ib, "row", tir.truncdiv(block, tiles))
        start = _local(ib, "start", tir.truncmod(block, tiles) * shape.size)
        count = _local(ib, "count", te.min(shape.size, data.length - start))
        tile = _Tile(data, shape, thread)

        with tile.striped(count) as index:
            tile.keys[index] = data.order.hold(read_key(row, start + index))
        _barrier(ib)
        tile.sort_own(count)
        tile.put()
        _barrier(ib)

        with ib.for_range(0, shape.threads.bit_length() - 1, "doubling") as doubling:
            run = _local(ib, "run", tir.const(shape.items, "int32") << doubling)
            first = _local(ib, "first", ((thread >> (doubling + 1)) << (doubling + 1)) * shape.items)
            a_length = _local(ib, "a_length", _clamp(count - first, 0, run))
            b_length = _local(ib, "b_length", _clamp(count - first - run, 0, run))
            tile.merge(first, a_length, first + run, b_length, tile.own - first)
            tile.sources_to_places()
            _barrier(ib)
            tile.put()
            _barrier(ib)

        with tile.striped(count) as index:
            data.keys.write(row, start + index, data.order.give_back(tile.keys[index]), to_out)
            if data.payload:
                value = read_payload(row, start + tile.places[index])
                data.payload.write(row, start + index, value, to_out)


def _merge_runs(data, shape, tiles, merge_pass, keep, to_out):
    """Merge the runs 2i and 2i+1 of each row, all of them 2**merge_pass tiles long."""
    ib = data.ib
    pair_tiles = tir.const(2, "int32") << merge_pass
    pairs = tir.truncdiv(tiles + pair_tiles - 1, pair_tiles)
    kept = run = tir.const(shape.size, "int32") << merge_pass
    if keep is not None:
        kept_tiles = _ceil_div(keep, shape.size)
        pair_tiles, kept = te.min(pair_tiles, kept_tiles), te.min(run, kept_tiles * shape.size)

    with _launch(ib, data.count * pairs * pair_tiles, shape.threads) as (block, thread):
        pair = _local(ib, "pair", tir.truncdiv(block, pair_tiles))
        row = _local(ib, "row", tir.truncdiv(pair, pairs))
        a_start = _local(ib, "a_start", tir.truncmod(pair, pairs) * (run * 2))
        b_start = _local(ib, "b_start", a_start + te.min(run, data.length - a_start))
        a_length = _local(ib, "a_length", te.min(kept, b_start - a_start))
        b_length = _local(ib, "b_length", te.min(kept, data.length - b_start))
        start = _local(ib, "start", tir.truncmod(block, pair_tiles) * shape.size)
        count = _local(ib, "count", te.min(shape.size, a_length + b_length - start))

        def read_held(index):
            return data.order.hold(data.keys.read(row, index, not to_out))

        with ib.if_scope(count > 0):
            a, b = _Run(read_held, a_start, a_length), _Run(read_held, b_start, b_length)
            cuts = _cut_runs(ib, data.order, shape, thread, a, b, start)
            a_count = _local(ib, "a_count", cuts[1] - cuts[0])
            a_from = _local(ib, "a_from", a_start + cuts[0])
            b_from = _local(ib, "b_from", b_start + start - cuts[0] - a_count)

            def origin(index):
                """Where in the row the key at this index of the tile comes from."""
                return tir.Select(index < a_count, a_from, b_from) + index

            tile = _Tile(data, shape, thread)
            with tile.striped(count) as index:
                tile.keys[index] = read_held(origin(index))
            _barrier(ib)
            tile.merge(0, a_count, a_count, count - a_count, tile.own)
            _barrier(ib)
            tile.put()
            _barrier(ib)
            with tile.striped(count) as index:
                to = a_start + start + index
                data.keys.write(row, to, data.order.give_back(tile.keys[index]), to_out)
                if data.payload:
                    value = data.payload.read(row, origin(tile.places[index]), not to_out)
                    data.payload.write(row, to, value, to_out)


@dataclass(frozen=True)
class _Run:
    read_held: Callable
    start: object
    length: object

    def key(self, index):
        """The key at this index; of indices outside the run, some key of it."""
        return self.read_held(self.start + _clamp(index, 0, self.length - 1))


def _cut_runs(ib, order, shape, thread, a, b, start):
    """How many of the first `start` keys, and of the first `start + tile`, of the merged runs are from `a`.

    Either half of the block searches for one of the two. Every thread probes two neighbouring places a
    round, between which the cut may lie, so a million keys take three rounds and not twenty.
    """
    probes = shape.threads // 2
    cuts = ib.allocate("int32", (2,), name="cuts", scope="shared")
    half, probe = tir.truncdiv(thread, probes), tir.truncmod(thread, probes)
    diagonal = _local(ib, "diagonal", te.min(start + half * shape.size, a.length + b.length))
    end = _local(ib, "end", te.min(diagonal, a.length))
    names = ("low", "span", "stride")
    low, span, stride = (ib.allocate("int32", (1,), name, scope="local") for name in names)

    # The cut lies in [low, low + span]; span is the same for the whole block, so all leave the loop at once.
    low[0] = te.max(diagonal - b.length, 0)
    span[0] = te.min(a.length, b.length)
    with ib.while_loop(span[0] > 0):
        stride[0] = tir.truncdiv(span[0], probes) + 1
        left = _local(ib, "left", low[0] + probe * stride[0])
        right = _local(ib, "right", left + stride[0] - 1)
        # All four keys are fetched before the first is looked at.
        a_left, a_right = _local(ib, "a_left", a.key(left - 1)), _local(ib, "a_right", a.key(right))
        b_left = _local(ib, "b_left", b.key(diagonal - left))
        b_right = _local(ib, "b_right", b.key(diagonal - 1 - right))
        further_left = (probe > 0) & ((left > end) | order.before(b_left, a_left))
        far_enough = (right >= end) | order.before(b_right, a_right)
        with ib.if_scope(tir.Not(further_left) & far_enough):
            cuts[half] = left
        _barrier(ib)
        low[0] = cuts[half]
        span[0] = stride[0] - 1
        _barrier(ib)
    with ib.if_scope(probe == 0):
        cuts[half] = low[0]
    _barrier(ib)
    return cuts


class _Tile:
    """A block's tile: in shared memory, and this thread's share of it in registers."""

    def __init__(self, data, shape, thread):
        ib = data.ib
        self.ib, self.shape, self.order, self.thread = ib, shape, data.order, thread
        self.own = thread * shape.items
        # Threads beyond the end of the keys run over it by up to their number of items.
        padded = shape.size + shape.items
        self.keys = ib.allocate(self.order.held, (padded,), name="tile_keys", scope="shared")
        self.own_keys = ib.allocate(self.order.held, (shape.items,), name="own_keys", scope="local")
        self.places = self.own_places = None
        if data.payload:
            self.places = ib.allocate("int32", (padded,), name="tile_places", scope="shared")
            self.own_places = ib.allocate("int32", (shape.items,), name="own_places", scope="local")

    def each_item(self):
        return self.ib.for_range(0, self.shape.items, "item", kind="unroll")

    @contextmanager
    def striped(self, count):
        """The indices below `count` that this thread takes when neighbours access neighbouring memory."""
        with self.each_item() as item:
            index = self.thread + item * self.shape.threads
            with self.ib.if_scope(index < count):
                yield index

    def put(self):
        """This thread's items into its place in shared memory."""
        with self.each_item() as item:
            self.keys[self.own + item] = self.own_keys[item]
            if self.places:
                self.places[self.own + item] = self.own_places[item]

    def sources_to_places(self):
        """After a merge `own_places` says where the keys were in the tile; look up what they carry there."""
        if self.places:
            with self.each_item() as item:
                self.own_places[item] = self.places[self.own_places[item]]

    def sort_own(self, count):
        """Odd-even transposition: it exchanges neighbours only, so it is stable."""
        ib, keys, places = self.ib, self.own_keys, self.own_places
        with self.each_item() as item:
            keys[item] = self.keys[self.own + item]
            if places:
                places[item] = self.own + item
        with self.each_item() as turn, ib.for_range(0, self.shape.items // 2, "pair", kind="unroll") as pair:
            left = pair * 2 + turn % 2
            ahead = self.order.before(keys[left + 1], keys[left])
            with ib.if_scope((self.own + left + 1 < count) & ahead):
                self._exchange(keys, left)
                if places:
                    self._exchange(places, left)

    def _exchange(self, array, left):
        with self.ib.new_scope():
            kept = _local(self.ib, "kept", array[left])
            array[left] = array[left + 1]
            array[left + 1] = kept

    def merge(self, a, a_length, b, b_length, diagonal):
        """Merge two runs of the tile from the given diagonal on, this thread's items into registers."""
        ib = self.ib
        a_end, b_end = a + a_length, b + b_length
        diagonal = _local(ib, "own_diagonal", te.min(diagonal, a_length + b_length))
        names = ("own_low", "own_high", "a_next", "b_next")
        low, high, a_next, b_next = (ib.allocate("int32", (1,), name, scope="local") for name in names)
        names = ("a_key", "b_key")
        a_key, b_key = (ib.allocate(self.order.held, (1,), name, scope="local") for name in names)

        low[0] = te.max(diagonal - b_length, 0)
        high[0] = te.min(diagonal, a_length)
        with ib.while_loop(low[0] < high[0]):
            middle = _local(ib, "middle", (low[0] + high[0]) >> 1)
            a_middle = _local(ib, "a_middle", self.keys[a + middle])
            b_middle = _local(ib, "b_middle", self.keys[b + diagonal - 1 - middle])
            with ib.if_scope(self.order.before(b_middle, a_middle)):
                high[0] = middle
            with ib.else_scope():
                low[0] = middle + 1

        a_next[0] = a + low[0]
        b_next[0] = b + diagonal - low[0]
        a_key[0] = self.keys[a_next[0]]
        b_key[0] = self.keys[b_next[0]]
        with self.each_item() as item:
            ahead = (a_next[0] >= a_end) | self.order.before(b_key[0], a_key[0])
            from_b = ib.let("from_b", (b_next[0] < b_end) & ahead)
            source = _local(ib, "source", tir.Select(from_b, b_next[0], a_next[0]))
            self.own_keys[item] = tir.Select(from_b, b_key[0], a_key[0])
            if self.places:
                self.own_places[item] = source
            following = _local(ib, "following", self.keys[source + 1])
            with ib.if_scope(from_b):
                b_next[0] = source + 1
                b_key[0] = following
            with ib.else_scope():
                a_next[0] = source + 1
                a_key[0] = following


@contextmanager
def _launch(ib, blocks, threads):
    """A kernel whose barriers are placed by hand; gives blockIdx.x and threadIdx.x."""
    with ib.new_scope():
        block, thread = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
        ib.scope_attr(block, "thread_extent", blocks)
        ib.scope_attr(thread, "thread_extent", threads)
        ib.scope_attr(tir.const(0), "hand_threaded", 0)
        # nvcc unrolls the loops, not TVM: the source stays short.
        ib.scope_attr(tir.const(0), "pragma_unroll_explicit", False)
        yield block.var, thread.var


def _local(ib, name, value):
    """A variable of the thread. (`ib.let` is for the host: TVM repeats the whole value at each use.)"""
    variable = ib.allocate(value.dtype, (1,), name, scope="local")
    variable[0] = value
    return variable[0]


def _barrier(ib):
    ib.emit(tir.Call(None, "tir.tvm_storage_sync", [tir.StringImm("shared")]))


def _host_int32(ib, extent, name):
    """A number of keys or rows as an int, or as an int32 of the host."""
    if isinstance(extent, (int, tir.IntImm)):
        return int(extent)
    return ib.let(name, extent.astype("int32"))


def _ceil_div(a, b):
    return -(-a // b) if isinstance(a, int) else tir.truncdiv(a + (b - 1), b)


def _by_parity(ib, number):
    """For code of the host: gives True inside the branch for an even number, then False for an odd one."""
    for is_even in (True, False):
        if not isinstance(number, int):
            with ib.if_scope((tir.truncmod(number, 2) == 0) == is_even):
                yield is_even
        elif (number % 2 == 0) == is_even:
            yield is_even


def _clamp(value, low, high):
    return te.max(te.min(value, high), low)
