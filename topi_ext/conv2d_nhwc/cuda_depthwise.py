"""The convolution of each channel by itself, on CUDA: it moves bytes, and multiplies little.

A thread computes a few neighboring pixels of a row for a vector of channels, so that each pixel that it loads
serves several taps. Sums are float32, or int32 of int8. The threads of a warp go along the channels. The
weights of a block's channels lie in shared memory, tap by tap: in global memory the taps of a channel are
together.
"""

from __future__ import annotations

from .._floats import vector_type
from .._int8 import INT8, rounded
from .._kernel import barrier, ceil_div, in_a_row, launch, local, most_lanes
from .._tvm import BufferVar, IRBuilder, TVMError, tir
from .epilogue import cuda_ratio, finish
from .problem import Problem

MAX_LANES = 4  # TVM has no code for vectors of more float32
THREADS = 256
PIXELS = 8  # of a row, that a thread computes
MAX_WEIGHTS = 40 * 1024  # bytes of shared memory, of the 48 KiB that every GPU has without asking


def emit_depthwise(problem: Problem, buffers: dict[str, tir.Buffer]) -> tir.Stmt:
    """The kernel; buffers are those of the operator's arguments that are given, and of the result."""
    ib = IRBuilder()
    return _Kernel(ib, problem, {name: in_a_row(ib, each)[0] for name, each in buffers.items()}).emit()


class _Kernel:
    def __init__(self, ib: IRBuilder, problem: Problem, tensors: dict[str, BufferVar]) -> None:
        self.ib, self.problem, self.tensors = ib, problem, tensors
        taps = problem.kernel[0] * problem.kernel[1]
        room = MAX_WEIGHTS // (4 * taps)  # how many channels' weights a block holds
        if room < 1:
            raise TVMError(f"topi_ext.conv2d_nhwc: {taps} taps are too many for a depthwise convolution")
        # TVM has no code to cast vectors of bfloat16.
        lanes = 1 if problem.dtype == "bfloat16" else MAX_LANES
        self.lanes = most_lanes(problem.channels, min(lanes, room))
        vectors, fitting = problem.channels // self.lanes, room // self.lanes
        self.across = min(vectors, 64, fitting)  # vectors of channels of a block
        self.down = max(1, THREADS // self.across)  # runs of pixels of a block
        self.pixels = min(PIXELS, problem.out_size[1])
        self.taps, self.vectors = taps, vectors
        self.sum_type = "int32" if problem.dtype == INT8 else "float32"

    def emit(self) -> tir.Stmt:
        ib, problem = self.ib, self.problem
        height, width = problem.out_size
        runs = ceil_div(width, self.pixels)
        count = problem.batch * height * runs
        chunks = ceil_div(self.vectors, self.across)
        blocks = chunks * ceil_div(count, self.down)
        with launch(ib, blocks, self.across * self.down) as (block, thread):
            chunk = local(ib, "chunk", tir.truncmod(block, chunks))
            first = local(ib, "first", chunk * self.across)  # of the block's vectors of channels
            weights = self._load_weights(first * self.lanes, thread)
            own = local(ib, "own", tir.truncmod(thread, self.across))
            run = local(
                ib, "run", tir.truncdiv(block, chunks) * self.down + tir.truncdiv(thread, self.across)
            )
            with ib.if_scope(tir.all(run < count, first + own < self.vectors)):
                x = local(ib, "x", tir.truncmod(run, runs) * self.pixels)
                y = local(ib, "y", tir.truncmod(tir.truncdiv(run, runs), height))
                image = local(ib, "image", tir.truncdiv(run, runs * height))
                self._compute(weights, own, local(ib, "vector", first + own), image, y, x)
        return ib.get()

    def _load_weights(self, first: tir.PrimExpr, thread: tir.Var) -> BufferVar:
        """The weights of the block's channels, (tap, channel), zeros behind the last channel."""
        ib, channels = self.ib, self.across * self.lanes
        weights = ib.allocate(self.sum_type, (self.taps * channels,), "weights", scope="shared")
        threads = self.across * self.down
        with ib.for_range(0, ceil_div(self.taps * channels, threads), "turn") as turn:
            at = local(ib, "at", turn * threads + thread)
            with ib.if_scope(tir.all(at < self.taps * channels)):
                channel, tap = local(ib, "c", tir.truncdiv(at, self.taps)), tir.truncmod(at, self.taps)
                place = tap * channels + channel
                with ib.if_scope(first + channel < self.problem.channels):
                    value = self.tensors["weight"][first * self.taps + at]
                    weights[place] = value.astype(self.sum_type)
                with ib.else_scope():
                    weights[place] = tir.const(0, self.sum_type)
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
        zero = tir.const(0, self.sum_type)
        for pixel in range(self.pixels):
            sums[self._of(pixel)] = tir.Broadcast(zero, lanes) if lanes > 1 else zero
        with ib.for_range(0, rows, "r", kind="unroll" if rows * columns <= 25 else "serial") as r:
            in_y = local(ib, "in_y", y * stride_y - top + r * dilation_y)
            with ib.if_scope(tir.all(in_y >= 0, in_y < height)):
                row = local(ib, "row", (image * height + in_y) * width)
                start = local(ib, "start", x * stride_x - left)
                # Each column that is seen is loaded once, for all pixels and taps that meet there.
                for column in sorted(
                    {p * stride_x + s * dilation_x for p in range(self.pixels) for s in range(columns)}
                ):
                    in_x = start + column
                    with ib.if_scope(tir.all(in_x >= 0, in_x < width)):
                        loaded = ib.allocate(self.sum_type, (lanes,), "loaded", scope="local")
                        index = (row + in_x) * self.vectors + vector
                        loaded[self._of(0)] = self._read("data", index * lanes, self.sum_type)
                        for s in range(columns):
                            pixel, rest = divmod(column - s * dilation_x, stride_x)
                            if rest == 0 and 0 <= pixel < self.pixels:
                                weight = weights[self._ramp(((r * columns + s) * self.across + own) * lanes)]
                                place = self._of(pixel)
                                sums[place] = sums[place] + loaded[self._of(0)] * weight
        out_height, out_width = problem.out_size
        names = [name for name in ("scale", "bias", "slope") if name in self.tensors]
        of_filters = {name: self._of_filters(name, vector * lanes) for name in names}
        for pixel in range(self.pixels):
            with ib.if_scope(x + pixel < out_width):
                at = ((image * out_height + y) * out_width + x + pixel) * self.vectors + vector
                self._write(at * lanes, sums, pixel, of_filters)

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
