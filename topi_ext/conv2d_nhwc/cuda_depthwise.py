"""The convolution of each channel by itself, on CUDA.

A thread computes a few neighboring pixels of a row for a vector of channels, so that each pixel that it loads
serves several taps. Sums are float32, or int32 of int8. The threads of a warp go along the channels, and the
rows of a block are next to each other. The weights of a block's channels lie in shared memory, tap by tap: in
global memory the taps of a channel are together.
"""

from __future__ import annotations

from .._floats import vector_type
from .._int8 import INT8, rounded
from .._kernel import barrier, ceil_div, in_a_row, launch, local
from .._tvm import BufferVar, IRBuilder, tir
from .epilogue import cuda_ratio, finish
from .plan_depthwise import DepthwisePlan

UNROLLED = 25  # taps, at most, of a kernel whose rows are unrolled
LOADED_AT_ONCE = 16  # weights of a thread: the latency of one by one would be longer than all products take


def emit_depthwise(plan: DepthwisePlan, buffers: dict[str, tir.Buffer]) -> tir.Stmt:
    """The kernel; buffers are those of the operator's arguments that are given, and of the result."""
    ib = IRBuilder()
    return _Kernel(ib, plan, {name: in_a_row(ib, each)[0] for name, each in buffers.items()}).emit()


class _Kernel:
    def __init__(self, ib: IRBuilder, plan: DepthwisePlan, tensors: dict[str, BufferVar]) -> None:
        self.ib, self.plan, self.problem, self.tensors = ib, plan, plan.problem, tensors
        self.lanes, self.pixels = plan.lanes, plan.pixels
        self.sum_type = "int32" if self.problem.dtype == INT8 else "float32"
        zero = tir.const(0, self.sum_type)
        self.zero = tir.Broadcast(zero, self.lanes) if self.lanes > 1 else zero

    def emit(self) -> tir.Stmt:
        ib, plan = self.ib, self.plan
        across, band, bands = plan.across, plan.band, plan.bands
        with launch(ib, plan.blocks, across * plan.down) as (block, thread):
            chunk = local(ib, "chunk", tir.truncmod(block, plan.chunks))
            first = local(ib, "first", chunk * across)  # of the block's vectors of channels
            weights = self._load_weights(first * self.lanes, thread)
            own = local(ib, "own", tir.truncmod(thread, across))
            vector = local(ib, "vector", first + own)
            group = tir.truncdiv(block, plan.chunks) * plan.turns
            with ib.for_range(0, plan.turns, "turn") as turn:
                run = local(ib, "run", (group + turn) * plan.down + tir.truncdiv(thread, across))
                column = local(ib, "column", tir.truncdiv(run, band))  # of runs, in a band of rows
                strip = local(ib, "strip", tir.truncdiv(column, plan.runs_of_row))
                y = local(ib, "y", tir.truncmod(strip, bands) * band + tir.truncmod(run, band))
                with ib.if_scope(
                    tir.all(run < plan.runs, y < self.problem.out_size[0], vector < plan.vectors)
                ):
                    x = local(ib, "x", tir.truncmod(column, plan.runs_of_row) * self.pixels)
                    image = local(ib, "image", tir.truncdiv(strip, bands))
                    self._compute(weights, own, vector, image, y, x)
        return ib.get()

    def _load_weights(self, first: tir.PrimExpr, thread: tir.Var) -> BufferVar:
        """The weights of the block's channels, (tap, channel), zeros behind the last channel."""
        ib, taps, channels = self.ib, self.problem.taps, self.plan.across * self.lanes
        threads = self.plan.across * self.plan.down
        beside = taps * self.plan.pitch  # where what a thread has too much goes: no store branches
        weights = ib.allocate(self.sum_type, (beside + threads,), "weights", scope="shared")
        stored = taps * channels
        at_once = min(LOADED_AT_ONCE, ceil_div(stored, threads))
        loaded = ib.allocate(self.sum_type, (at_once,), "loaded", scope="local")
        exist = local(ib, "exist", tir.min(stored, (self.problem.channels - first) * taps))
        with ib.for_range(0, ceil_div(stored, threads * at_once), "turn") as turn:
            begin = local(ib, "begin", turn * (threads * at_once) + thread)
            places = []
            for each in range(at_once):
                at = local(ib, "at", begin + each * threads)
                loaded[each] = tir.const(0, self.sum_type)
                with ib.if_scope(at < exist):
                    loaded[each] = self.tensors["weight"][first * taps + at].astype(self.sum_type)
                place = tir.truncmod(at, taps) * self.plan.pitch + tir.truncdiv(at, taps)
                places.append(local(ib, "place", tir.Select(at < stored, place, beside + thread)))
            for each, place in enumerate(places):
                weights[place] = loaded[each]
        barrier(ib)
        return weights

    def _compute(
        self,
        weights: BufferVar,
        own: tir.PrimExpr,
        vector: tir.PrimExpr,
        image: tir.PrimExpr,
        y: tir.PrimExpr,
        x: tir.PrimExpr,
    ) -> None:
        ib, problem, lanes = self.ib, self.problem, self.lanes
        (rows, columns), (top, left, _, _) = problem.kernel, problem.padding
        (stride_y, stride_x), (dilation_y, dilation_x) = problem.strides, problem.dilation
        height, width = problem.size
        sums = ib.allocate(self.sum_type, (self.pixels * lanes,), "sums", scope="local")
        for pixel in range(self.pixels):
            sums[self._of(pixel)] = self.zero
        seen = sorted({p * stride_x + s * dilation_x for p in range(self.pixels) for s in range(columns)})
        with ib.for_range(0, rows, "r", kind="unroll" if rows * columns <= UNROLLED else "serial") as r:
            in_y = local(ib, "in_y", y * stride_y - top + r * dilation_y)
            with ib.if_scope(tir.all(in_y >= 0, in_y < height)):
                row = local(ib, "row", (image * height + in_y) * width)
                start = local(ib, "start", x * stride_x - left)
                # All loads of a row come first: none waits for a sum, and no sum branches.
                loaded = {column: self._load_column(row, start + column, vector) for column in seen}
                for s in range(columns):
                    weight = self._vector("weight")
                    weight[self._of(0)] = weights[
                        self._ramp((r * columns + s) * self.plan.pitch + own * lanes)
                    ]
                    for pixel in range(self.pixels):
                        column = loaded[pixel * stride_x + s * dilation_x]
                        place = self._of(pixel)
                        sums[place] = sums[place] + column[self._of(0)] * weight[self._of(0)]
        out_height, out_width = problem.out_size
        names = [name for name in ("scale", "bias", "slope") if name in self.tensors]
        of_filters = {name: self._of_filters(name, vector * lanes) for name in names}
        for pixel in range(self.pixels):
            with ib.if_scope(x + pixel < out_width):
                at = ((image * out_height + y) * out_width + x + pixel) * self.plan.vectors + vector
                self._write(at * lanes, sums, pixel, of_filters)

    def _load_column(self, row: tir.PrimExpr, in_x: tir.PrimExpr, vector: tir.PrimExpr) -> BufferVar:
        """The thread's channels of a pixel, or zeros beside the image."""
        loaded = self._vector("loaded")
        loaded[self._of(0)] = self.zero
        with self.ib.if_scope(tir.all(in_x >= 0, in_x < self.problem.size[1])):
            loaded[self._of(0)] = self._read(
                "data", ((row + in_x) * self.plan.vectors + vector) * self.lanes, self.sum_type
            )
        return loaded

    def _vector(self, name: str) -> BufferVar:
        return self.ib.allocate(self.sum_type, (self.lanes,), name, scope="local")

    def _of_filters(self, name: str, channel: tir.PrimExpr) -> BufferVar:
        """The numbers of the thread's channels, loaded once."""
        numbers = self.ib.allocate("float32", (self.lanes,), name, scope="local")
        numbers[self._of(0)] = self._read(name, channel, "float32")
        return numbers

    def _write(self, at: tir.PrimExpr, sums: BufferVar, pixel: int, of_filters: dict[str, BufferVar]) -> None:
        problem = self.problem
        results = self.ib.allocate(problem.out_dtype, (self.lanes,), "results", scope="local")
        for lane in range(self.lanes):  # activations are written for numbers, not for vectors
            given = {name: numbers[lane] for name, numbers in of_filters.items()}
            added = self.tensors["residual"][at + lane] if problem.residual else None
            total = sums[pixel * self.lanes + lane]
            value = finish(problem, total, **given, residual=added, ratio=cuda_ratio)
            results[lane] = rounded(value, problem.out_dtype)
        self.tensors["result"][self._ramp(at)] = results[self._of(0)]

    def _read(self, name: str, index: tir.PrimExpr, dtype: str) -> tir.PrimExpr:
        return self.tensors[name][self._ramp(index)].astype(vector_type(dtype, self.lanes))

    def _of(self, pixel: int) -> tir.PrimExpr:
        return self._ramp(tir.const(pixel * self.lanes, "int32"))

    def _ramp(self, start: tir.PrimExpr) -> tir.PrimExpr:
        return tir.Ramp(start, 1, self.lanes) if self.lanes > 1 else start
