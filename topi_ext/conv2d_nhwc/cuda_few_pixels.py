"""The convolution of one or two pixels by one tap, on CUDA: a matrix times a vector.

So are squeeze-and-excitation, and the last layer of a classifier. There are too few products for tensor
cores, whose tiles would leave most of the GPU idle: a warp computes one filter, and each of its lanes every
32nd vector of channels. Sums are float32.
"""

from __future__ import annotations

from .._floats import Locals, vector_type
from .._int8 import rounded
from .._kernel import ceil_div, in_a_row, launch, local, most_lanes, ramp
from .._tvm import BufferVar, IRBuilder, tir
from .._warp import sum_of_lanes
from .epilogue import cuda_ratio, finish
from .problem import AT_RUN_TIME, Problem

MOST = 2  # pixels: from here on, measured on an H200, tensor cores are faster
WARP, WARPS = 32, 4  # of a block
MAX_LANES = 4  # of a vector: TVM has no code for vectors of more float32
HELD = 8  # vectors of weights that a lane loads at once


def has_few_pixels(problem: Problem) -> bool:
    """Whether the kernel computes the problem."""
    if AT_RUN_TIME in (problem.batch, *problem.size) or problem.dtype not in ("float16", "bfloat16"):
        return False
    is_plain = problem.groups == problem.block == problem.taps == 1 and problem.strides == (1, 1)
    has_parts = any((problem.data_part, problem.residual_part, problem.result_part))
    return is_plain and not any(problem.padding) and not has_parts and _pixels(problem) <= MOST


def emit_few_pixels(problem: Problem, buffers: dict[str, tir.Buffer]) -> tir.Stmt:
    """The kernel; buffers are those of the operator's arguments that are given, and of the result."""
    ib = IRBuilder()
    tensors = {name: in_a_row(ib, each)[0] for name, each in buffers.items()}
    with launch(ib, ceil_div(problem.filters, WARPS), WARPS * WARP) as (block, thread):
        lane = local(ib, "lane", tir.truncmod(thread, WARP))
        filter_ = local(ib, "filter", block * WARPS + tir.truncdiv(thread, WARP))
        with ib.if_scope(filter_ < problem.filters):  # all lanes of a warp have the same
            totals = [
                sum_of_lanes(Locals(ib, "local"), part)
                for part in _parts(ib, problem, tensors, filter_, lane)
            ]
            with ib.if_scope(lane == 0):
                given = {name: tensors[name][filter_] for name in ("bias", "slope") if name in tensors}
                for pixel, total in enumerate(totals):
                    at = pixel * problem.filters + filter_
                    added = tensors["residual"][at] if problem.residual else None
                    value = finish(problem, total, **given, residual=added, ratio=cuda_ratio)
                    tensors["result"][at] = rounded(value, problem.out_dtype)
    return ib.get()


def _parts(
    ib: IRBuilder, problem: Problem, tensors: dict[str, BufferVar], filter_: tir.PrimExpr, lane: tir.PrimExpr
) -> list[tir.PrimExpr]:
    """The lane's part of the sum of each pixel."""
    # TVM has no code to cast vectors of bfloat16.
    lanes = most_lanes(problem.channels, 1 if problem.dtype == "bfloat16" else MAX_LANES)
    dtype, whole = vector_type("float32", lanes), ramp(0, 1, lanes)
    zero = tir.Broadcast(tir.const(0, "float32"), lanes) if lanes > 1 else tir.const(0, "float32")

    def vector(name: str) -> BufferVar:
        variable = ib.allocate("float32", (lanes,), name, scope="local")
        variable[whole] = zero
        return variable

    sums = [vector("sum") for _ in range(_pixels(problem))]
    held = min(HELD, ceil_div(problem.channels, lanes * WARP))
    with ib.for_range(0, ceil_div(problem.channels, held * lanes * WARP), "turn") as turn:
        starts, weights = [], []
        for each in range(held):  # all loads come first: none waits for another
            starts.append(local(ib, "start", ((turn * held + each) * WARP + lane) * lanes))
            weights.append(vector("weight"))
            with ib.if_scope(starts[-1] < problem.channels):
                at = filter_ * problem.channels + starts[-1]
                weights[-1][whole] = tensors["weight"][ramp(at, 1, lanes)].astype(dtype)
        for pixel, sum_ in enumerate(sums):
            for start, weight in zip(starts, weights):
                data = vector("data")
                with ib.if_scope(start < problem.channels):
                    at = pixel * problem.channels + start
                    data[whole] = tensors["data"][ramp(at, 1, lanes)].astype(dtype)
                sum_[whole] = sum_[whole] + data[whole] * weight[whole]
    return [local(ib, "part", sum((sum_[at] for at in range(1, lanes)), sum_[0])) for sum_ in sums]


def _pixels(problem: Problem) -> int:
    height, width = problem.size
    return problem.batch * height * width
