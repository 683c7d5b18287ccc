"""The convolution for LLVM: float32 sums over taps and channels, vectors along the filters."""

from tvm import te, tir

LANES = 16


def conv2d_nhwc(problem, data, weight, bias, residual, slope, _target):
    """See `topi_ext.conv2d_nhwc`."""
    (stride_y, stride_x), (dilation_y, dilation_x) = problem.strides, problem.dilation
    (height, width), (top, left, bottom, right) = problem.size, problem.padding
    rows, columns = problem.kernel
    zero = tir.const(0, "float32")

    def padded_at(n, y, x, c):
        inside = tir.all(y >= top, y < height + top, x >= left, x < width + left)
        return tir.if_then_else(inside, data[n, y - top, x - left, c].astype("float32"), zero)

    padded_shape = problem.batch, height + top + bottom, width + left + right, problem.channels
    padded = te.compute(padded_shape, padded_at, name="padded")
    packed = te.compute(
        (rows, columns, problem.channels, problem.filters),
        lambda r, s, c, k: weight[k, r, s, c].astype("float32"),
        name="packed",
    )
    r = te.reduce_axis((0, rows), "r")
    s = te.reduce_axis((0, columns), "s")
    c = te.reduce_axis((0, problem.channels), "c")
    sums = te.compute(
        (problem.batch, *problem.out_size, problem.filters),
        lambda n, y, x, k: te.sum(
            padded[n, y * stride_y + r * dilation_y, x * stride_x + s * dilation_x, c] * packed[r, s, c, k],
            axis=[r, s, c],
        ),
        name="sums",
    )
    block, channels = problem.block, problem.shape[-1]

    def result_at(n, y, x, c):
        k = (y % block * block + x % block) * channels + c
        value = sums[n, y // block, x // block, k]
        if bias is not None:
            value = value + bias[k].astype("float32")
        value = activate(problem.activation, value, slope is not None and slope[k].astype("float32"))
        if residual is not None:
            value = value + residual[n, y, x, k].astype("float32")
        return activate(problem.final_activation, value).astype(problem.dtype)

    return te.compute(problem.shape, result_at, name="conv2d_nhwc", tag="conv2d_nhwc")


def activate(activation, value, slope=None):
    """An activation of a float32, for kernels of any target."""
    low, high = tir.const(activation.low, "float32"), tir.const(activation.high, "float32")
    zero = tir.const(0, "float32")
    if activation.name == "relu":
        return te.max(value, zero)
    if activation.name in ("leaky_relu", "prelu"):
        return tir.Select(value > zero, value, value * (low if activation.name == "leaky_relu" else slope))
    if activation.name == "clip":
        return te.max(te.min(value, high), low)
    return value


def schedule(outs):
    s = te.create_schedule([out.op for out in outs])
    result = outs[0]
    (sums,) = [tensor for tensor in result.op.input_tensors if tensor.op.name == "sums"]
    padded, packed = sums.op.input_tensors
    for tensor in (padded, packed, result):
        outer, inner = s[tensor].op.axis[:-1], s[tensor].op.axis[-1]
        s[tensor].parallel(s[tensor].fuse(*outer))
        s[tensor].vectorize(s[tensor].split(inner, LANES)[1])
    n, y, x, k = s[sums].op.axis
    k, lanes = s[sums].split(k, LANES)
    s[sums].reorder(n, y, x, k, *s[sums].op.reduce_axis, lanes)
    s[sums].vectorize(lanes)
    s[sums].parallel(s[sums].fuse(n, y))
    return s
