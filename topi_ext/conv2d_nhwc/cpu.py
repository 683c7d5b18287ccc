"""The convolution on LLVM: sums of a few neighboring pixels by a vector of filters, in registers.

Sums are float32, or exact in int32 for int8 data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import tvm
from tvm import te, tir

from .epilogue import finish, rounded
from .problem import INT8, Problem

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
    _target: tvm.target.Target,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`."""
    (stride_y, stride_x), (dilation_y, dilation_x) = problem.strides, problem.dilation
    (height, width), (top, left, _, _) = problem.size, problem.padding
    (rows, columns), (out_height, out_width) = problem.kernel, problem.out_size
    # Rounded up to whole tiles, which need no conditions; sums beyond the result are never read.
    all_columns, all_filters = _up_to_multiple(out_width, PIXELS), _up_to_multiple(problem.filters, LANES)
    of_group = problem.channels // problem.groups
    sum_type = "int32" if problem.dtype == INT8 else "float32"
    zero = tir.const(0, sum_type)

    def channel_of(k: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        """The channel that weight c of filter k is multiplied by; k may be behind the last filter."""
        if problem.groups == 1:
            return c
        k = k if all_filters == problem.filters else te.min(k, problem.filters - 1)
        return tir.indexdiv(k, problem.filters // problem.groups) * of_group + c

    def padded_at(n: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        inside = tir.all(y >= top, y < height + top, x >= left, x < width + left)
        return tir.if_then_else(inside, data[n, y - top, x - left, c].astype(sum_type), zero)

    def packed_at(r: tir.PrimExpr, s: tir.PrimExpr, c: tir.PrimExpr, k: tir.PrimExpr) -> tir.PrimExpr:
        return tir.if_then_else(k < problem.filters, weight[k, r, s, c].astype(sum_type), zero)

    seen = [
        (extent - 1) * stride + reach
        for extent, stride, reach in zip((out_height, all_columns), problem.strides, problem.reach)
    ]
    padded = te.compute((data.shape[0], *seen, problem.channels), padded_at, name="padded")
    packed = te.compute((rows, columns, of_group, all_filters), packed_at, name="packed")
    r = te.reduce_axis((0, rows), "r")
    s = te.reduce_axis((0, columns), "s")
    c = te.reduce_axis((0, of_group), "c")
    sums = te.compute(
        (data.shape[0], out_height, all_columns, all_filters),
        lambda n, y, x, k: te.sum(
            padded[n, y * stride_y + r * dilation_y, x * stride_x + s * dilation_x, channel_of(k, c)]
            * packed[r, s, c, k],
            axis=[r, s, c],
        ),
        name="sums",
    )
    block, channels = problem.block, problem.shape[-1]

    def result_at(n: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        k = (y % block * block + x % block) * channels + c
        value = finish(
            problem,
            sums[n, y // block, x // block, k],
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
        s[tensor].parallel(s[tensor].fuse(*s[tensor].op.axis[:-1]))
        # TVM cannot legalize the load of a bfloat16 vector.
        if all(source.dtype != "bfloat16" for source in tensor.op.input_tensors):
            lanes = gcd(int(tensor.shape[-1]), LANES)
            s[tensor].vectorize(s[tensor].split(s[tensor].op.axis[-1], lanes)[1])
    tile = s.cache_write(sums, "local")
    n, y, x, k = s[sums].op.axis
    x, pixels = s[sums].split(x, PIXELS)
    k, lanes = s[sums].split(k, LANES)
    s[sums].reorder(n, y, k, x, pixels, lanes)
    s[sums].vectorize(lanes)
    s[sums].parallel(s[sums].fuse(n, y))
    s[tile].compute_at(s[sums], x)
    _, _, pixels, lanes = s[tile].op.axis
    s[tile].reorder(*s[tile].op.reduce_axis, pixels, lanes)
    s[tile].unroll(pixels)
    s[tile].vectorize(lanes)
    return s


def _up_to_multiple(extent: int, of: int) -> int:
    return -(-extent // of) * of
