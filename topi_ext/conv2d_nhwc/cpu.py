"""The convolution on LLVM: sums of a few neighboring pixels by a vector of filters, in registers.

Sums are float32, or exact in int32 for int8 data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import tvm

from .._int8 import INT8, rounded
from .._tvm import HAS_RELAY, te, tir
from .cpu_pairs import instruction_of, intrinsic
from .epilogue import finish
from .problem import Problem

LANES = 16
PIXELS = 4


def conv2d_nhwc(
    problem: Problem,
    data: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    residual: te.Tensor | None,
    slope: te.Tensor | None,
    scale: te.Tensor | None,
    target: tvm.target.Target,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`."""
    (stride_y, stride_x), (dilation_y, dilation_x) = problem.strides, problem.dilation
    (height, width), (top, left, _, _) = problem.size, problem.padding
    (rows, columns), (out_height, out_width) = problem.kernel, problem.out_size
    # Rounded up to whole tiles, which need no conditions; sums beyond the result are never read.
    all_columns, all_filters = _up_to_multiple(out_width, PIXELS), _up_to_multiple(problem.filters, LANES)
    of_group = problem.channels_of_group
    sum_type = "int32" if problem.dtype == INT8 else "float32"
    is_paired = (
        problem.dtype == INT8 and problem.groups == 1 and instruction_of(target) is not None and HAS_RELAY
    )
    # Values that are multiplied by one instruction for each sum, and the type in which it takes them.
    together, factor_type = (2, "int16") if is_paired else (1, sum_type)
    zero = tir.const(0, factor_type)

    def channel_of(k: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        """The channel that weight c of filter k is multiplied by; k may be behind the last filter."""
        if problem.groups == 1:
            return c
        k = k if all_filters == problem.filters else te.min(k, problem.filters - 1)
        return tir.indexdiv(k, problem.filters // problem.groups) * of_group + c

    def padded_at(n: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        inside = [y >= top, y < height + top, x >= left, x < width + left]
        inside += [c < problem.channels] * (problem.channels % together > 0)
        return tir.if_then_else(tir.all(*inside), data[n, y - top, x - left, c].astype(factor_type), zero)

    def packed_at(
        r: tir.PrimExpr, s: tir.PrimExpr, c: tir.PrimExpr, k: tir.PrimExpr, of_pair: tir.PrimExpr
    ) -> tir.PrimExpr:
        c = c * together + of_pair
        inside = tir.all(k < problem.filters, c < of_group)
        return tir.if_then_else(inside, weight[k, r, s, c].astype(factor_type), zero)

    seen = [
        (extent - 1) * stride + reach
        for extent, stride, reach in zip((out_height, all_columns), problem.strides, problem.reach)
    ]
    all_channels = _up_to_multiple(problem.channels, together)
    padded = te.compute((data.shape[0], *seen, all_channels), padded_at, name="padded")
    steps = _up_to_multiple(of_group, together) // together
    packed = te.compute((rows, columns, steps, all_filters, together), packed_at, name="packed")
    r = te.reduce_axis((0, rows), "r")
    s = te.reduce_axis((0, columns), "s")
    c = te.reduce_axis((0, steps), "c")
    of_pair = te.reduce_axis((0, together), "of_pair")

    def seen_at(n: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr, k: tir.PrimExpr) -> tir.PrimExpr:
        y, x = y * stride_y + r * dilation_y, x * stride_x + s * dilation_x
        return padded[n, y, x, channel_of(k, c * together + of_pair)].astype(sum_type)

    sums = te.compute(
        (data.shape[0], out_height, all_columns, all_filters),
        lambda n, y, x, k: te.sum(
            seen_at(n, y, x, k) * packed[r, s, c, k, of_pair].astype(sum_type), axis=[r, s, c, of_pair]
        ),
        name="sums",
    )
    block, channels = problem.block, problem.shape[-1]

    def result_at(n: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        k = (y % block * block + x % block) * channels + c
        total = sums[n, y // block, x // block, k]
        if is_paired and problem.filters < LANES:
            # Always the first one. If nothing read the last sum, TVM would shorten the vector.
            total = tir.Select(k < problem.filters, total, sums[n, y // block, x // block, LANES - 1])
        value = finish(
            problem,
            total,
            scale=None if scale is None else scale[k],
            bias=None if bias is None else bias[k],
            slope=None if slope is None else slope[k],
            residual=None if residual is None else residual[n, y, x, k],
        )
        return rounded(value, problem.out_dtype)

    return te.compute((data.shape[0], *problem.shape[1:]), result_at, name="conv2d_nhwc", tag="conv2d_nhwc")


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    s = te.create_schedule([out.op for out in outs])
    result = outs[0]
    (sums,) = [tensor for tensor in result.op.input_tensors if tensor.op.name == "sums"]
    padded, packed = sums.op.input_tensors
    for tensor in (padded, packed, result):
        *outer, innermost = s[tensor].op.axis
        if tensor is packed:  # vectors of pairs
            *outer, k = outer
            innermost = s[tensor].fuse(k, innermost)
        s[tensor].parallel(s[tensor].fuse(*outer))
        # TVM cannot legalize the load of a bfloat16 vector.
        if all(source.dtype != "bfloat16" for source in tensor.op.input_tensors):
            lanes = LANES if tensor is packed else gcd(int(tensor.shape[-1]), LANES)
            s[tensor].vectorize(s[tensor].split(innermost, lanes)[1])
    tile = s.cache_write(sums, "local")
    n, y, x, k = s[sums].op.axis
    x, pixels = s[sums].split(x, PIXELS)
    k, lanes = s[sums].split(k, LANES)
    s[sums].reorder(n, y, k, x, pixels, lanes)
    s[sums].vectorize(lanes)
    s[sums].parallel(s[sums].fuse(n, y))
    s[tile].compute_at(s[sums], x)
    _, _, pixels, lanes = s[tile].op.axis
    *steps, of_pair = s[tile].op.reduce_axis
    s[tile].reorder(*steps, pixels, lanes, of_pair)
    s[tile].unroll(pixels)
    if packed.dtype == "int16":
        s[tile].tensorize(lanes, intrinsic(LANES, tvm.target.Target.current()))
    else:
        s[tile].vectorize(lanes)
    return s


def schedule_function(_problem: Problem, function: tir.PrimFunc) -> tir.PrimFunc:
    """The same loops for TVM 0.27, which schedules functions."""
    from .cpu_loops import of_convolution

    return of_convolution(function, LANES, PIXELS)


def _up_to_multiple(extent: int, of: int) -> int:
    return -(-extent // of) * of
