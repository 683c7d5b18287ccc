"""The convolution on LLVM: float32 sums of a few neighboring pixels by a vector of filters, in registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import gcd

import tvm
from tvm import te, tir

from .problem import Activation, Problem

LANES = 16
PIXELS = 4

Function = Callable[[tir.PrimExpr], tir.PrimExpr]


def conv2d_nhwc(
    problem: Problem,
    data: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    residual: te.Tensor | None,
    slope: te.Tensor | None,
    _target: tvm.target.Target,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`."""
    (stride_y, stride_x), (dilation_y, dilation_x) = problem.strides, problem.dilation
    (height, width), (top, left, _, _) = problem.size, problem.padding
    (rows, columns), (out_height, out_width) = problem.kernel, problem.out_size
    # Rounded up to whole tiles, which need no conditions; sums beyond the result are never read.
    all_columns, all_filters = _up_to_multiple(out_width, PIXELS), _up_to_multiple(problem.filters, LANES)
    zero, of_group = tir.const(0, "float32"), problem.channels // problem.groups

    def channel_of(k: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        """The channel that weight c of filter k is multiplied by; k may be behind the last filter."""
        if problem.groups == 1:
            return c
        k = k if all_filters == problem.filters else te.min(k, problem.filters - 1)
        return tir.indexdiv(k, problem.filters // problem.groups) * of_group + c

    def padded_at(n: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr, c: tir.PrimExpr) -> tir.PrimExpr:
        inside = tir.all(y >= top, y < height + top, x >= left, x < width + left)
        return tir.if_then_else(inside, data[n, y - top, x - left, c].astype("float32"), zero)

    def packed_at(r: tir.PrimExpr, s: tir.PrimExpr, c: tir.PrimExpr, k: tir.PrimExpr) -> tir.PrimExpr:
        return tir.if_then_else(k < problem.filters, weight[k, r, s, c].astype("float32"), zero)

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
        value = sums[n, y // block, x // block, k]
        if bias is not None:
            value = value + bias[k].astype("float32")
        of_filter = None if slope is None else slope[k].astype("float32")
        value = activate(problem.activation, value, of_filter)
        if residual is not None:
            value = value + residual[n, y, x, k].astype("float32")
        return activate(problem.final_activation, value).astype(problem.dtype)

    return te.compute((data.shape[0], *problem.shape[1:]), result_at, name="conv2d_nhwc", tag="conv2d_nhwc")


def activate(
    activation: Activation,
    value: tir.PrimExpr,
    slope: tir.PrimExpr | None = None,
    exp: Function = te.exp,
    tanh: Function = te.tanh,
) -> tir.PrimExpr:
    """The activation of a float32 value; the kernels of all targets use it."""
    low, high = tir.const(activation.low, "float32"), tir.const(activation.high, "float32")
    zero, one = tir.const(0, "float32"), tir.const(1, "float32")
    if activation.name == "relu":
        return te.max(value, zero)
    if activation.name in ("leaky_relu", "prelu"):
        return tir.Select(value > zero, value, value * (low if activation.name == "leaky_relu" else slope))
    if activation.name == "clip":
        return te.max(te.min(value, high), low)
    if activation.name == "sigmoid":
        return one / (one + exp(-value))
    if activation.name == "silu":
        return value / (one + exp(-value))
    if activation.name == "tanh":
        return tanh(value)
    if activation.name == "hard_swish":
        return value * te.max(te.min(value + 3, tir.const(6, "float32")), zero) / 6
    if activation.name == "gelu":
        return value * (one + te.erf(value * tir.const(0.5**0.5, "float32"))) / 2
    if activation.name == "gelu_tanh":
        inner = (value + value * value * value * tir.const(0.044715, "float32")) * tir.const(
            math.sqrt(2 / math.pi), "float32"
        )
        return value * (one + tanh(inner)) / 2
    if activation.name == "mish":  # by the tanh of log(1 + e), which is 1 before the exponential e overflows
        e = exp(te.min(value, tir.const(20, "float32")))
        return value * (e * (e + 2) / (e * (e + 2) + 2))
    return value


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
