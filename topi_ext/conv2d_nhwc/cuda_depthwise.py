"""The convolution of each channel by itself, on CUDA: it moves bytes, and multiplies little.

A thread computes a few neighboring pixels of a row for a vector of channels, in float32, so that each pixel
that it loads serves several taps. The threads of a warp go along the channels. The weights of a block's
channels lie in shared memory, tap by tap: in global memory the taps of a channel are together.
"""

from __future__ import annotations

import tvm
from tvm import tir
from tvm.tir.ir_builder import BufferVar, IRBuilder

from .._kernel import barrier, ceil_div, in_a_row, launch, local, most_lanes
from .epilogue import activate
from .problem import Problem

MAX_LANES = 4  # TVM has no code for vectors of more float32
THREADS = 256
PIXELS = 8  # of a row, that a thread computes
MAX_WEIGHTS = 40 * 1024  # bytes of shared memory, of the 48 KiB that every GPU has without asking


def emit_depthwise(problem: Problem, buffers: dict[str, tir.Buffer]) -> tir.Stmt:
    """The kernel; buffers are those of the operator's arguments that are given, and of the result."""
    ib = tir.ir_builder.create()
    return _Kernel(ib, problem, {name: in_a_row(ib, each)[0] for name, each in buffers.items()}).emit()


class _Kernel:
    def __init__(self, ib: IRBuilder, problem: Problem, tensors: dict[str, BufferVar]) -> None:
        self.ib, self.problem, self.tensors = ib, problem, tensors
        taps = problem.kernel[0] * problem.kernel[1]
        room = MAX_WEIGHTS // (4 * taps)  # how many channels' weights a block holds
        if room < 1:
            raise tvm.TVMError(f"topi_ext.conv2d_nhwc: {taps} taps are too many for a depthwise convolution")
        # TVM has no code to cast vectors of bfloat16.
        lanes = 1 if problem.dtype == "bfloat16" else MAX_LANES
        self.lanes = most_lanes(problem.channels, min(lanes, room))
        vectors, fitting = problem.channels // self.lanes, room // self.lanes
        self.across = min(vectors, 64, fitting)  # vectors of channels of a block
        self.down = max(1, THREADS // self.across)  # runs of pixels of a block
        self.pixels = min(PIXELS, problem.out_size[1])
        self.taps, self.vectors = taps, vectors

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
        weights = ib.allocate("float32", (self.taps * channels,), "weights", scope="shared")
        threads = self.across * self.down
        with ib.for_range(0, ceil_div(self.taps * channels, threads), "turn") as turn:
            at = local(ib, "at", turn * threads + thread)
            with ib.if_scope(tir.all(at < self.taps * channels)):
                channel, tap = local(ib, "c", tir.truncdiv(at, self.taps)), tir.truncmod(at, self.taps)
                place = tap * channels + channel
                with ib.if_scope(first + channel < self.problem.channels):
                    value = self.tensors["weight"][first * self.taps + at]
                    weights[place] = value.astype("float32")
                with ib.else_scope():
                    weights[place] = tir.const(0, "float32")
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
        sums = ib.allocate("float32", (self.pixels * lanes,), "sums", scope="local")
        for pixel in range(self.pixels):
            sums[self._of(pixel)] = self._vector("bias", vector * lanes)
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
                        loaded = ib.allocate("float32", (lanes,), "loaded", scope="local")
                        index = (row + in_x) * self.vectors + vector
                        loaded[self._of(0)] = self._read("data", index * lanes)
                        for s in range(columns):
                            pixel, rest = divmod(column - s * dilation_x, stride_x)
                            if rest == 0 and 0 <= pixel < self.pixels:
                                weight = weights[self._ramp(((r * columns + s) * self.across + own) * lanes)]
                                place = self._of(pixel)
                                sums[place] = sums[place] + loaded[self._of(0)] * weight
        out_height, out_width = problem.out_size
        for pixel in range(self.pixels):
            with ib.if_scope(x + pixel < out_width):
                at = ((image * out_height + y) * out_width + x + pixel) * self.vectors + vector
                self._write(at * lanes, sums, pixel, vector * lanes)

    def _write(self, at: tir.PrimExpr, sums: BufferVar, pixel: int, channel: tir.PrimExpr) -> None:
        problem = self.problem
        results = self.ib.allocate(problem.dtype, (self.lanes,), "results", scope="local")
        for lane in range(self.lanes):  # activations are written for numbers, not for vectors
            value = sums[pixel * self.lanes + lane]
            slope = None
            if problem.slope:
                slope = self.tensors["slope"][channel + lane].astype("float32")
            value = activate(problem.activation, value, slope)
            if problem.residual:
                value = value + self.tensors["residual"][at + lane].astype("float32")
            results[lane] = activate(problem.final_activation, value).astype(problem.dtype)
        self.tensors["result"][self._ramp(at)] = results[self._of(0)]

    def _vector(self, name: str, index: tir.PrimExpr) -> tir.PrimExpr:
        """A vector of an optional tensor, or of zeros where it is not given."""
        if name in self.tensors:
            return self._read(name, index)
        zero = tir.const(0, "float32")
        return tir.Broadcast(zero, self.lanes) if self.lanes > 1 else zero

    def _read(self, name: str, index: tir.PrimExpr) -> tir.PrimExpr:
        dtype = f"float32x{self.lanes}" if self.lanes > 1 else "float32"
        return self.tensors[name][self._ramp(index)].astype(dtype)

    def _of(self, pixel: int) -> tir.PrimExpr:
        return self._ramp(tir.const(pixel * self.lanes, "int32"))

    def _ramp(self, start: tir.PrimExpr) -> tir.PrimExpr:
        return tir.Ramp(start, 1, self.lanes) if self.lanes > 1 else start
