"""Results that depend on a whole row, on CUDA: a few threads for each row, or pixel whose channels are apart.

A thread keeps its numbers in registers from one pass to the next, or reads them anew if they are many.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import mul

import tvm

from ._floats import Locals
from ._kernel import barrier, bytes_of, ceil_div, in_a_row, launch, local, most_lanes, power_of_2_from, ramp
from ._register import known
from ._tvm import Attrs, BufferVar, IRBuilder, PrimExpr, dtype_of, te, tir, topi
from ._types import IntExpr, Shape
from ._warp import Part, sum_of_lanes

WARP = 32
THREADS = 256  # of a block, unless a row needs more
MAX_THREADS = 1024  # of a row
HELD = 32  # numbers that a thread keeps in registers
MAX_BYTES = 16  # that a thread reads at a time
MAX_DEPTH = 4  # rows that a thread works on, for each of which it would read gamma and beta again
ENOUGH = 2**17  # threads that keep a large GPU busy
BLOCKS = 256  # that keep a large GPU busy
PARTS = 8  # of the channels of a pixel, each for a thread; more for few pixels or many channels


Add = Callable[..., PrimExpr]


@dataclass(frozen=True)
class Rows:
    """Data (outer, channels, inner), whose rows are the channels of a place; only their number is known."""

    outer: IntExpr
    channels: int
    inner: IntExpr

    @classmethod
    def of(cls, data: te.Tensor, axis: int) -> Rows:
        axis %= len(data.shape)
        outer, inner = _product(data.shape[:axis]), _product(data.shape[axis + 1 :])
        return cls(outer, int(data.shape[axis]), inner)

    @property
    def is_last(self) -> bool:
        """Whether the channels of a place are side by side."""
        return known(self.inner) == 1


def _product(extents: list[IntExpr]) -> IntExpr:
    factors = (extent if known(extent) is None else int(extent) for extent in extents)
    return reduce(mul, factors, 1)


def of_rows(
    rows: Rows, tensors: dict[str, te.Tensor], compute: Compute, name: str, shape: Shape | None = None
) -> te.Tensor:
    """A tensor like `data`, one of the tensors, of which `compute` emits the results of some rows.

    With a `shape` of its own it has a number for each row.
    """
    data = tensors["data"]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        buffers = {name: in_a_row(ib, each)[0] for name, each in zip([*tensors, "result"], [*ins, *outs])}
        kernel = _SideBySide if rows.is_last else _Apart
        kernel(ib, rows, compute, buffers, dtype_of(data), in_a_row(ib, outs[0])[1]).emit()
        return ib.get()

    return te.extern([shape or data.shape], [*tensors.values()], emit, dtype=[dtype_of(data)], name=name)


def schedule_of_rows(_attrs: Attrs, outs: list[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    """The schedule of a tensor of rows, and of what is fused behind."""
    (out,) = outs
    with target:
        if isinstance(out.op, te.ExternOp):
            return topi.generic.schedule_extern(outs)
        made = te.create_schedule(out.op)
        topi.utils.traverse_inline(made, out.op, lambda _: None)
        of_target = topi.x86.injective if target.kind.name == "llvm" else topi.cuda
        of_target.schedule_injective_from_existing(made, out)  # what is fused behind
        return made


class Kernel:
    """`sharing` threads compute a row together; a block computes `beside` rows at a time, `depth` times.

    A thread takes vectors of `lanes` channels, in turns with the others of its row. A pixel is a row, too.
    """

    sharing: int
    beside: int
    lanes = 1
    depth = 1
    shared = 0  # numbers in shared memory, by which the threads of a row add up theirs

    def __init__(
        self,
        ib: IRBuilder,
        problem: Rows,
        compute: Compute,
        buffers: dict[str, BufferVar],
        dtype: str,
        index_type: str,
    ) -> None:
        self.ib, self.problem, self._compute, self.local = ib, problem, compute, Locals(ib, "local")
        self.buffers, self.dtype, self.index_type = buffers, dtype, index_type
        self.count = problem.outer * problem.inner  # of rows
        self.plan()
        self.vectors = problem.channels // self.lanes
        self.turns = ceil_div(self.vectors, self.sharing)
        self.is_held = self.turns * self.lanes <= HELD

    # --- what depends on where the channels are

    def plan(self) -> None:
        """Set the attributes above."""
        raise NotImplementedError

    def place(self) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """Which of the rows side by side is the thread's, and which of the threads of that row it is."""
        raise NotImplementedError

    def vector(self, row: tir.PrimExpr, number: tir.PrimExpr) -> tir.PrimExpr:
        """The index of a vector of a row, in vectors."""
        raise NotImplementedError

    def total(self, value: tir.PrimExpr, add: Add = operator.add) -> tir.PrimExpr:
        """The sum, or what `add` is, of a number over the threads of a row.

        All threads of the block must reach this point, and there may be two of them.
        """
        raise NotImplementedError

    # --- what does not

    def emit(self) -> None:
        ib, rows_of_block = self.ib, self.beside * self.depth
        are_there = contextlib.nullcontext() if known(self.count) else ib.if_scope(self.count > 0)
        blocks = ceil_div(self.count, rows_of_block)
        with are_there, launch(ib, blocks, self.beside * self.sharing) as (block, thread):
            self.thread = thread
            # Each of the two sums has numbers of its own, so that no barrier is needed in between.
            both = ib.allocate("float32", 2 * self.shared, "shared", scope="shared") if self.shared else None
            self.unused = [Part(both, at * self.shared) for at in range(2)]
            row, self.own = (local(ib, name, at) for name, at in zip(("row", "own"), self.place()))
            first = local(ib, "first", block.astype(self.index_type) * rows_of_block + row)
            rows = [local(ib, "row", first + at * self.beside) for at in range(self.depth)]
            self._compute(self, [Row(self, row) for row in rows])

    def sum_of(self, written: Iterable[tir.PrimExpr], add: Add) -> tir.PrimExpr:
        """The sum of what the threads of the block have written."""
        barrier(self.ib)
        return self.local("total", reduce(add, written))

    @contextmanager
    def each_turn(self) -> Iterator[tir.PrimExpr]:
        """The turns in which the thread has a vector."""
        kind = "unroll" if self.is_held else "serial"
        with self.ib.for_range(0, self.turns, "turn", kind=kind) as turn:
            if self.vectors % self.sharing == 0:
                yield turn
            else:
                with self.ib.if_scope(turn * self.sharing + self.own < self.vectors):
                    yield turn

    @contextmanager
    def each_lane(self) -> Iterator[tir.PrimExpr]:
        with self.ib.for_range(0, self.lanes, "lane", kind="unroll") as lane:
            yield lane

    def load(self, name: str, vector: tir.PrimExpr) -> BufferVar:
        """A vector of a tensor. TVM has no code to cast the larger ones as a whole."""
        buffer = self.buffers[name]
        loaded = self.ib.allocate(dtype_of(buffer), self.lanes, "loaded", scope="local")
        lanes = min(self.lanes, MAX_BYTES // bytes_of(dtype_of(buffer)))
        for part in range(0, self.lanes, lanes):
            loaded[ramp(part, 1, lanes)] = buffer[ramp(vector * self.lanes + part, 1, lanes)]
        return loaded

    def write(
        self, row: Row, turn: tir.PrimExpr, result: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr]
    ) -> None:
        """Write a vector of a row that is there: what `result` makes of each value and its lane."""
        row.read_again(turn)
        with self.ib.if_scope(row.number < self.count):
            results = self.ib.allocate(self.dtype, self.lanes, "results", scope="local")
            with self.each_lane() as lane:
                results[lane] = result(row[turn, lane], lane).astype(self.dtype)
            at = row.vector(turn) * self.lanes
            self.buffers["result"][ramp(at, 1, self.lanes)] = results[ramp(0, 1, self.lanes)]


class Row:
    """What a thread holds of a row: all of its numbers, or those of one vector."""

    def __init__(self, kernel: Kernel, number: tir.PrimExpr) -> None:
        self.kernel, self.number = kernel, number
        # Threads without a row compute the last one, since all have to reach the barriers.
        self._clamped = local(kernel.ib, "clamped", te.min(number, kernel.count - 1))
        size = kernel.lanes * (kernel.turns if kernel.is_held else 1)
        self._values = kernel.ib.allocate("float32", size, "values", scope="local")

    def __getitem__(self, turn_and_lane: tuple[tir.PrimExpr, tir.PrimExpr]) -> tir.PrimExpr:
        return self._values[self._at(*turn_and_lane)]

    def vector(self, turn: tir.PrimExpr) -> tir.PrimExpr:
        return self.kernel.vector(self._clamped, turn * self.kernel.sharing + self.kernel.own)

    def read(self, turn: tir.PrimExpr) -> None:
        loaded = self.kernel.load("data", self.vector(turn))
        with self.kernel.each_lane() as lane:
            self._values[self._at(turn, lane)] = loaded[lane].astype("float32")

    def read_again(self, turn: tir.PrimExpr) -> None:
        """Read what is not held."""
        if not self.kernel.is_held:
            self.read(turn)

    def _at(self, turn: tir.PrimExpr, lane: tir.PrimExpr) -> tir.PrimExpr:
        return turn * self.kernel.lanes + lane if self.kernel.is_held else lane


class _SideBySide(Kernel):
    """Channels are side by side: neighbouring threads take neighbouring vectors of a row."""

    def plan(self) -> None:
        channels = self.problem.channels
        self.lanes = most_lanes(channels, MAX_BYTES // bytes_of(self.dtype))
        vectors = channels // self.lanes
        self.sharing = min(WARP, power_of_2_from(vectors))
        while self.sharing < MAX_THREADS and ceil_div(vectors, self.sharing) * self.lanes > HELD:
            self.sharing *= 2
        self.beside = max(1, THREADS // self.sharing)
        least = max(1, WARP // self.sharing)  # whole warps
        while self.beside > least and self.beside * BLOCKS > (known(self.count) or math.inf):
            self.beside //= 2
        if self.sharing > WARP:
            self.shared = self.beside * self.sharing // WARP  # a number for each warp
        fitting = HELD // (ceil_div(vectors, self.sharing) * self.lanes)
        spare = (known(self.count) or 0) * self.sharing // ENOUGH
        while 2 * self.depth <= min(MAX_DEPTH, fitting, spare):
            self.depth *= 2

    def place(self) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        return tir.truncdiv(self.thread, self.sharing), tir.truncmod(self.thread, self.sharing)

    def vector(self, row: tir.PrimExpr, number: tir.PrimExpr) -> tir.PrimExpr:
        return row * self.vectors + number

    def total(self, value: tir.PrimExpr, add: Add = operator.add) -> tir.PrimExpr:
        value = sum_of_lanes(self.local, value, min(self.sharing, WARP), add)
        if self.sharing <= WARP:
            return value
        of_warps, warps = self.unused.pop(), self.sharing // WARP
        with self.ib.if_scope(tir.truncmod(self.thread, WARP) == 0):
            of_warps[tir.truncdiv(self.thread, WARP)] = value
        first = tir.truncdiv(self.thread, self.sharing) * warps
        return self.sum_of((of_warps[first + warp] for warp in range(warps)), add)


class _Apart(Kernel):
    """Channels are apart: neighbouring threads take neighbouring pixels."""

    beside = WARP

    def plan(self) -> None:
        channels, count = self.problem.channels, known(self.count) or ENOUGH
        most = min(WARP, power_of_2_from(channels))
        self.sharing = min(PARTS, most)
        while self.sharing < most and (
            count * self.sharing < ENOUGH or ceil_div(channels, self.sharing) > HELD
        ):
            self.sharing *= 2
        self.shared = WARP * self.sharing if self.sharing > 1 else 0

    def place(self) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        return tir.truncmod(self.thread, WARP), tir.truncdiv(self.thread, WARP)

    def vector(self, row: tir.PrimExpr, number: tir.PrimExpr) -> tir.PrimExpr:
        inner = self.problem.inner
        image, pixel = tir.truncdiv(row, inner), tir.truncmod(row, inner)
        return (image * self.problem.channels + number) * inner + pixel

    def total(self, value: tir.PrimExpr, add: Add = operator.add) -> tir.PrimExpr:
        if self.sharing == 1:
            return value
        parts = self.unused.pop()
        parts[self.thread] = value
        pixel = tir.truncmod(self.thread, WARP)
        return self.sum_of((parts[part * WARP + pixel] for part in range(self.sharing)), add)


Compute = Callable[[Kernel, "list[Row]"], None]
