"""Normalization of groups on CUDA: one kernel where a block can see a whole group, otherwise two.

A unit is what a block normalizes of an image: the groups that the vector of a thread spans, or one group.

1. Moments. A block computes mean and squares of the differences from it, in its part of a unit.
2. Normalize. A block combines the moments of all parts, and writes some vectors of the result.

With one part these are one kernel, whose threads keep what they have read if it is little.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .._floats import Locals
from .._kernel import barrier, bytes_of, ceil_div, in_a_row, launch, local, most_lanes, power_of_2_from, ramp
from .._register import known
from .._tvm import BufferVar, IRBuilder, dtype_of, te, tir, topi
from .._types import IntExpr
from .._warp import Part, rsqrt, sum_of_lanes
from ..conv2d_nhwc.epilogue import activate, cuda_ratio
from .problem import Problem

WARP = 32
THREADS = 256  # of a block, unless one does more than its share
MAX_THREADS = 1024
MAX_BYTES = 16  # that a thread reads at a time
SECTOR = 32  # bytes that memory gives at least
MAX_KINDS = 8  # groups that a vector spans
HELD = 128  # bytes that a thread keeps in registers
WHOLE = 4096  # vectors of a unit that a block reads faster than two kernels are launched
BLOCKS = 256  # that keep a large GPU busy
MAX_PARTS = WARP  # of a unit: a lane of a warp reads the moments of each
DEPTH = 4  # vectors of the result that a thread writes


def group_norm(problem: Problem, tensors: dict[str, te.Tensor]) -> te.Tensor:
    """The result of the operator; `tensors` are the arguments that are given."""
    data = tensors["data"]
    units = _Units(problem, dtype_of(data))

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        names = [*tensors, "result", "moments"]
        buffers = {name: in_a_row(ib, each)[0] for name, each in zip(names, [*ins, *outs])}
        _Kernels(ib, problem, units, buffers, dtype_of(data), in_a_row(ib, outs[0])[1]).emit()
        return ib.get()

    shapes, dtypes = [data.shape], [dtype_of(data)]
    if units.parts > 1:
        shapes.append([problem.images * units.count * units.parts * units.kinds * 2])
        dtypes.append("float32")
    made = te.extern(shapes, [*tensors.values()], emit, dtype=dtypes, name="group_norm")
    return made[0] if units.parts > 1 else made


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return topi.generic.schedule_extern(outs)


class _Units:
    """How images are divided: into units, those into vectors, of which runs are the parts of blocks."""

    def __init__(self, problem: Problem, dtype: str) -> None:
        self.problem, size = problem, problem.of_group
        if problem.is_last:
            self.lanes = _lanes_of_channels(problem.channels, size, SECTOR // bytes_of(dtype))
            self.kinds = max(1, self.lanes // size)  # groups that a vector spans
            self.across = max(1, size // self.lanes)  # vectors of a pixel
            self.vectors: IntExpr = problem.pixels * self.across
        else:
            pixels = known(problem.pixels)
            self.lanes = most_lanes(pixels, MAX_BYTES // bytes_of(dtype)) if pixels else 1
            self.kinds = 1
            self.vectors = problem.pixels // self.lanes * size if pixels else problem.pixels * size
        self.count = problem.groups // self.kinds  # of an image
        self.parts = self._parts()

    def _parts(self) -> int:
        vectors, units = known(self.vectors), (known(self.problem.images) or 1) * self.count
        if vectors is None:
            return MAX_PARTS
        if vectors <= WHOLE or units >= BLOCKS:
            return 1
        wanted = min(ceil_div(BLOCKS, units), ceil_div(vectors, THREADS))
        return min(MAX_PARTS, power_of_2_from(wanted))

    def threads(self, vectors: IntExpr) -> int:
        """How many threads share so many vectors, where more of them add up fewer groups at a time."""
        most = max(THREADS, MAX_THREADS // self.kinds)
        number = known(vectors)
        return min(most, max(WARP, power_of_2_from(number))) if number else most

    def place(
        self, image: tir.PrimExpr, unit: tir.PrimExpr, vector: tir.PrimExpr
    ) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """Which vector of the data a vector of a unit is, and which of all channels, or which channel."""
        problem = self.problem
        if problem.is_last:
            pixel, of_pixel = tir.truncdiv(vector, self.across), tir.truncmod(vector, self.across)
            channels = unit * self.across + of_pixel
            return (image * problem.pixels + pixel) * (problem.channels // self.lanes) + channels, channels
        runs = problem.pixels // self.lanes if self.lanes > 1 else problem.pixels  # of a channel
        first = unit * problem.of_group
        return (image * problem.channels + first) * runs + vector, first + tir.truncdiv(vector, runs)


def _lanes_of_channels(channels: int, of_group: int, most: int) -> int:
    """Lanes that divide a group, or that whole groups divide."""
    lanes = most_lanes(channels, most)
    while of_group % lanes and (lanes % of_group or lanes > of_group * MAX_KINDS):
        lanes //= 2
    return lanes


class _Kernels:
    def __init__(
        self,
        ib: IRBuilder,
        problem: Problem,
        units: _Units,
        buffers: dict[str, BufferVar],
        dtype: str,
        index_type: str,
    ) -> None:
        self.ib, self.problem, self.units, self.local = ib, problem, units, Locals(ib, "local")
        self.buffers, self.dtype, self.index_type = buffers, dtype, index_type
        self.lanes, self.kinds, self.parts = units.lanes, units.kinds, units.parts
        self.share = ceil_div(units.vectors, units.parts)  # vectors of a part
        self.of_group = self.lanes // self.kinds  # elements of a vector in each group that it spans

    def emit(self) -> None:
        count = self.problem.images * self.units.vectors
        if known(count) == 0:
            self.ib.emit(tir.Evaluate(0))
            return
        blocks = self.problem.images * self.units.count
        are_there = contextlib.nullcontext() if known(count) else self.ib.if_scope(count > 0)
        with are_there:
            if self.parts == 1:
                self._emit_whole(blocks)
            else:
                self._emit_moments(blocks)
                self._emit_normalize(blocks)

    # --- the kernels

    def _emit_whole(self, blocks: IntExpr) -> None:
        threads = self.units.threads(self.share)
        with launch(self.ib, blocks, threads) as (block, thread):
            image, unit = self._unit(block)
            run = _Run(self, image, unit, 0, self.share, self.share, thread, threads)
            moments = self._moments_of(run, thread, threads)
            count = self._float(self.share * self.of_group)
            means = [mean for mean, _ in moments]
            self._normalize(run, means, [self._factor(squares / count) for _, squares in moments])

    def _emit_moments(self, blocks: IntExpr) -> None:
        threads = self.units.threads(self.share)
        with launch(self.ib, blocks * self.parts, threads) as (block, thread):
            image, unit = self._unit(tir.truncdiv(block, self.parts))
            begin, end = self._part(tir.truncmod(block, self.parts))
            run = _Run(self, image, unit, begin, end, self.share, thread, threads)
            moments = self._moments_of(run, thread, threads)
            with self.ib.if_scope(thread == 0):
                for kind, both in enumerate(moments):
                    for which, value in enumerate(both):
                        self.buffers["moments"][self._place_of(block, kind, which)] = value

    def _emit_normalize(self, blocks: IntExpr) -> None:
        share = THREADS * DEPTH
        runs = ceil_div(self.units.vectors, share)
        with launch(self.ib, blocks * runs, THREADS) as (block, thread):
            index = local(self.ib, "index", tir.truncdiv(block, runs).astype("int32"))
            means, factors = self._combined(index, tir.truncmod(thread, WARP))
            begin = self.long(tir.truncmod(block, runs)) * share
            end = te.min(begin + share, self.units.vectors)
            run = _Run(self, *self._unit(index), begin, end, share, thread, THREADS)
            self._normalize(run, means, factors)

    # --- their parts

    def _unit(self, block: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        block = self.long(block)
        image, unit = tir.truncdiv(block, self.units.count), tir.truncmod(block, self.units.count)
        return local(self.ib, "image", image), local(self.ib, "unit", unit)

    def _part(self, part: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The first vector of a part, and the first one behind it; a part may have none."""
        begin = local(self.ib, "begin", te.min(self.long(part) * self.share, self.long(self.units.vectors)))
        return begin, local(self.ib, "end", te.min(begin + self.share, self.long(self.units.vectors)))

    def _place_of(self, block: tir.PrimExpr, kind: int, which: int) -> tir.PrimExpr:
        return (block * self.kinds + kind) * 2 + which

    def _moments_of(
        self, run: _Run, thread: tir.PrimExpr, threads: int
    ) -> list[tuple[tir.PrimExpr, tir.PrimExpr]]:
        """For each group that a vector spans, the mean of a run, and the sum of squared differences."""
        count = self.local(
            "count", te.max(self._float((run.end - run.begin) * self.of_group), self._float(1))
        )
        shared = self.ib.allocate("float32", 2 * threads // WARP * self.kinds, "shared", scope="shared")
        sums = self._zeros("sum")
        with run.turns() as turn:
            for kind, value in run.values(turn):
                sums[kind][0] = sums[kind][0] + value
        totals = self._totals([each[0] for each in sums], Part(shared, 0), thread, threads)
        means = [self.local("mean", total / count) for total in totals]
        squares = self._zeros("squares")
        with run.turns() as turn:
            for kind, value in run.values(turn):
                difference = self.local("difference", value - means[kind])
                squares[kind][0] = squares[kind][0] + difference * difference
        # Numbers of their own, so that no barrier is needed in between.
        second = Part(shared, threads // WARP * self.kinds)
        return list(zip(means, self._totals([each[0] for each in squares], second, thread, threads)))

    def _zeros(self, name: str) -> list[BufferVar]:
        return [self.local.variable(name, tir.const(0.0, "float32")) for _ in range(self.kinds)]

    def _totals(
        self, values: list[tir.PrimExpr], shared: Part, thread: tir.PrimExpr, threads: int
    ) -> list[tir.PrimExpr]:
        """The sums over the block, which every thread has; all of them must reach this point."""
        values = [sum_of_lanes(self.local, value) for value in values]
        warps = threads // WARP
        if warps == 1:
            return values
        lane = tir.truncmod(thread, WARP)
        with self.ib.if_scope(lane == 0):
            for kind, value in enumerate(values):
                shared[kind * warps + tir.truncdiv(thread, WARP)] = value
        barrier(self.ib)
        # Warps are a power of 2, so a lane without one of its own reads another's, which is not added.
        mine = (shared[kind * warps + tir.truncmod(lane, warps)] for kind in range(self.kinds))
        return [sum_of_lanes(self.local, self.local("mine", value), warps) for value in mine]

    def _combined(
        self, index: tir.PrimExpr, lane: tir.PrimExpr
    ) -> tuple[list[tir.PrimExpr], list[tir.PrimExpr]]:
        """Mean and factor of each group of a unit, from the moments of its parts: a part for each lane."""
        part = local(self.ib, "part", te.min(lane, self.parts - 1))
        begin, end = self._part(part)
        number = tir.Select(lane < self.parts, self._float((end - begin) * self.of_group), self._float(0))
        number = self.local("number", number)
        weight = self.local("weight", tir.Select(number > 0, self._float(1), self._float(0)))
        count = self._float(self.units.vectors * self.of_group)
        means, factors = [], []
        for kind in range(self.kinds):
            mean, squares = (
                self.buffers["moments"][self._place_of(index * self.parts + part, kind, which)]
                for which in range(2)
            )
            mean = self.local("mean", mean)
            total = sum_of_lanes(self.local, self.local("sum", mean * number))
            means.append(self.local("mean", total / count))
            difference = self.local("difference", mean - means[-1])
            squares = self.local("squares", squares * weight + number * difference * difference)
            factors.append(self._factor(sum_of_lanes(self.local, squares) / count))
        return means, factors

    def _factor(self, variance: tir.PrimExpr) -> tir.PrimExpr:
        return self.local("factor", rsqrt(variance + self.local.exact(self.problem.epsilon)))

    def _normalize(self, run: _Run, means: list[tir.PrimExpr], factors: list[tir.PrimExpr]) -> None:
        with run.turns() as turn:
            at, channel = run.place(turn)
            of_all = self.lanes if self.problem.is_last else 1  # channels of a vector
            affine = {
                name: self.load(name, channel, of_all) for name in ("gamma", "beta") if name in self.buffers
            }
            results = self.ib.allocate(self.dtype, self.lanes, "results", scope="local")
            for lane, (kind, value) in enumerate(run.values(turn)):
                value, own = (value - means[kind]) * factors[kind], lane if self.problem.is_last else 0
                if "gamma" in affine:
                    value = value * affine["gamma"][own].astype("float32")
                if "beta" in affine:
                    value = value + affine["beta"][own].astype("float32")
                value = activate(self.problem.activation, self.local("value", value), ratio=cuda_ratio)
                results[lane] = value.astype(self.dtype)
            lanes = min(self.lanes, MAX_BYTES // bytes_of(self.dtype))
            for part in range(0, self.lanes, lanes):
                self.buffers["result"][ramp(at * self.lanes + part, 1, lanes)] = results[ramp(part, 1, lanes)]

    def load(self, name: str, vector: tir.PrimExpr, count: int) -> BufferVar:
        """A vector of a tensor, which is divided into vectors of so many elements."""
        buffer = self.buffers[name]
        loaded = self.ib.allocate(dtype_of(buffer), count, "loaded", scope="local")
        lanes = min(count, MAX_BYTES // bytes_of(dtype_of(buffer)))
        for part in range(0, count, lanes):
            loaded[ramp(part, 1, lanes)] = buffer[ramp(vector * count + part, 1, lanes)]
        return loaded

    def _float(self, number: IntExpr) -> tir.PrimExpr:
        return tir.const(number, "float32") if isinstance(number, int) else number.astype("float32")

    def long(self, number: IntExpr) -> tir.PrimExpr:
        return (
            tir.const(number, self.index_type) if isinstance(number, int) else number.astype(self.index_type)
        )


class _Run:
    """Vectors of a unit that the threads of a block take in turns, kept in registers if they are few."""

    def __init__(
        self,
        kernels: _Kernels,
        image: tir.PrimExpr,
        unit: tir.PrimExpr,
        begin: IntExpr,
        end: IntExpr,
        most: IntExpr,
        thread: tir.PrimExpr,
        threads: int,
    ) -> None:
        """`most`: how many vectors there are at most between `begin` and `end`."""
        self.begin, self.end = begin, end
        self._kernels, self._image, self._unit = kernels, image, unit
        self._first, self._threads = begin + thread, threads
        self._turns = ceil_div(most, threads)
        turns = known(self._turns) or HELD
        self._is_held = turns * kernels.lanes * bytes_of(kernels.dtype) <= HELD
        self._is_read = False
        self._values = kernels.ib.allocate(
            kernels.dtype, kernels.lanes * (turns if self._is_held else 1), "values", scope="local"
        )

    @contextmanager
    def turns(self) -> Iterator[tir.PrimExpr]:
        """The turns in which the thread has a vector."""
        ib, kind = self._kernels.ib, "unroll" if self._is_held else "serial"
        loop = ib.for_range(0, self._turns, "turn", kind=kind)
        with loop as turn, ib.if_scope(self._vector(turn) < self.end):
            yield turn

    def place(self, turn: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The number of the thread's vector in the data, and that of its channels."""
        vector = local(self._kernels.ib, "vector", self._vector(turn))
        at, channel = self._kernels.units.place(self._image, self._unit, vector)
        return local(self._kernels.ib, "at", at), local(self._kernels.ib, "channel", channel)

    def values(self, turn: tir.PrimExpr) -> Iterator[tuple[int, tir.PrimExpr]]:
        """Each element of the thread's vector, with the group that it belongs to, counted from 0."""
        kernels, start = self._kernels, turn * self._kernels.lanes if self._is_held else 0
        if not (self._is_held and self._is_read):
            loaded = kernels.load("data", self.place(turn)[0], kernels.lanes)
            for lane in range(kernels.lanes):
                self._values[start + lane] = loaded[lane]
            self._is_read = True
        for lane in range(kernels.lanes):
            yield lane // kernels.of_group, self._values[start + lane].astype("float32")

    def _vector(self, turn: tir.PrimExpr) -> tir.PrimExpr:
        return self._kernels.long(self._first + turn * self._threads)
