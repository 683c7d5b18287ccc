"""Operators that take or replace elements selected by indices or masks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tvm_passes.analysis.limits import never_negative

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes, NotConverted
from .masked import for_all_elements
from .shapes import are_integers

MAX_RANK = 5  # of TVM's argwhere
REDUCTIONS = {
    None: "update",
    "add": "add",
    "multiply": "mul",
    "sum": "add",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def index(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own reads out of bounds for a negative index, and takes no mask of several axes."""
    data, indices = inputs
    return converter.stock["aten::index"]([data, _integers(converter, data, indices)], input_types)


def index_put(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes no mask, no axis without an index, and neither indices nor values that broadcast."""
    data, indices, values, accumulate, *_ = inputs
    type_ = converter.infer_type_with_prelude(data)
    values = (
        relay.cast(values, type_.dtype)
        if isinstance(values, relay.Expr)
        else relay.const(values, type_.dtype)
    )
    given = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    if len(given) == 1 and _is_mask(converter, given[0][1]) and not accumulate:
        return _put_where(converter, data, *given[0], values)
    if any(_is_mask(converter, each) for _, each in given):
        raise NotConverted("it assigns to elements that a mask and other indices select together")
    shape = converter.infer_shape_with_prelude(data)
    places = [axis for axis, each in enumerate(indices) if each is not None]
    others = [axis for axis in range(len(shape)) if axis not in places]
    integers = [relay.cast(each, "int64") for each in _integers(converter, data, indices) if each is not None]
    integers, of_indices = _broadcast(converter, integers)
    rest = [_length(data, shape, axis) for axis in others]
    begin = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    taken = [*rest[:begin], *of_indices, *rest[begin:]]
    values = _broadcast_to(values, taken)
    if begin and of_indices:
        count = len(of_indices)
        order = [*range(begin, begin + count), *range(begin), *range(begin + count, len(taken))]
        values = relay.transpose(values, order)
    axes = places + others
    moved = data if axes == sorted(axes) else relay.transpose(data, axes)
    if type_.dtype == "bool":  # a sum is true if any element is
        moved, values = relay.cast(moved, "int32"), relay.cast(values, "int32")
    result = relay.scatter_nd(moved, relay.stack(integers, 0), values, "add" if accumulate else "update")
    result = relay.cast(result, "bool") if type_.dtype == "bool" else result
    return (
        result
        if axes == sorted(axes)
        else relay.transpose(result, [axes.index(axis) for axis in range(len(axes))])
    )


def _broadcast(
    converter: Converter, integers: list[relay.Expr]
) -> tuple[list[relay.Expr], Sequence[int | relay.Expr]]:
    """The indices in one shape, and its lengths."""
    shapes = [converter.infer_shape_with_prelude(each) for each in integers]
    if all(are_integers(*shape) for shape in shapes):
        of_indices = np.broadcast_shapes(*shapes)
        return [relay.broadcast_to(each, of_indices) for each in integers], of_indices
    counted = [each for each, shape in zip(integers, shapes) if not are_integers(*shape)]
    if any((len(shape) != 1 and shape) or shape == (1,) for shape in shapes):
        raise NotConverted("its indices broadcast to a shape that is known only at run time")
    zeros = relay.zeros_like(counted[0])
    integers = [each if shape else relay.add(each, zeros) for each, shape in zip(integers, shapes)]
    return integers, [_extent(counted[0], [None], 0, "int64")]


def _broadcast_to(values: relay.Expr, lengths: Sequence[int | relay.Expr]) -> relay.Expr:
    if are_integers(*lengths):
        return relay.broadcast_to(values, lengths)
    extents = [relay.const(each, "int64") if isinstance(each, int) else each for each in lengths]
    return relay.broadcast_to(values, relay.stack(extents, 0))


def _put_where(
    converter: Converter, data: relay.Expr, axis: int, mask: relay.Expr, values: relay.Expr
) -> relay.Expr:
    """Assign to the elements of a mask of the axes from `axis` on."""
    mask = functions.truth(mask, converter.infer_type_with_prelude(mask).dtype)
    shape, of_mask, of_values = map(converter.infer_shape_with_prelude, (data, mask, values))
    behind = len(shape) - axis - len(of_mask)
    wide = relay.expand_dims(mask, -1, behind) if behind else mask
    place = len(of_values) - behind - 1  # of the axis along which the elements come, if values have it
    if place < 0:
        return relay.where(wide, values, data)
    if not of_mask:
        raise NotConverted("its mask has no axes")
    if of_values[place] == 1:
        return relay.where(wide, relay.expand_dims(values, place, len(of_mask) - 1), data)
    of_all = None if axis else for_all_elements(values, mask, behind)
    if of_all is not None:
        return relay.where(wide, of_all, data)
    if not are_integers(*of_mask, *(size for each, size in enumerate(of_values) if each != place)):
        raise NotConverted("it assigns to the elements of a mask whose shape is known only at run time")
    # The first one stands for all elements that the mask does not select, be there others or not.
    none = relay.zeros([*of_values[:place], 1, *of_values[place + 1 :]], converter.infer_type(values).dtype)
    order = relay.cumsum(relay.cast(relay.reshape(mask, [-1]), "int64"), 0)
    spread = relay.take(relay.concatenate([none, values], place), order, place)
    if len(of_mask) > 1:
        spread = relay.reshape(spread, [*of_values[:place], *of_mask, *of_values[place + 1 :]])
    return relay.where(wide, spread, data)


def put(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    data, places, values, accumulate = inputs
    flat, places, values = (relay.reshape(each, [-1]) for each in (data, places, values))
    result = index_put(converter, [flat, [places], values, accumulate], input_types)
    return relay.reshape(result, converter.infer_shape_with_prelude(data))


def _is_mask(converter: Converter, index: relay.Expr) -> bool:
    return converter.infer_type_with_prelude(index).dtype in ("bool", "uint8")


def _integers(converter: Converter, data: relay.Expr, indices: list[Any]) -> list[Any]:
    """Replace masks by the indices that they stand for, one per axis; none of them negative."""
    shape = converter.infer_shape_with_prelude(data)
    found: list[Any] = []
    for each in indices:
        if each is None:
            found.append(None)
        elif _is_mask(converter, each):
            rank = len(converter.infer_shape_with_prelude(each))
            if not rank:
                raise NotConverted("its mask has no axes")
            if rank == 1:
                found.append(each)  # TVM's own takes these
                continue
            places = relay.argwhere(each)
            found.extend(relay.take(places, relay.const(axis), 1) for axis in range(rank))
        else:
            dtype = converter.infer_type_with_prelude(each).dtype
            found.append(_wrapped(each, _extent(data, shape, len(found), dtype), dtype))
    return found


def _extent(data: relay.Expr, shape: Sequence[Any], axis: int, dtype: str) -> relay.Expr:
    """The length of an axis, which may be known only at run time."""
    if isinstance(shape[axis], int):
        return relay.const(shape[axis], dtype)
    return relay.take(relay.shape_of(data, dtype), relay.const(axis))


def _length(data: relay.Expr, shape: Sequence[Any], axis: int) -> int | relay.Expr:
    """The length of an axis as a number, where it is known."""
    return shape[axis] if isinstance(shape[axis], int) else _extent(data, shape, axis, "int64")


def _wrapped(index: relay.Expr, extent: relay.Expr, dtype: str) -> relay.Expr:
    if never_negative(index):
        return index
    return relay.where(relay.less(index, relay.const(0, dtype)), relay.add(index, extent), index)


def nonzero(name: str, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own does not compile for every number of axes, and lacks `argwhere`."""
    rank = len(converter.infer_shape_with_prelude(inputs[0]))
    if not 1 <= rank <= MAX_RANK:
        raise NotConverted(f"it takes a tensor of {rank} axes, and not of 1 to {MAX_RANK}")
    return converter.stock[name](inputs, input_types)


def index_select(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes no 0-d tensors, neither as data nor as indices."""
    data, axis, places = inputs
    if not converter.infer_shape_with_prelude(data):
        return data
    if not converter.infer_shape_with_prelude(places):
        places = relay.reshape(places, [1])
    return relay.take(data, places, axis=axis, mode="wrap")


def gather(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes no 0-d tensors, and needs as many indices as elements along the other axes."""
    data, axis, places, *_ = inputs
    shape, of_places = (list(converter.infer_shape_with_prelude(each)) for each in (data, places))
    if not shape:
        return relay.broadcast_to(data, of_places)
    if not of_places:
        return relay.reshape(relay.take(data, places, axis=0), [])
    axis %= len(shape)
    if are_integers(*shape, *of_places):
        part = [*of_places[:axis], shape[axis], *of_places[axis + 1 :]]
        data = relay.strided_slice(data, [0] * len(part), part) if part != shape else data
    return relay.gather(data, axis, places)


def scatter(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes no number, no negative axis, and no source larger than the indices."""
    data, axis, places, source, *reduce = inputs
    return _scattered(converter, data, axis, places, source, REDUCTIONS[reduce[0] if reduce else None])


def scatter_add(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """As `scatter`."""
    data, axis, places, source = inputs
    return _scattered(converter, data, axis, places, source, "add")


def scatter_reduce(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own lacks `include_self=False`, and computes another mean."""
    data, axis, places, source, reduce, include_self = inputs
    dtype = converter.infer_type(data).dtype
    if dtype == "bool":
        raise NotConverted("it reduces a tensor of bool")
    if reduce == "mean":
        kept = relay.full_like(data, relay.const(int(include_self), dtype))
        count = _scattered(converter, kept, axis, places, 1, "add")
        zeros = relay.zeros_like(data)
        base = data if include_self else zeros
        total = _scattered(converter, base, axis, places, source, "add")
        divide = relay.divide if functions.is_float(dtype) else relay.floor_divide
        none = relay.equal(count, relay.const(0, dtype))
        return relay.where(none, data, divide(total, relay.maximum(count, relay.const(1, dtype))))
    reduction = REDUCTIONS[reduce]
    if include_self:
        return _scattered(converter, data, axis, places, source, reduction)
    touched = _scattered(converter, relay.zeros_like(data), axis, places, 1, "update")
    base = relay.full_like(data, relay.const(_neutral(reduction, dtype), dtype))
    is_touched = functions.truth(touched, dtype)
    return relay.where(is_touched, _scattered(converter, base, axis, places, source, reduction), data)


def index_reduce(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it: `scatter_reduce` of whole slices."""
    data, axis, places, source, *rest = inputs
    shape = list(converter.infer_shape_with_prelude(source))
    if not are_integers(*shape):
        raise NotConverted("it takes a tensor whose shape is known only at run time")
    along = [-1 if each == axis % max(len(shape), 1) else 1 for each in range(len(shape))]
    places = relay.broadcast_to(relay.reshape(places, along), shape)
    return scatter_reduce(converter, [data, axis, places, source, *rest], input_types)


def _neutral(reduction: str, dtype: str) -> Any:
    if reduction in ("add", "mul"):
        return {"add": 0, "mul": 1}[reduction]
    if functions.is_float(dtype):
        return {"max": -np.inf, "min": np.inf}[reduction]
    limits = np.iinfo(dtype)
    return {"max": limits.min, "min": limits.max}[reduction]


def _scattered(
    converter: Converter, data: relay.Expr, axis: int, places: relay.Expr, source: Any, reduction: str
) -> relay.Expr:
    """Scatter only as much of the source as there are indices."""
    shape = list(converter.infer_shape_with_prelude(data))
    of_places = list(converter.infer_shape_with_prelude(places))
    if not are_integers(*shape, *of_places):
        if not isinstance(source, relay.Expr):
            raise NotConverted("it scatters a number into a tensor whose shape is known only at run time")
        return relay.scatter_elements(data, places, source, axis % len(shape), reduction)
    dtype = converter.infer_type(data).dtype
    if isinstance(source, relay.Expr):
        of_source = list(converter.infer_shape_with_prelude(source))
        if of_source != of_places and of_source:
            source = relay.strided_slice(source, [0] * len(of_places), of_places)
    else:
        source = relay.full(relay.const(source, dtype), of_places or [1], dtype)
    if not shape or not of_places:
        data, places, source = (relay.reshape(each, [-1]) for each in (data, places, source))
    through = "int8" if dtype == "bool" else dtype
    if dtype == "bool":
        data, source = relay.cast(data, through), relay.cast(source, through)
    result = relay.scatter_elements(data, places, source, axis % max(len(shape), 1), reduction)
    return functions.cast(relay.reshape(result, shape) if not shape else result, through, dtype)


def masked_select(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes a mask of another shape for indices into the first axes."""
    data, mask = inputs
    shapes = [converter.infer_shape_with_prelude(each) for each in inputs]
    if are_integers(*shapes[0], *shapes[1]):
        shape = np.broadcast_shapes(*shapes) or (1,)
        data, mask = (relay.broadcast_to(each, shape) for each in inputs)
    elif len(shapes[0]) != len(shapes[1]):
        raise NotConverted(
            "its mask has a different rank than its tensor, whose shape is known only at run time"
        )
    return converter.stock["aten::masked_select"]([data, mask], input_types)


def masked_scatter(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    data, mask, source = inputs
    shape = np.broadcast_shapes(*(converter.infer_shape_with_prelude(each) for each in (data, mask)))
    mask = relay.broadcast_to(mask, shape)
    order = relay.cumsum(relay.cast(relay.reshape(mask, [-1]), "int64"), 0)
    places = relay.reshape(relay.subtract(order, relay.const(1, "int64")), shape)
    taken = relay.take(relay.reshape(source, [-1]), places, mode="clip")
    return relay.where(mask, taken, relay.broadcast_to(data, shape))


def masked_fill(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own relies on TorchScript's dtype, which may be unknown."""
    data, mask, value = inputs
    dtype = converter.infer_type(data).dtype
    value = relay.cast(value, dtype) if isinstance(value, relay.Expr) else relay.const(value, dtype)
    return relay.where(mask, value, data)


def searchsorted(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes neither `side` nor `sorter`, nor values of another dtype, and has NaN before all."""
    sequence, values, out_int32, right, side, sorter = inputs
    if sorter is not None:
        rank = len(converter.infer_shape_with_prelude(sequence))
        sequence = relay.gather(sequence, rank - 1, sorter)
    sequence, values = converter.pytorch_promote_types([sequence, values], input_types[:2])
    shape = converter.infer_shape_with_prelude(values)
    values = values if shape else relay.reshape(values, [1])
    dtype = "int32" if out_int32 else "int64"
    found = relay.searchsorted(sequence, values, right=bool(right or side == "right"), dtype=dtype)
    if "float" in converter.infer_type(values).dtype:
        of_sequence = converter.infer_shape_with_prelude(sequence)
        count = _extent(sequence, of_sequence, len(of_sequence) - 1, dtype)
        found = relay.where(relay.isnan(values), count, found)  # NaN is behind all
    return found if shape else relay.reshape(found, [])


def bucketize(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `searchsorted`."""
    values, boundaries, out_int32, right = inputs
    return searchsorted(
        converter, [boundaries, values, out_int32, right, None, None], [input_types[1], input_types[0]]
    )


CONVERTERS = {
    "aten::_unsafe_index_put": index_put,  # of programs after `run_decompositions`: `fold`
    "aten::argwhere": partial(nonzero, "aten::nonzero"),
    "aten::bucketize": bucketize,
    "aten::gather": gather,
    "aten::index": index,
    "aten::index_put": index_put,
    "aten::index_reduce": index_reduce,
    "aten::index_select": index_select,
    "aten::masked_fill": masked_fill,
    "aten::masked_scatter": masked_scatter,
    "aten::masked_select": masked_select,
    "aten::nonzero": partial(nonzero, "aten::nonzero"),
    "aten::nonzero_numpy": partial(nonzero, "aten::nonzero_numpy"),
    "aten::put": put,
    "aten::scatter": scatter,
    "aten::scatter_add": scatter_add,
    "aten::scatter_reduce": scatter_reduce,
    "aten::searchsorted": searchsorted,
}
