"""Gather, TopK and others that take elements by their indices."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from tvm_passes.analysis.limits import never_negative
from tvm_passes.engine.expressions import type_of

from tvm import relay

from ..._fold import constant
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    axis_of,
    dtype_of,
    in_float32,
    like,
    rank_of,
    several,
    sizes_of,
    stock,
)


def gather(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own counts indices from the end by the length of another axis if the axis is negative.

    It wraps indices around at run time even if they cannot be negative, and does so with `where`, whose shape
    function takes a scalar for a vector, so that a gather by a scalar has a wrong shape.
    """
    data, indices = inputs
    axis = axis_of(attrs.get("axis", 0), rank_of(data))
    if never_negative(indices):
        return relay.take(data, indices, axis)
    if isinstance(indices, relay.Constant) or len(type_of(indices).shape):
        return stock(importer, "Gather")([data, indices], {"axis": axis}, params)
    dtype = type_of(indices).dtype
    size = relay.take(relay.shape_of(data, dtype), relay.const(axis, "int64"), mode="wrap")
    negative = relay.cast(indices < relay.const(0, dtype), dtype)
    return relay.take(data, indices + negative * size, axis)


def gather_elements(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """As `gather`; and TVM's own needs as many indices as elements along the other axes."""
    data, indices = inputs
    rank, wanted = rank_of(data), sizes_of(indices)
    axis = axis_of(attrs.get("axis", 0), rank)
    if None not in wanted:  # where the data's size is unknown, nothing is compared
        places = [
            place
            for place, size in enumerate(sizes_of(data))
            if place != axis and size not in (None, wanted[place])
        ]
        if places:
            ends = [wanted[place] for place in places]
            zeros, ones = [0] * len(places), [1] * len(places)
            data = relay.strided_slice(data, zeros, ends, ones, axes=places)
    return stock(importer, "GatherElements")([data, indices], {"axis": axis}, params)


def gather_nd(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not say that an index may count from the end."""
    data, indices = inputs
    given = _from_the_start(data, indices, attrs.get("batch_dims", 0))
    return stock(importer, "GatherND")([data, given], attrs, params)


def _from_the_start(data: relay.Expr, indices: relay.Expr, first: int = 0) -> relay.Expr:
    """Indices of the axes from `first` on, one for each axis, without negative ones."""
    if never_negative(indices):
        return indices
    dtype, count = dtype_of(indices), sizes_of(indices)[-1]
    if count is None:
        raise NotImplementedError("it needs to know how many axes its indices have")
    lengths = relay.strided_slice(relay.shape_of(data, dtype), [first], [first + count])
    return relay.where(indices < relay.const(0, dtype), indices + lengths, indices)


def top_k(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own refuses the smallest, and lacks the attribute `k` of opset 9."""
    attrs.get("sorted")  # a sorted result is valid even if none is asked for
    data, k = inputs[0], inputs[1]
    axis, largest = axis_of(attrs.get("axis", -1), rank_of(data)), bool(attrs.get("largest", 1))
    if k is None or isinstance(k, relay.Constant):
        count, size = attrs["k"] if k is None else int(k.data.numpy().item()), sizes_of(data)[axis]
        if count < 0 or (size is not None and count > size):
            raise NotImplementedError(f"it selects {count} of {'some' if size is None else size}")
        if count == 0:
            shape = [0 if place == axis else each for place, each in enumerate(all_sizes_of(data))]
            return several(*(constant(np.zeros(shape, dtype)) for dtype in (dtype_of(data), "int64")))
        k = constant(np.array([count], "int64"))
    return relay.topk(data, k, axis, is_ascend=not largest, dtype="int64")


def cum_sum(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs a constant axis."""
    return _scanned(relay.cumsum, inputs, attrs)


def cum_prod(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM lacks it."""
    return _scanned(relay.cumprod, inputs, attrs)


def _scanned(scan: Callable[..., relay.Expr], inputs: Inputs, attrs: Attrs) -> relay.Expr:
    data, axis = inputs[0], inputs[1]
    rank, exclusive = rank_of(data), bool(attrs.get("exclusive", 0))
    backwards = bool(attrs.get("reverse", 0))

    def along(place: int) -> relay.Expr:
        if not backwards:
            return scan(data, place, exclusive=exclusive)
        return relay.reverse(scan(relay.reverse(data, place), place, exclusive=exclusive), place)

    if isinstance(axis, relay.Constant):
        return along(axis_of(int(axis.data.numpy().item()), rank))
    axis = relay.reshape(relay.cast(axis, "int32"), [])
    result = data
    for place in range(rank):
        is_this = relay.logical_or(
            relay.equal(axis, relay.const(place)), relay.equal(axis, relay.const(place - rank))
        )
        result = relay.where(is_this, along(place), result)
    return result


def scatter(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own fails if sizes of the indices are not known; `ScatterElements` replaces it in opset 11."""
    data, indices, updates = inputs
    return relay.scatter_elements(data, indices, updates, axis_of(attrs.get("axis", 0), rank_of(data)))


def scatter_elements(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own knows no reduction by the name of none."""
    return stock(importer, "ScatterElements")(inputs, _with_reduction(attrs), params)


def scatter_nd(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own writes outside of the data where an index counts from the end; and it knows no "none"."""
    data, indices, updates = inputs
    given = [data, _from_the_start(data, indices), updates]
    return stock(importer, "ScatterND")(given, _with_reduction(attrs), params)


def _with_reduction(attrs: Attrs) -> Attrs:
    """Those that TVM's own understand."""
    return {**attrs, "reduction": b"update"} if attrs.get("reduction") == b"none" else attrs


def non_zero(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not compile for a scalar."""
    if rank_of(inputs[0]) == 0:
        raise NotImplementedError("it is of a scalar, which has no indices")
    return stock(importer, "NonZero")(inputs, attrs, params)


def one_hot(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes no depth of floats."""
    indices, depth, values = inputs
    depth = importer.fold_constant(relay.cast(depth, "int64"))
    return stock(importer, "OneHot")([indices, depth, values], attrs, params)


def trilu(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own accepts dynamic sizes, for which there is no kernel to compile."""
    if None not in sizes_of(inputs[0]):
        return stock(importer, "Trilu")(inputs, attrs, params)
    data, diagonal = inputs[0], inputs[1]
    diagonal = relay.const(0, "int64") if diagonal is None else relay.reshape(diagonal, [])
    keeps = relay.greater_equal if attrs.get("upper", 1) else relay.less_equal
    return relay.where(keeps(_right_of_diagonal(importer, data), diagonal), data, like(0, data))


def eye_like(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own writes what is behind the last column into the next row."""
    data, dtype = inputs[0], attrs.get("dtype")
    diagonal = relay.const(attrs.get("k", 0), "int64")
    is_one = relay.equal(_right_of_diagonal(importer, data), diagonal)
    return relay.cast(is_one, dtype_of(data) if dtype is None else importer.get_type(dtype))


def _right_of_diagonal(importer: ModuleType, data: relay.Expr) -> relay.Expr:
    """How far each element of the last two axes is to the right of the main diagonal."""
    shape, rank = relay.shape_of(data, "int64"), rank_of(data)
    zero, one = relay.const(0, "int64"), relay.const(1, "int64")
    rows, columns = (
        relay.arange(zero, relay.take(shape, relay.const(axis)), one, "int64")
        for axis in (rank - 2, rank - 1)
    )
    return importer.fold_constant(columns - relay.expand_dims(rows, 1))


def grid_sample(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own lacks volumes, and the names that modes have since opset 20."""
    data, grid = inputs
    mode = attrs.get("mode", b"linear").decode()
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    rank = rank_of(data)
    if rank not in (4, 5) or (rank == 5 and mode == "bicubic"):
        raise NotImplementedError(f"its mode {mode} is not supported along {rank - 2} axes")
    grid = relay.transpose(grid, [0, rank - 1, *range(1, rank - 1)])
    layout = "NCHW" if rank == 4 else "NCDHW"
    padding = attrs.get("padding_mode", b"zeros").decode()
    return relay.image.grid_sample(data, grid, mode, layout, padding, bool(attrs.get("align_corners", 0)))


CONVERTERS: dict[str, Converter] = {
    "CumProd": in_float32(cum_prod),
    "CumSum": in_float32(cum_sum),
    "EyeLike": eye_like,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "GridSample": grid_sample,
    "NonZero": non_zero,
    "OneHot": one_hot,
    "Scatter": scatter,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
    "Trilu": trilu,
}
