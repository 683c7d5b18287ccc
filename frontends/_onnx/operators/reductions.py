"""ReduceSum and its kin, ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

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
    sizes_of,
)

Reduce = Callable[[relay.Expr, list, bool], relay.Expr]


def _reduction(
    reduce: Reduce, of_none: float, before: Callable | None, after: Callable | None, of_floats: bool = False
) -> Converter:
    """A converter; one `of_floats` computes integers in float64."""

    def convert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own takes only the first of several axes given as an input, or lacks that input."""
        data, keepdims = inputs[0], bool(attrs.get("keepdims", 1))
        axes = inputs[1] if len(inputs) > 1 else attrs.get("axes")
        does_nothing = bool(attrs.get("noop_with_empty_axes", 0))
        dtype, rank = dtype_of(data), rank_of(data)
        if dtype == "bool":
            data = relay.cast(data, "uint8")
        if of_floats and "int" in dtype:
            data = relay.cast(data, "float64")
        data = before(data) if before else data
        if isinstance(axes, relay.Constant):
            axes = axes.data.numpy().tolist()
        if axes is None or axes in ([], ()) or (isinstance(axes, relay.Expr) and sizes_of(axes) == (0,)):
            axes = [] if does_nothing else list(range(rank))
        if isinstance(axes, relay.Expr):
            result = _along_late_axes(importer, reduce, of_none, data, axes, keepdims)
        else:
            axes = [axis_of(axis, rank) for axis in axes]
            result = _along(reduce, of_none, data, axes, keepdims) if axes else data
        result = after(result) if after else result
        return result if dtype_of(result) == dtype else relay.cast(result, dtype)

    return convert


def _along(reduce: Reduce, of_none: float, data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    if 0 not in sizes_of(data):
        return reduce(data, axes, keepdims)
    shape = all_sizes_of(data, "the reduction of an empty tensor")
    # TVM cannot reduce zero elements. If another axis is empty, so is the result.
    kept = [1 if axis in axes else size for axis, size in enumerate(shape)]
    kept = kept if keepdims else [size for axis, size in enumerate(kept) if axis not in axes]
    return constant(np.full(kept, of_none, dtype_of(data)))


def _along_late_axes(
    importer: ModuleType, reduce: Reduce, of_none: float, data: relay.Expr, axes: relay.Expr, keepdims: bool
) -> relay.Expr:
    """Reduce along dynamic axes: along each axis in turn, and keep that if it is one of them."""
    rank, (count,) = rank_of(data), sizes_of(axes)
    if count is None:
        raise NotImplementedError("how many axes it reduces is known only at run time")
    shape, one = relay.shape_of(data, "int64"), relay.const(1, "int64")
    places = relay.reshape(relay.mod(axes + relay.const(rank, "int64"), relay.const(rank, "int64")), [-1, 1])
    chosen = relay.any(relay.equal(places, constant(np.arange(rank))), axis=0)
    kept = relay.where(chosen, one, shape)
    if 0 in sizes_of(data):
        data = relay.full(like(of_none, data), kept, dtype=dtype_of(data))
    else:
        for axis in range(rank):
            is_chosen = relay.take(chosen, relay.const(axis))
            # An axis that may be empty gets one more element, so that there is room for the result's.
            roomy = data if sizes_of(data)[axis] is not None else _longer(data, axis, like(of_none, data))
            reduced = reduce(data if np.isnan(of_none) else roomy, [axis], True)
            data = relay.where(is_chosen, reduced, roomy)
        none, ones = (constant(np.full(rank, value)) for value in (0, 1))
        data = relay.strided_slice(data, none, importer.fold_constant(kept), ones)
    if keepdims:
        return data
    kept_first = relay.argsort(relay.cast(chosen, "int32"), dtype="int64")
    kept_first = relay.strided_slice(kept_first, [0], [rank - count])
    return relay.reshape(data, relay.take(kept, kept_first))


def _longer(data: relay.Expr, axis: int, value: relay.Expr) -> relay.Expr:
    """The data with one more element at the end of an axis."""
    return relay.nn.pad(data, [(0, int(place == axis)) for place in range(rank_of(data))], value)


def _mean(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    return relay.mean(data, axes, keepdims)


def _log_sum_exp(data: relay.Expr, axes: list[int], keepdims: bool) -> relay.Expr:
    """Without overflow, and without NaN where all elements are infinite."""
    largest = relay.max(data, axes, True)
    largest = relay.where(relay.isfinite(largest), largest, like(0, largest))
    total = relay.log(relay.sum(relay.exp(data - largest), axes, True)) + largest
    return total if keepdims else relay.squeeze(total, axes)


def _square(data: relay.Expr) -> relay.Expr:
    return data * data


def _extreme(name: str) -> Converter:
    """ReduceMax or ReduceMin, whose value for no elements depends on the dtype."""

    def convert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own takes only the first of several axes, and compiles for neither bool nor empty tensors."""
        dtype = np.dtype(dtype_of(inputs[0]))
        if dtype.kind == "f":
            lowest, highest = -np.inf, np.inf
        else:
            limits = np.iinfo("uint8" if dtype.kind == "b" else dtype)
            lowest, highest = (0, 1) if dtype.kind == "b" else (limits.min, limits.max)
        reduce, of_none = (relay.max, lowest) if name == "max" else (relay.min, highest)
        return _reduction(reduce, of_none, None, None)(importer, inputs, attrs, params)

    return convert


CONVERTERS: dict[str, Converter] = {
    "ReduceL1": in_float32(_reduction(relay.sum, 0, relay.abs, None)),
    "ReduceL2": in_float32(_reduction(relay.sum, 0, _square, relay.sqrt, of_floats=True)),
    "ReduceLogSum": in_float32(_reduction(relay.sum, 0, None, relay.log, of_floats=True)),
    "ReduceLogSumExp": in_float32(_reduction(_log_sum_exp, -np.inf, None, None, of_floats=True)),
    "ReduceMax": _extreme("max"),
    "ReduceMean": in_float32(_reduction(_mean, np.nan, None, None)),
    "ReduceMin": _extreme("min"),
    "ReduceProd": in_float32(_reduction(relay.prod, 1, None, None)),
    "ReduceSum": in_float32(_reduction(relay.sum, 0, None, None)),
    "ReduceSumSquare": in_float32(_reduction(relay.sum, 0, _square, None)),
}
