"""Encoding masks on CUDA: in bits, and those in run lengths, by two kernels.

The first computes the bits of each `Window`, 32 of a column in a word, a word in a thread. In the second, a
block takes a mask, a thread one column at a time: it needs the last three changes in the columns before, then
their bytes, and then it writes its own. Only what is in windows takes time, and no image is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .._kernel import barrier, between, ceil_div, in_a_row, launch
from .._tvm import BufferVar, IRBuilder, PrimExpr, te, tir
from .._types import IntExpr
from .._warp import first_bit, from_lane_before
from ..paste_masks.kernel import Masks
from .kernel import Runs, Window, eight_pixels, encoded, pixel, size_of, write

WORD, LANES = 32, 32
THREADS, BLOCKS = 256, 16  # of the kernels for bits; blocks for each mask
COLUMNS = 512  # threads of a block that encodes, each with a column at a time
WARPS = COLUMNS // LANES
State = list[PrimExpr]  # of `Runs`, or a number of bytes


def run_lengths(
    masks: te.Tensor, boxes: te.Tensor, image_size: Sequence[IntExpr], threshold: float, capacity: IntExpr
) -> te.Tensor:
    """The result of `topi_ext.encode_masks` in the form "rle"."""
    height, width = image_size
    count = masks.shape[0]
    outputs = [([count, capacity], "uint8"), ([count, ceil_div(height, WORD), width], "uint32")]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        masks = Masks(ib, ins[0], ins[1], image_size, threshold, scope="local")
        with ib.if_scope(tir.const(0, "int32") < count):
            with launch(ib, count * BLOCKS, THREADS) as (block, thread):
                _Words(ib, masks, outs[1], image_size, threshold, tir.truncdiv(block, BLOCKS)).compute(
                    tir.truncmod(block, BLOCKS) * THREADS + thread
                )
            with launch(ib, count, COLUMNS) as (block, thread):
                words = _Words(ib, masks, outs[1], image_size, threshold, block)
                _Encoding(ib, words, outs[0], image_size, thread).emit()
        return ib.get()

    return encoded([masks, boxes], image_size, outputs, emit)


def packed_bits(
    masks: te.Tensor, boxes: te.Tensor, image_size: Sequence[IntExpr], threshold: float
) -> te.Tensor:
    """The result of `topi_ext.encode_masks` in the form "bits"."""
    height, width = image_size
    count, row_bytes = masks.shape[0], ceil_div(width, 8)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        masks = Masks(ib, ins[0], ins[1], image_size, threshold, scope="local")
        out, index_type = in_a_row(ib, outs[0])
        blocks = ceil_div(height * row_bytes, THREADS)
        is_any = ib.if_scope(tir.const(0, "int32") < count)
        with is_any, launch(ib, count * blocks, THREADS) as (block, thread):
            number = masks.local("number", tir.truncdiv(block, blocks))
            place = masks.local("place", tir.truncmod(block, blocks) * THREADS + thread)
            with ib.if_scope(place < height * row_bytes):
                y, at = tir.truncdiv(place, row_bytes), tir.truncmod(place, row_bytes)
                byte = eight_pixels(ib, masks, number, y, at, width)
                out[number.astype(index_type) * (height * row_bytes) + place] = byte
        return ib.get()

    return encoded([masks, boxes], image_size, [([count, height, row_bytes], "uint8")], emit)


class _Words:
    """The bits of the window of one mask, 32 of a column in a word: the first row is the lowest bit."""

    def __init__(
        self,
        ib: IRBuilder,
        masks: Masks,
        words: tir.Buffer,
        image_size: Sequence[IntExpr],
        threshold: float,
        number: tir.PrimExpr,
    ) -> None:
        self.ib, self.local, self._masks = ib, masks.local, masks
        self._height, self._width = image_size
        self.number = self.local("number", number)
        self._spans = masks.spans(self.number)
        self.window = Window.of(self.local, *self._spans, image_size, int(threshold <= 0))
        self.first = self.local("first", tir.truncdiv(self.window.top, WORD))
        self.end = self.local("end", ceil_div(self.window.bottom, WORD))
        self._words, index_type = in_a_row(ib, words)
        of_each = ceil_div(self._height, WORD) * self._width
        self._begin = self.local("begin", self.number.astype(index_type) * of_each)

    def word(self, row: tir.PrimExpr, x: tir.PrimExpr) -> tir.PrimExpr:
        return self.local("word", self._words[self._begin + row * self._width + x])

    def compute(self, thread: tir.PrimExpr) -> None:
        """Compute the words, of which each of the threads for this mask takes some."""
        local, window = self.local, self.window
        columns = local("columns", window.right - window.left)
        count = local("words", (self.end - self.first) * columns)
        with self.ib.for_range(0, ceil_div(count, THREADS * BLOCKS), "turn") as turn:
            at = local("at", turn * (THREADS * BLOCKS) + thread)
            with self.ib.if_scope(at < count):
                row = local("row", self.first + tir.truncdiv(at, columns))
                x = local("x", window.left + tir.truncmod(at, columns))
                self._words[self._begin + row * self._width + x] = self._computed(row, x)

    def _computed(self, row: tir.PrimExpr, x: tir.PrimExpr) -> tir.PrimExpr:
        word = self.local.variable("word", tir.const(0, "uint32"))
        xs = self._masks.neighbours(self._spans[1], x)
        with self.ib.for_range(0, WORD, "bit") as bit:
            # Behind the last row it is repeated, which changes nothing there.
            y = self.local("y", te.min(row * WORD + bit, self._height - 1))
            value = pixel(self.ib, self._masks, self.number, self._spans, (y, x), xs)
            word[0] = word[0] | (value.astype("uint32") << bit.astype("uint32"))
        return word[0]

    @contextmanager
    def changes(self, x: tir.PrimExpr) -> Iterator[tir.PrimExpr]:
        """Loop over the places of a column's changes, in order."""
        ib, local, window = self.ib, self.local, self.window
        before = local.variable("before", tir.const(0, "uint32"))  # the pixel before, which is 0 or 1
        with ib.if_scope(x > window.left):
            before[0] = self.word(self.end - 1, x - 1) >> tir.const(WORD - 1, "uint32")
        with between(ib, self.first, self.end) as row:
            word = self.word(row, x)
            changes = local.variable("changes", word ^ ((word << tir.const(1, "uint32")) | before[0]))
            before[0] = word >> tir.const(WORD - 1, "uint32")
            with ib.while_loop(changes[0] != tir.const(0, "uint32")):
                yield local("place", x * self._height + row * WORD + first_bit(changes[0]))
                changes[0] = changes[0] & (changes[0] - tir.const(1, "uint32"))


class _Encoding:
    """Writes the run lengths of one mask, by all threads of a block, each with a column at a time."""

    def __init__(
        self,
        ib: IRBuilder,
        words: _Words,
        out: tir.Buffer,
        image_size: Sequence[IntExpr],
        thread: tir.PrimExpr,
    ) -> None:
        self.ib, self.local, self._words, self._thread = ib, words.local, words, thread
        self._area = image_size[0] * image_size[1]
        self._capacity = out.shape[1]
        self._out, index_type = in_a_row(ib, out)
        self._begin = self.local("row", words.number.astype(index_type) * self._capacity)
        self._shared = ib.allocate("int32", 4 * WARPS, "of_warps", scope="shared")

    def emit(self) -> None:
        ib, local, window = self.ib, self.local, self._words.window
        runs, end = Runs(local), local.variable("end", tir.const(0))  # of all columns so far
        with ib.for_range(0, ceil_div(window.right - window.left, COLUMNS), "turn") as turn:
            x = local("x", window.left + turn * COLUMNS + self._thread)
            own = Runs(local)
            with self._changes(x) as place:
                own.next(place)
            before, runs_of_all = self._scan(_values(own.state), _appended)
            before = [local("state", value) for value in _appended(_values(runs.state), before)]
            own = self._runs(before)
            size = local.variable("size", tir.const(0))
            with self._changes(x) as place:
                size[0] = size[0] + size_of(own.next(place))
            (at,), (size_of_all,) = self._scan(_values([size]), lambda a, b: [a[0] + b[0]])
            own, at = self._runs(before), local.variable("at", end[0] + at)
            with self._changes(x) as place:
                write(ib, local, own.next(place), at, self._put)
            _assign(
                runs.state, [local("state", value) for value in _appended(_values(runs.state), runs_of_all)]
            )
            end[0] = end[0] + size_of_all
        last = runs.next(self._area)
        with ib.if_scope(self._thread == 0):
            write(ib, local, last, local.variable("at", end[0]), self._put)
        total = local("total", end[0] + size_of(last))
        barrier(ib)  # what is too long is written over
        used = local("used", tir.Select(total <= self._capacity, total, 0))
        with ib.for_range(0, ceil_div(self._capacity - used, COLUMNS), "turn") as turn:
            self._put(used + turn * COLUMNS + self._thread, tir.const(0, "uint8"))

    @contextmanager
    def _changes(self, x: tir.PrimExpr) -> Iterator[tir.PrimExpr]:
        with self.ib.if_scope(x < self._words.window.right), self._words.changes(x) as place:
            yield place

    def _runs(self, state: State) -> Runs:
        runs = Runs(self.local)
        _assign(runs.state, state)
        return runs

    def _put(self, place: tir.PrimExpr, byte: tir.PrimExpr) -> None:
        with self.ib.if_scope(place < self._capacity):
            self._out[self._begin + place] = byte

    def _scan(self, own: State, join: Callable[[State, State], State]) -> tuple[State, State]:
        """What the threads before this one have, joined in order, and what all have; 0 if there is nothing.

        All threads must get here.
        """
        ib, local, shared = self.ib, self.local, self._shared
        lane, warp = tir.truncmod(self._thread, LANES), local("warp", tir.truncdiv(self._thread, LANES))
        distance = 1
        while distance < LANES:
            others = [local("other", from_lane_before(value, distance)) for value in own]
            joined = join(others, own)
            own = [local("own", tir.Select(lane >= distance, *pair)) for pair in zip(joined, own)]
            distance *= 2
        within = [local("own", from_lane_before(value, 1)) for value in own]
        within = [local("own", tir.Select(lane > 0, value, 0)) for value in within]
        with ib.if_scope(lane == LANES - 1):
            for field, value in enumerate(own):
                shared[field * WARPS + warp] = value
        barrier(ib)
        before, of_all = ([local.variable("joined", tir.const(0)) for _ in own] for _ in range(2))
        with ib.for_range(0, WARPS, "of") as of:
            with ib.if_scope(of == warp):
                _assign(before, _values(of_all))
            next_ = [local("next", shared[field * WARPS + of]) for field in range(len(own))]
            _assign(of_all, [local("joined", value) for value in join(_values(of_all), next_)])
        barrier(ib)  # the next scan writes there
        return [local("before", value) for value in join(_values(before), within)], _values(of_all)


def _appended(a: State, b: State) -> State:
    """The state of `Runs` after the changes of both."""
    count, *last = b
    _, *earlier = a
    result = [a[0] + count]
    for back in range(3):  # the change that many before the last one
        value = last[back]
        for of_b in range(back, -1, -1):
            value = tir.Select(count == of_b, earlier[back - of_b], value)
        result.append(value)
    return result


def _values(variables: Sequence[BufferVar]) -> State:
    return [variable[0] for variable in variables]


def _assign(variables: Sequence[BufferVar], values: State) -> None:
    for variable, value in zip(variables, values):
        variable[0] = value
