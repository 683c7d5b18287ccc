"""Converters of operators of torch in place of TVM's, which are wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import fx
from tvm_ffi import structural_map

from tvm import relax, te, tirx
from tvm.ir import Expr
from tvm.tirx.analysis import undefined_vars

from .._pytorch.resizing import Axis, is_ignored
from ..errors import ImportFailure
from ._max_pool import maxima_and_places, places_of_adaptive_windows, places_of_windows
from ._onnx.node import dtype_of, shape_of
from ._resample import resampled, resampled_bytes
from ._scatter import scattered

Importer = Any

# What TVM's importer takes for something else.
WRONG = (
    # The argument, zeros or constants for what is random. In evaluation torch removes a dropout.
    "bernoulli.p",
    "dropout.default",
    "exponential.default",
    "native_dropout.default",
    "randn.default",
    "randn_like.default",
    # Strides in the memory of another tensor than torch's.
    "as_strided.default",
)


def converters() -> dict[str, Callable[[fx.Node, Importer], Any]]:
    """By the name of an operator of torch, what makes its node in Relax."""
    return {
        **dict.fromkeys(("bmm.default", "matmul.default", "mm.default"), _matmul),
        "_native_batch_norm_legit_functional.default": _batch_norm_by_the_batch,
        "_upsample_bicubic2d_aa.default": functools.partial(_resized, "cubic", True),
        "_upsample_bilinear2d_aa.default": functools.partial(_resized, "linear", True),
        "adaptive_max_pool2d.default": _adaptive_max_pool,
        "adaptive_max_pool3d.default": _adaptive_max_pool,
        "amax.default": functools.partial(_extreme, relax.op.max),
        "amin.default": functools.partial(_extreme, relax.op.min),
        "bitwise_left_shift.Tensor": functools.partial(_shift, relax.op.left_shift),
        "bitwise_right_shift.Tensor": functools.partial(_shift, relax.op.right_shift),
        "convolution.default": _convolution,
        "grid_sampler_2d.default": _grid_sample,
        "grid_sampler_3d.default": _grid_sample,
        "index.Tensor": _index,
        "max_pool2d_with_indices.default": _max_pool,
        "max_pool3d_with_indices.default": _max_pool,
        "index_put.default": _index_put,
        "prod.dim_int": _product,
        "scalar_tensor.default": _scalar,
        "scatter.src": _scatter,
        "scatter_reduce.two": _scatter_reduce,
        "scatter_add.default": functools.partial(_scatter, reduction="add"),
        "upsample_bicubic2d.vec": functools.partial(
            _resized, "cubic", False
        ),  # of bytes, as all that is left
        "upsample_bilinear2d.vec": _bilinear,
    }


def _extreme(build: Callable[..., Any], node: fx.Node, importer: Importer) -> Any:
    def built(data: Any, axes: Sequence[int] = (), keepdims: bool = False) -> Any:
        return build(data, list(axes) or None, keepdims)

    return importer.block_builder.emit(built(*importer.retrieve_args(node)))


def _shift(build: Callable[..., Any], node: fx.Node, importer: Importer) -> Any:
    """By less than no bit or by all bits, which is not defined for TVM, nothing but the sign is left."""
    data, by = importer.retrieve_args(node)
    dtype = dtype_of(data)
    bits = np.iinfo(dtype).bits
    none, last, all_bits = (relax.const(number, dtype) for number in (0, bits - 1, bits))
    emit = importer.block_builder.emit
    is_out = emit(relax.op.logical_or(relax.op.less(by, none), relax.op.greater_equal(by, all_bits)))
    shifted = emit(build(data, relax.op.where(is_out, last, by)))
    keeps_sign = build is relax.op.right_shift and not dtype.startswith("u")
    return shifted if keeps_sign else emit(relax.op.where(is_out, none, shifted))


def _product(node: fx.Node, importer: Importer) -> Any:
    data, axis, *keepdims = importer.retrieve_args(node)
    return importer.block_builder.emit(relax.op.prod(data, [axis], *keepdims))


def _scatter(node: fx.Node, importer: Importer, reduction: str = "update") -> Any:
    data, axis, index, source = importer.retrieve_args(node)
    emit = importer.block_builder.emit
    return emit(scattered(emit, data, index, source, axis % max(data.ty.ndim, 1), reduction))


def _scatter_reduce(node: fx.Node, importer: Importer) -> Any:
    """Products and extremes, of which TVM's lose NaN."""
    data, axis, index, source, how, *_ = importer.retrieve_args(node)
    emit, op, axis = importer.block_builder.emit, relax.op, axis % max(data.ty.ndim, 1)
    if how == "prod":
        return emit(scattered(emit, data, index, source, axis, "mul"))
    if "float" not in dtype_of(data):
        return emit(scattered(emit, data, index, source, axis, how[1:]))
    dtype, nan = dtype_of(data), [emit(op.isnan(each)) for each in (data, source)]
    last = relax.const(-np.inf if how == "amax" else np.inf, dtype)
    numbers = [emit(op.where(is_nan, last, each)) for is_nan, each in zip(nan, (data, source))]
    extremes = emit(scattered(emit, numbers[0], index, numbers[1], axis, how[1:]))
    counts = [emit(op.astype(is_nan, "int32")) for is_nan in nan]
    count = emit(scattered(emit, counts[0], index, counts[1], axis, "add"))
    return emit(op.where(op.greater(count, relax.const(0, "int32")), relax.const(np.nan, dtype), extremes))


def _matmul(node: fx.Node, importer: Importer) -> Any:
    left, right = importer.retrieve_args(node)
    return _rounded(importer, relax.op.matmul(left, right, out_dtype=_accumulator(left)), left)


CONVOLUTIONS = {
    (False, 3): (relax.op.nn.conv1d, "NCW", "OIW"),
    (False, 4): (relax.op.nn.conv2d, "NCHW", "OIHW"),
    (False, 5): (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
    (True, 3): (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    (True, 4): (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
    (True, 5): (relax.op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}


def _convolution(node: fx.Node, importer: Importer) -> Any:
    data, weight, bias, strides, padding, dilation, is_transposed, output_padding, groups = (
        importer.retrieve_args(node)
    )
    build, data_layout, kernel_layout = CONVOLUTIONS[is_transposed, data.ty.ndim]
    options = {"output_padding": output_padding} if is_transposed else {}
    result = build(
        data,
        weight,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_dtype=_accumulator(data),
        **options,
    )
    result = _rounded(importer, result, data)
    if bias is None:
        return result
    return importer.block_builder.emit(result + relax.op.reshape(bias, (1, -1, *[1] * (data.ty.ndim - 2))))


def _accumulator(data: Any) -> str:
    """The type in which torch sums products."""
    dtype = str(data.ty.dtype.dtype)
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _rounded(importer: Importer, sums: Any, data: Any) -> Any:
    """Sums of products in the type of the data."""
    sums = importer.block_builder.emit(sums)
    dtype = str(data.ty.dtype.dtype)
    return sums if _accumulator(data) == dtype else importer.block_builder.emit(relax.op.astype(sums, dtype))


def _batch_norm_by_the_batch(node: fx.Node, importer: Importer) -> Any:
    """TVM has other numbers for the moments of the batch, the second and third result."""
    if any(user.args[1] in (1, 2) and user.users for user in node.users):
        raise ImportFailure("Relax has no moments of native_batch_norm: compute them by torch.var_mean")
    return importer._batch_norm_legit_functional(node)


def _scalar(node: fx.Node, importer: Importer) -> Any:
    """Of a number, or of a size that only the run knows."""
    (number,) = importer.retrieve_args(node)
    dtype = importer._convert_data_type(node.meta["val"].dtype)
    if not isinstance(number, Expr):
        return relax.const(number, dtype)
    variables = undefined_vars(number)

    def size(*given: Expr) -> te.Tensor:
        of_given = dict(zip(variables, given))
        value = structural_map(number, (tirx.Var, lambda variable: of_given[variable]), order="post")
        return te.compute((), lambda: value.astype(dtype), "size")

    return importer.block_builder.emit_te(size, *variables)


POOLS = {2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}


def _max_pool(node: fx.Node, importer: Importer) -> Any:
    """With the places of the maxima, if anything reads them."""
    data, size, *options = importer.retrieve_args(node)
    defaults: list[Any] = [None, 0, 1, False]
    stride, padding, dilation, ceil_mode = options + defaults[len(options) :]
    emit, axes, stride = importer.block_builder.emit, len(size), stride or size
    padding, dilation = ([each] * axes if isinstance(each, int) else each for each in (padding, dilation))
    given, data = data, _as_batch(emit, data, axes)
    if all(user.args[1] == 0 for user in node.users):
        found = [emit(POOLS[axes](data, size, stride, padding, dilation, ceil_mode=ceil_mode))]
    else:
        extents = zip(node.meta["val"][0].shape[-axes:], shape_of(data)[2:])
        places = [
            places_of_windows(count, before, kernel=kernel, stride=step, front=front, dilation=apart)
            for (count, before), kernel, step, front, apart in zip(extents, size, stride, padding, dilation)
        ]
        found = list(maxima_and_places(emit, data, places))
    return _as_given(emit, found, given)


def _adaptive_max_pool(node: fx.Node, importer: Importer) -> Any:
    data, size = importer.retrieve_args(node)
    emit, batch = importer.block_builder.emit, _as_batch(importer.block_builder.emit, data, len(size))
    places = [places_of_adaptive_windows(*each) for each in zip(size, shape_of(batch)[2:])]
    return _as_given(emit, list(maxima_and_places(emit, batch, places)), data)


def _as_batch(emit: Any, data: Any, axes: int) -> Any:
    return emit(relax.op.expand_dims(data, 0)) if data.ty.ndim == axes + 1 else data


def _as_given(emit: Any, found: list[Any], data: Any) -> list[Any]:
    """Without the axis of the batch, if the data have none."""
    is_single = data.ty.ndim < found[0].ty.ndim
    return [emit(relax.op.squeeze(each, [0])) for each in found] if is_single else found


def _resized(mode: str, antialias: bool, node: fx.Node, importer: Importer) -> Any:
    """Of images of which TVM knows neither the weights nor how torch rounds them."""
    data, _, align_corners, *scales = importer.retrieve_args(node)
    scales = scales[0] if len(scales) == 1 else scales  # two numbers, or a list of them
    emit, dtype, sizes = importer.block_builder.emit, dtype_of(data), list(node.meta["val"].shape[2:])
    precision = np.float64 if dtype in ("float64", "uint8") else np.float32
    taps = {}
    for axis, (before, after, scale) in enumerate(zip(shape_of(data)[2:], sizes, scales or (None, None)), 2):
        scale = None if is_ignored(before, after, sizes, mode, antialias) else scale
        taps[axis] = Axis(before, after, scale, align_corners, precision).taps(mode, antialias)
    return emit((resampled_bytes if dtype == "uint8" else resampled)(emit, data, taps))


def _bilinear(node: fx.Node, importer: Importer) -> Any:
    if dtype_of(importer.retrieve_args(node)[0]) == "uint8":
        return _resized("linear", False, node, importer)
    return importer._upsample_bilinear2d(node)


def _grid_sample(node: fx.Node, importer: Importer) -> Any:
    data, grid, method, padding, align_corners = importer.retrieve_args(node)
    rank = data.ty.ndim
    return importer.block_builder.emit(
        relax.op.image.grid_sample(
            data,
            relax.op.permute_dims(grid, [0, rank - 1, *range(1, rank - 1)]),  # x, y and z come first
            method=("bilinear", "nearest", "bicubic")[method],
            layout="NCHW" if rank == 4 else "NCDHW",
            padding_mode=("zeros", "border", "reflection")[padding],
            align_corners=align_corners,
        )
    )


def _index(node: fx.Node, importer: Importer) -> Any:
    data, indices = importer.retrieve_args(node)
    emit = importer.block_builder.emit
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if len(indexed) == 1:
        return emit(relax.op.take(data, indices[indexed[0]], axis=indexed[0]))
    front, back = _orders(data.ty.ndim, indices)
    moved = emit(relax.op.permute_dims(data, front))
    result = emit(relax.op.index_tensor(moved, [indices[axis] for axis in indexed]))
    return emit(relax.op.permute_dims(result, back))


def _index_put(node: fx.Node, importer: Importer) -> Any:
    """TVM's takes indices of some of the axes for those of the first, and does not broadcast values."""
    data, indices, values, *is_added = importer.retrieve_args(node)
    emit, op = importer.block_builder.emit, relax.op
    front, back = _orders(data.ty.ndim, indices)
    given = [index for index in indices if index is not None]
    shape = np.broadcast_shapes(*map(shape_of, given))
    if 0 in shape:  # TVM divides by the number of places
        return data
    places = [emit(op.broadcast_to(op.astype(index, "int64"), shape)) for index in given]
    taken = [*shape, *(shape_of(data)[axis] for axis in front[len(given) :])]
    values = emit(op.broadcast_to(values, [taken[axis] for axis in back]))
    changed = op.scatter_nd(
        emit(op.permute_dims(data, front)),
        emit(op.stack(places, -1)),
        emit(op.permute_dims(values, np.argsort(back).tolist())),
        "add" if any(is_added) else "update",
    )
    return emit(op.permute_dims(emit(changed), np.argsort(front).tolist()))


def _orders(rank: int, indices: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Of the axes, those with indices first, as TVM expects them; and of the result, to put them back."""
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    others = [axis for axis in range(rank) if axis not in indexed]
    is_together = indexed[-1] - indexed[0] == len(indexed) - 1
    in_front = indexed[0] if is_together else 0
    made = max(indices[axis].ty.ndim for axis in indexed)  # axes that the indices have
    last = made + len(others)
    return [*indexed, *others], [
        *range(made, made + in_front),
        *range(made),
        *range(made + in_front, last),
    ]
