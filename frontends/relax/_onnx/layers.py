"""Convolutions, products of matrices, pooling and normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm import relax

from ..._column_places import places_of_columns
from ..._deform_conv2d import DeformConv2d
from .._max_pool import maxima_and_places, places_of_windows
from .._operators_of_relax import OfRelax
from .._scatter import scattered
from .einsum import einsum
from .node import Convert, Node, constant, shape_of
from .sizes import Extent, Size, broadcast, is_same

op = relax.op


def converters() -> dict[str, Convert]:
    return {
        "AveragePool": _average_pool,
        "BatchNormalization": _batch_norm,
        "Col2Im": _col2im,
        "Conv": _conv,
        "ConvTranspose": _conv_transpose,
        "DeformConv": _deform_conv,
        "Einsum": einsum,
        "Gemm": _gemm,
        "GlobalAveragePool": lambda n: _over_pixels(n, op.mean),
        "GlobalLpPool": _global_lp_pool,
        "GlobalMaxPool": lambda n: _over_pixels(n, op.max),
        "GroupNormalization": _group_norm,
        "InstanceNormalization": _instance_norm,
        "LayerNormalization": _layer_norm,
        "LRN": _local_response_norm,
        "LpNormalization": _lp_norm,
        "LpPool": _lp_pool,
        "MatMul": _matmul,
        "MaxPool": _max_pool,
    }


# --- sums of products


CONVOLUTIONS = {
    3: (op.nn.conv1d, "NCW", "OIW"),
    4: (op.nn.conv2d, "NCHW", "OIHW"),
    5: (op.nn.conv3d, "NCDHW", "OIDHW"),
}
TRANSPOSED = {
    3: (op.nn.conv1d_transpose, "NCW", "IOW"),
    4: (op.nn.conv2d_transpose, "NCHW", "IOHW"),
    5: (op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}


def _conv(n: Node) -> relax.Expr:
    if n.rank() not in CONVOLUTIONS:
        n.refuse(f"data of {n.rank()} axes is not supported, only of 3 to 5")
    build, data_layout, kernel_layout = CONVOLUTIONS[n.rank()]
    kernel, strides, dilations = _window(n, n.shape(1)[2:])
    result = build(
        n.data(0),
        n.data(1),
        strides=strides,
        padding=_pads(n, kernel, strides, dilations),
        dilation=dilations,
        groups=n.attribute("group"),
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_dtype=_accumulator(n),
    )
    return _with_bias(n, _rounded(n, result))


def _conv_transpose(n: Node) -> relax.Expr:
    if n.rank() not in TRANSPOSED:
        n.refuse(f"data of {n.rank()} axes is not supported, only of 3 to 5")
    build, data_layout, kernel_layout = TRANSPOSED[n.rank()]
    kernel, strides, dilations = _window(n, n.shape(1)[2:])
    axes = len(kernel)
    extra = list(n.attribute("output_padding") or [0] * axes)
    pads = _pads_of_transposed(n, kernel, strides, dilations, extra)
    result = build(
        n.data(0),
        n.data(1),
        strides=strides,
        padding=pads,
        output_padding=extra,
        dilation=dilations,
        groups=n.attribute("group"),
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_dtype=_accumulator(n),
    )
    return _with_bias(n, _rounded(n, result))


def _deform_conv(n: Node) -> relax.Expr:
    n.only_floats()
    if n.rank() != 4:
        n.refuse(f"data of {n.rank()} axes is not supported, only images of 4")
    _, strides, dilations = _window(n, n.shape(1)[2:])
    pads = n.attribute("pads") or [0, 0]  # what is behind the image is in the shape of the offsets
    convolve = DeformConv2d(strides, pads[:2], dilations, n.attribute("group"), n.attribute("offset_group"))
    data, weight, offset = (n.data(place) for place in range(3))
    mask = n.data(4) if n.has(4) else None
    result = n.emit(
        convolve(OfRelax(n.builder), data, weight, offset, mask, [n.shape(at) for at in range(3)])
    )
    return op.add(result, op.reshape(n.data(3), (1, -1, 1, 1))) if n.has(3) else result


def _col2im(n: Node) -> relax.Expr:
    """By adding up what windows have of one pixel."""
    n.only_floats()
    (batch, rows, _), size, kernel = n.shape(0), n.integers(1), n.integers(2)
    ones, axes = [1] * len(size), range(len(size))
    pads = n.attribute("pads") or [0] * (2 * len(size))
    strides, dilations = n.attribute("strides") or ones, n.attribute("dilations") or ones
    extents = [pads[axis] + size[axis] + pads[len(size) + axis] for axis in axes]
    table = places_of_columns(n.shape(0), extents, kernel, strides, dilations)
    planes = batch * (rows // math.prod(kernel))
    places = n.emit(op.broadcast_to(constant(table.reshape(1, -1)), (planes, table.size)))
    columns = n.emit(op.reshape(n.data(0), (planes, table.size)))
    empty = n.emit(op.zeros((planes, math.prod(extents)), n.dtype()))
    sums = n.emit(scattered(n.emit, empty, places, columns, 1, "add"))
    image = op.reshape(sums, (batch, planes // batch, *extents))
    ends = [pads[axis] + size[axis] for axis in axes]
    return op.strided_slice(n.emit(image), [2 + axis for axis in axes], pads[: len(size)], ends)


def _pads_of_transposed(
    n: Node, kernel: list[int], strides: list[int], dilations: list[int], extra: list[int]
) -> list[int]:
    """What is cut off in front of each axis, then behind each, so that the result has its shape."""
    how, shape, before = n.attribute("auto_pad"), n.attribute("output_shape"), n.shape(0)[2:]
    pads = n.attribute("pads")
    if not shape and not how.startswith("SAME"):
        return list(pads or [0] * (2 * len(kernel)))
    after = shape or [size * stride for size, stride in zip(before, strides)]
    front, behind = [], []
    for axis, extent in enumerate(kernel):
        whole = (before[axis] - 1) * strides[axis] + (extent - 1) * dilations[axis] + 1 + extra[axis]
        smaller = (whole - after[axis]) // 2
        larger = whole - after[axis] - smaller
        if smaller < 0:
            n.refuse(f"its result of {whole} pixels is smaller than {after[axis]}: export it with pads")
        front.append(smaller if how == "SAME_UPPER" else larger)
        behind.append(larger if how == "SAME_UPPER" else smaller)
    return front + behind


def _with_bias(n: Node, result: relax.Expr) -> relax.Expr:
    if not n.has(2):
        return result
    return op.add(result, op.reshape(n.data(2), (1, -1, *[1] * (n.rank() - 2))))


def _window(n: Node, of_weights: tuple[int, ...] | None = None) -> tuple[list[int], list[int], list[int]]:
    """The sizes, strides and dilations of a window."""
    kernel = list(n.attribute("kernel_shape") or of_weights or ())
    if len(kernel) != n.rank() - 2 or (of_weights and kernel != list(of_weights)):
        n.refuse(f"its kernel_shape is {kernel}, of data of {n.rank()} axes")
    ones = [1] * len(kernel)
    return kernel, list(n.attribute("strides") or ones), list(n.attribute("dilations") or ones)


def _pads(n: Node, kernel: list[int], strides: list[int], dilations: list[int]) -> list[int]:
    """In front of each axis, then behind each."""
    how, pads = n.attribute("auto_pad"), n.attribute("pads")
    if how == "NOTSET":
        return list(pads or [0] * (2 * len(kernel)))
    before, behind = [0] * len(kernel), [0] * len(kernel)
    if how.startswith("SAME"):
        for axis, (size, extent) in enumerate(zip(n.shape(0)[2:], kernel)):
            reach = (extent - 1) * dilations[axis] + 1
            total = max((-(-size // strides[axis]) - 1) * strides[axis] + reach - size, 0)
            smaller, larger = total // 2, total - total // 2
            before[axis], behind[axis] = (smaller, larger) if how == "SAME_UPPER" else (larger, smaller)
    return before + behind


def check_pixels(n: Node, results: Sequence[relax.Expr]) -> None:
    """That windows fit into images of open sizes, of which TVM would make less than none."""
    for size in (size for result in results for size in shape_of(result)[2:]):
        if isinstance(size, Size) and not size > 0:
            n.refuse(f"its result has {size} pixels along an axis, which is never one")


def _matmul(n: Node) -> relax.Expr:
    n.only_floats()
    left, right = n.shape(0), n.shape(1)
    broadcast(left[:-2], right[:-2])
    _check_inner(n, left[-1], right[-2:][0])
    return _rounded(n, op.matmul(n.data(0), n.data(1), out_dtype=_accumulator(n)))


def _gemm(n: Node) -> relax.Expr:
    n.only_floats()
    left, right = (
        op.permute_dims(n.data(place), [1, 0]) if n.attribute(name) else n.data(place)
        for place, name in enumerate(("transA", "transB"))
    )
    of_left, of_right = n.shape(0), n.shape(1)
    _check_inner(n, of_left[not n.attribute("transA")], of_right[bool(n.attribute("transB"))])
    result = op.matmul(left, right, out_dtype=_accumulator(n))
    alpha, beta = n.attribute("alpha"), n.attribute("beta")
    if alpha != 1:
        result = op.multiply(result, relax.const(alpha, _accumulator(n)))
    result = _rounded(n, result)
    if not n.has(2) or beta == 0:  # of NaN, too
        return result
    added = n.data(2)
    return op.add(result, added if beta == 1 else op.multiply(added, n.number(beta)))


def _check_inner(n: Node, one: Extent, other: Extent) -> None:
    """TVM compares extents that it knows, and reads beyond the end of what has fewer."""
    if one != other:
        n.refuse(f"sums of {one} and of {other} products do not fit")


def _accumulator(n: Node) -> str:
    """The type in which products are summed."""
    n.only_floats()
    return "float32" if n.dtype() == "float16" else n.dtype()


def _rounded(n: Node, sums: relax.Expr) -> relax.Expr:
    """Sums of products in the type of the data."""
    return n.emit(sums if _accumulator(n) == n.dtype() else op.astype(n.emit(sums), n.dtype()))


# --- pooling


MAX_POOLS: dict[int, Any] = {3: op.nn.max_pool1d, 4: op.nn.max_pool2d, 5: op.nn.max_pool3d}
AVERAGE_POOLS: dict[int, Any] = {3: op.nn.avg_pool1d, 4: op.nn.avg_pool2d, 5: op.nn.avg_pool3d}


def _max_pool(n: Node) -> Any:
    is_column_major = bool(n.attribute("storage_order"))
    if len(n.proto.output) == 1:
        return _pool(n, MAX_POOLS)
    (batch, channels, *extents), counts = n.shape(0), _counts(n)
    kernel, strides, dilations = _window(n)
    pads = _pads(n, kernel, strides, dilations)
    places = [
        places_of_windows(count, size, kernel=each, stride=stride, front=front, dilation=dilation)
        for count, size, each, stride, front, dilation in zip(
            counts, extents, kernel, strides, pads, dilations
        )
    ]
    maxima, found = maxima_and_places(n.emit, n.data(0), places, is_column_major)
    planes = np.arange(batch * channels).reshape(batch, channels, *[1] * len(extents)) * math.prod(extents)
    return [maxima, op.add(found, constant(planes))]


def _counts(n: Node) -> list[int]:
    """How many windows there are along each axis: none begins behind the image."""
    kernel, strides, dilations = _window(n)
    pads, axes = _pads(n, kernel, strides, dilations), len(kernel)
    counts = []
    for axis, size in enumerate(n.shape(0)[2:]):
        left = size + pads[axis] + pads[axes + axis] - (kernel[axis] - 1) * dilations[axis] - 1
        count = (-(-left // strides[axis]) if n.attribute("ceil_mode") else left // strides[axis]) + 1
        counts.append(count - ((count - 1) * strides[axis] >= size + pads[axis]))
    return counts


def _average_pool(n: Node) -> relax.Expr:
    n.only_floats()
    all_count = bool(n.attribute("count_include_pad"))
    if max(_window(n)[2]) == 1:
        return _pool(n, AVERAGE_POOLS, count_include_pad=all_count)
    if n.attribute("auto_pad").startswith("SAME"):
        n.refuse("dilations are not supported with auto_pad, for which ONNX Runtime ignores them: use pads")
    return op.divide(_sums_of_windows(n, n.data(0)), constant(_elements(n, all_count).astype(n.dtype())))


def _lp_pool(n: Node) -> relax.Expr:
    return _root(n, _sums_of_windows(n, _power(n)))


def _global_lp_pool(n: Node) -> relax.Expr:
    return _root(n, _over_pixels(n, lambda _, axes, keepdims: op.sum(_power(n), axes, keepdims)))


def _power(n: Node) -> relax.Expr:
    n.only_floats()
    data, p = n.data(0), n.attribute("p")
    return op.multiply(data, data) if p == 2 else op.power(n.emit(op.abs(data)), n.number(p))


def _root(n: Node, sums: relax.Expr) -> relax.Expr:
    p = n.attribute("p")
    return op.sqrt(sums) if p == 2 else op.power(sums, n.number(1 / p))


def _sums_of_windows(n: Node, data: relax.Expr) -> relax.Expr:
    """With zeros around the data, by which all windows are whole."""
    if n.rank() not in AVERAGE_POOLS:
        n.refuse(f"data of {n.rank()} axes is not supported, only of 3 to 5")
    kernel, strides, dilations = _window(n)
    pads = _pads(n, kernel, strides, dilations)
    widths = [0, 0, 0, 0]
    for axis, (size, count) in enumerate(zip(n.shape(0)[2:], _counts(n))):
        reach = (count - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        widths += [pads[axis], max(reach - size - pads[axis], 0)]
    padded = n.emit(op.nn.pad(n.emit(data), widths))
    means = AVERAGE_POOLS[n.rank()](padded, kernel, strides, dilation=dilations)
    return op.multiply(n.emit(means), n.number(math.prod(kernel)))


def _elements(n: Node, all_count: bool) -> np.ndarray:
    """How many elements each window has, with or without those of the padding."""
    kernel, strides, dilations = _window(n)
    pads, axes = _pads(n, kernel, strides, dilations), len(kernel)
    found = np.ones([1] * axes, "int64")
    for axis, (size, count) in enumerate(zip(n.shape(0)[2:], _counts(n))):
        at = np.arange(count)[:, None] * strides[axis] + np.arange(kernel[axis]) * dilations[axis]
        at -= pads[axis]
        first, end = (-pads[axis], size + pads[axes + axis]) if all_count else (0, size)
        inside = ((at >= first) & (at < end)).sum(1)
        found = found * inside.reshape(-1, *[1] * (axes - 1 - axis))
    return found


def _pool(n: Node, pools: dict[int, Any], **options: Any) -> relax.Expr:
    if n.rank() not in pools:
        n.refuse(f"data of {n.rank()} axes is not supported, only of 3 to 5")
    kernel, strides, dilations = _window(n)
    pads = _pads(n, kernel, strides, dilations)
    ceil_mode = bool(n.attribute("ceil_mode"))
    return pools[n.rank()](
        n.data(0),
        pool_size=kernel,
        strides=strides,
        padding=pads,
        dilation=dilations,
        ceil_mode=ceil_mode,
        **options,
    )


def _over_pixels(n: Node, build: Any) -> relax.Expr:
    n.only_floats()
    return build(n.data(0), list(range(2, n.rank())), keepdims=True)


# --- normalization


def _batch_norm(n: Node) -> relax.Expr:
    n.attribute("momentum")
    if n.attribute("training_mode"):
        n.refuse("it normalizes by the moments of the data: export the model in evaluation mode")
    norm = op.nn.batch_norm(*n.all_data(), axis=1, epsilon=n.attribute("epsilon"), training=False)
    return relax.TupleGetItem(n.emit(norm), 0)


def _instance_norm(n: Node) -> relax.Expr:
    """As a normalization of groups: each a channel, or the channels that PyTorch joins to one for it."""
    n.only_floats()
    data, (batch, groups, *_) = n.data(0), n.shape(0)
    joined = n.reshaped(data)
    if joined is not None and len(joined.ty.shape) > 2:
        of_batch, channels, *_ = shape_of(joined)
        if is_same(of_batch, batch) and isinstance(channels, int) and channels % groups == 0:
            data = joined
    channels, rank = shape_of(data)[1], data.ty.ndim
    scale, bias = (_for_each(n, place, channels // groups) for place in (1, 2))
    axes, epsilon = list(range(2, rank)), n.attribute("epsilon")
    normal = op.nn.group_norm(data, scale, bias, groups, 1, axes, epsilon=epsilon)
    return normal if data is n.data(0) else op.reshape(n.emit(normal), n.shape(0))


def _for_each(n: Node, place: int, count: int) -> relax.Expr:
    """Numbers of groups, for each of this many channels."""
    numbers = n.inputs[place]
    if isinstance(numbers, np.ndarray):
        return constant(np.repeat(numbers, count))
    return n.emit(op.repeat(n.data(place), count, 0)) if count > 1 else n.data(place)


def _layer_norm(n: Node) -> list[relax.Expr]:
    """With the mean, and the inverse of the standard deviation, if they are asked for."""
    n.only_floats()
    axes = list(range(n.axis(), n.rank()))
    scale, shape = n.data(1), n.shape(0)[axes[0] :]
    bias = n.data(2) if n.has(2) else constant(np.zeros(shape, n.dtype()))
    if n.shape(1) != shape or (n.has(2) and n.shape(2) != shape):
        n.refuse(f"its scale or bias is not of the shape {list(shape)}")
    epsilon = n.attribute("epsilon")
    results = [op.nn.layer_norm(n.data(0), scale, bias, axes, epsilon=epsilon)]
    if len(n.proto.output) > 1:
        variance = op.variance(n.data(0), axes, keepdims=True)
        results.append(op.mean(n.data(0), axes, keepdims=True))
        results.append(op.rsqrt(n.emit(op.add(variance, n.number(epsilon)))))
    return results


def _lp_norm(n: Node) -> relax.Expr:
    """Rows of zeros stay."""
    n.only_floats()
    data, axis = n.data(0), [n.axis()]
    if n.attribute("p") == 1:
        norm = op.sum(op.abs(data), axis, True)
    else:
        norm = op.sqrt(op.sum(op.multiply(data, data), axis, True))
    zero = n.number(0)
    return op.where(op.equal(norm, zero), zero, op.divide(data, norm))


def _group_norm(n: Node) -> relax.Expr:
    n.only_floats()
    groups, channels = n.attribute("num_groups"), n.shape(0)[1]
    if n.shape(1) != (channels,):
        n.refuse("before opset 21 it scales groups, not channels: export the model for opset 21 or later")
    return op.nn.group_norm(
        n.data(0), n.data(1), n.data(2), groups, 1, list(range(2, n.rank())), epsilon=n.attribute("epsilon")
    )


def _local_response_norm(n: Node) -> relax.Expr:
    """By sums over windows of channels: an average pool of columns, as long as there are channels."""
    n.only_floats()
    size, shape, x = n.attribute("size"), n.shape(0), n.data(0)
    columns = op.reshape(op.multiply(x, x), (shape[0], 1, shape[1], math.prod(shape[2:])))
    pads = [(size - 1) // 2, 0, size // 2, 0]
    means = op.nn.avg_pool2d(n.emit(columns), (size, 1), padding=pads, count_include_pad=True)
    scaled = op.multiply(op.reshape(n.emit(means), shape), n.number(n.attribute("alpha")))
    return op.divide(
        x, op.power(op.add(scaled, n.number(n.attribute("bias"))), n.number(n.attribute("beta")))
    )
