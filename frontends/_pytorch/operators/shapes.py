"""Operators that move elements or query shapes, also with dynamic dimensions."""

from __future__ import annotations

import itertools
import math
import sys
from functools import partial
from typing import Any

import numpy as np
import torch

from tvm import relay

from ..._fold import keep_known
from ..._slice import constant_slice, late_slice
from .converter import (
    SCALAR_TYPES,
    Converter,
    Inputs,
    InputTypes,
    NotConverted,
    dtype_name,
    known_number,
    known_value,
)


def scalar_tensor(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes constants only, of four dtypes."""
    value, dtype, *_ = inputs
    name = dtype_name(dtype) or str(torch.get_default_dtype()).replace("torch.", "")
    if isinstance(value, relay.Constant):
        value = value.data.numpy().item()
    return relay.cast(value, name) if isinstance(value, relay.Expr) else relay.const(value, name)


def full(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes the dtype of the model, no value of a tensor, and no shape known only in part."""
    shape, value, dtype, *_ = inputs
    (value,) = as_numbers([value])
    name = dtype_name(dtype) or str(_dtype_filled_with(converter, value)).replace("torch.", "")
    value = relay.cast(value, name) if isinstance(value, relay.Expr) else relay.const(value, name)
    if isinstance(shape, relay.Expr):
        return relay.full(value, shape, name)
    known = [as_number(extent) for extent in shape]
    if None not in known:
        return relay.full(value, known, name)
    filled = relay.full(value, relay.stack(list(map(as_length, shape)), 0), name)
    return keep_known(filled, [0 if extent is None else extent for extent in known])


def _dtype_filled_with(converter: Converter, value: Any) -> torch.dtype:
    """That torch gives a tensor full of a value if none is asked for."""
    is_expr = isinstance(value, relay.Expr)
    given = getattr(torch, converter.infer_type(value).dtype) if is_expr else torch.tensor(value).dtype
    return torch.get_default_dtype() if given.is_floating_point else given


def filled(value: float, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no shape of which only some extents are known."""
    shape, *rest = inputs
    return full(converter, [shape, value, *rest], input_types)


def slice_(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """Of a tensor, also where it ends before it begins, and so has no elements."""
    data, axis, begin, end, step = inputs
    begin, end = 0 if begin is None else begin, sys.maxsize if end is None else end
    known = as_number(begin), as_number(end)
    begin, end = (bound if number is None else number for bound, number in zip((begin, end), known))
    if not are_integers(begin, end):
        return late_slice(data, {axis: (begin, end, step)})
    shape = converter.infer_shape_with_prelude(data)
    if are_integers(*shape):
        first, behind, _ = slice(begin, end, step).indices(shape[axis])
        begin, end = (first, first) if behind < first else (begin, end)
        return converter.stock["aten::slice"]([data, axis, begin, end, step], input_types)
    return constant_slice(data, {axis: (begin, end, step)})


def expand(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no size that is known only at run time."""
    data, sizes, *rest = inputs
    shape = converter.infer_shape_with_prelude(data)
    added = len(sizes) - len(shape)
    extents = [*[1] * added, *shape]
    known = [as_number(size) for size in sizes]
    # Only an axis of one element is expanded: the others keep their size.
    known = [-1 if size is None and extent != 1 else size for size, extent in zip(known, extents)]
    if None not in known:
        return converter.stock["aten::expand"]([data, known, *rest], input_types)
    wanted = list(sizes)
    for axis, extent in enumerate(shape):
        if isinstance(extent, int) and extent != 1:
            wanted[added + axis] = extent
        elif known[added + axis] == -1:
            wanted[added + axis] = size(converter, [data, axis], input_types)
    wide = relay.broadcast_to(data, relay.stack(list(map(as_length, wanted)), 0))
    return keep_known(wide, list(map(as_number, wanted)))


def expand_as(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own does not compile for an unknown shape if a slice follows: add zeros instead."""
    data, like = inputs
    dtype = converter.infer_type(data).dtype
    if has_known_shape(converter, like) or dtype == "bool":
        return converter.stock["aten::expand_as"](inputs, input_types)
    return relay.add(data, relay.cast(relay.zeros_like(like), dtype))


def split_with_sizes(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no dynamic sizes, such as the number of boxes of each image in a batch, nor 0."""
    data, sizes, axis = inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else 0
    known = [as_number(size) for size in sizes]
    if len(sizes) == 1 or (None not in known and 0 not in known):
        return converter.stock["aten::split_with_sizes"]([data, known, axis], input_types)
    lengths = [size if number is None else number for size, number in zip(sizes, known)]
    ends = list(itertools.accumulate(lengths, _plus))
    cuts = zip([0, *ends], ends)
    return relay.expr.TupleWrapper(
        relay.Tuple([slice_(converter, [data, axis, *cut, 1], input_types) for cut in cuts]), len(sizes)
    )


def _plus(*lengths: Any) -> Any:
    """The sum of two lengths, each a number or an expression."""
    if are_integers(*lengths):
        return sum(lengths)
    left, right = map(as_length, lengths)
    return left + right


def as_length(value: Any) -> relay.Expr:
    """A length, a number or an expression of one element, as an int64 scalar."""
    if isinstance(value, relay.Expr):
        return relay.cast(relay.reshape(value, []), "int64")
    return relay.const(value, "int64")


def reshape(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own asks the runtime for the whole shape if one extent is unknown, which -1 can infer.

    It compiles each extent that is computed, to know it.
    """
    data, extents, *_ = inputs
    known = [as_number(extent) for extent in extents]
    if known.count(None) == 1 and all(extent is None or extent > 0 for extent in known):
        return relay.reshape(data, [-1 if extent is None else extent for extent in known])
    return converter.stock["aten::reshape"]([data, as_numbers(extents)], input_types)


def unflatten(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no sizes that a trace computes."""
    data, dim, sizes, *_ = inputs
    shape = list(converter.infer_shape_with_prelude(data))
    axis = int(dim) % len(shape)
    return reshape(converter, [data, [*shape[:axis], *sizes, *shape[axis + 1 :]]], input_types)


def view(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own guesses unknown extents by running the graph on random inputs; `reshape` does not."""
    if isinstance(inputs[1], list):
        return reshape(converter, inputs, input_types)
    return converter.stock["aten::view"](inputs, input_types)


def size(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own gives a shape as a whole only if it is unknown, as a tensor, which is no list to index."""
    data, *axes = inputs
    if axes:
        return converter.stock["aten::size"](inputs, input_types)
    return [
        relay.const(extent, "int64")
        if isinstance(extent, int)
        else converter.stock["aten::size"]([data, axis], [])
        for axis, extent in enumerate(map(as_number, converter.infer_shape_with_prelude(data)))
    ]


def numel(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own computes it at run time, though the shape is known, and so what is sliced by it has none."""
    if not has_known_shape(converter, inputs[0]):
        return converter.stock["aten::numel"](inputs, input_types)
    return relay.const(math.prod(converter.infer_shape_with_prelude(inputs[0])), "int64")


def copy_(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it: the new value of the target. `write_back` updates what it is a view of.

    Without the underscore, as `torch.export` has it, it is that value alone.
    """
    target, source, *_ = inputs
    dtype = converter.infer_type(target).dtype
    source = relay.cast(source, dtype) if isinstance(source, relay.Expr) else relay.const(source, dtype)
    if not has_known_shape(converter, target):
        return relay.broadcast_to_like(source, target)
    return relay.broadcast_to(source, converter.infer_shape_with_prelude(target))


def lift_fresh_copy(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it: a constant of an exported program, which nobody changes."""
    return inputs[0]


def squeeze(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no axis whose extent is not 1, which must stay."""
    data, axes = inputs[0], inputs[1] if len(inputs) > 1 else None
    if axes is None:
        return converter.stock["aten::squeeze"](inputs, input_types)
    shape = converter.infer_shape_with_prelude(data)
    axes = [axes] if isinstance(axes, int) else axes
    dropped = [axis for axis in axes if shape and (shape[axis] == 1 or not isinstance(shape[axis], int))]
    return relay.squeeze(data, dropped) if dropped else data


def flatten(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no 0-d tensor, which becomes 1-d."""
    if not converter.infer_shape_with_prelude(inputs[0]):
        return relay.reshape(inputs[0], [1])
    return converter.stock["aten::flatten"](inputs, input_types)


def cat(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes tensors of one dtype only."""
    tensors, axis = inputs
    if not isinstance(tensors, list):
        return converter.stock["aten::cat"](inputs, input_types)
    return relay.concatenate(_promoted(converter, tensors), int(axis))


def stack(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """As `cat`."""
    if not isinstance(inputs[0], list):
        return converter.stock["aten::stack"](inputs, input_types)
    return relay.stack(_promoted(converter, inputs[0]), inputs[1])


def _promoted(converter: Converter, tensors: list[Any]) -> list[relay.Expr]:
    expressions = [each if isinstance(each, relay.Expr) else relay.const(each) for each in tensors]
    return converter.pytorch_promote_types(expressions, ["float32"] * len(tensors))


def chunk(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own gives other sizes if the extent does not divide evenly."""
    data, count, axis = inputs
    extent = converter.infer_shape_with_prelude(data)[axis]
    if not isinstance(extent, int):
        return converter.stock["aten::chunk"](inputs, input_types)
    return _cut(data, range(-(-extent // count), extent, -(-extent // count)), axis)


def split(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """As `tensor_split`."""
    data, extent, axis = inputs
    if isinstance(extent, list):
        return split_with_sizes(converter, inputs, input_types)
    whole = converter.infer_shape_with_prelude(data)[axis]
    extent = as_number(extent)
    if not isinstance(whole, int) or extent is None:
        return converter.stock["aten::split"](inputs, input_types)
    return _cut(data, range(extent, whole, extent), axis)


def tensor_split(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own gives other sizes if the extent does not divide evenly, and takes no single part."""
    data, parts, axis = inputs
    extent = converter.infer_shape_with_prelude(data)[axis]
    parts = known_value(parts)
    if parts is None:
        raise NotConverted("where it splits is known only at run time")
    if isinstance(parts, int):
        size, longer = divmod(extent, parts)
        parts = [size * place + min(place, longer) for place in range(1, parts)]
    parts = [min(place % extent if place < 0 else place, extent) for place in parts]
    bounds = list(zip([0, *parts], [*parts, extent]))
    if any(begin >= end for begin, end in bounds):
        raise NotConverted("one of its parts is empty")
    return _cut(data, parts, axis)


def _cut(data: relay.Expr, places: Any, axis: int) -> Any:
    places = list(places)
    if not places:
        return relay.expr.TupleWrapper(relay.Tuple([data]), 1)
    return relay.split(data, places, axis)


def roll(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own takes no negative axis, and needs an axis."""
    data, shifts, axes = inputs
    shape = converter.infer_shape_with_prelude(data)
    shifts = [shifts] if isinstance(shifts, int) else shifts
    axes = [axes] if isinstance(axes, int) else axes
    if not shape:
        return data
    result = data if axes else relay.reshape(data, [-1])
    extents = [shape[axis] for axis in axes] if axes else [math.prod(shape)]
    for shift, axis, extent in zip(shifts, axes or [0], extents):
        cut = -shift % extent
        if cut:
            tail = relay.strided_slice(result, [cut], [extent], axes=[axis % len(shape)])
            head = relay.strided_slice(result, [0], [cut], axes=[axis % len(shape)])
            result = relay.concatenate([tail, head], axis)
    return result if axes else relay.reshape(result, shape)


def unfold(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it: windows along an axis."""
    data, axis, size, step = inputs
    shape = converter.infer_shape_with_prelude(data)
    if not shape:
        return relay.reshape(data, [1])
    axis %= len(shape)
    places = np.arange(0, shape[axis] - size + 1, step)[:, None] + np.arange(size)
    windows = relay.take(data, relay.const(places), axis)
    order = [place for place in range(len(shape) + 1) if place != axis + 1]
    return relay.transpose(windows, [*order, axis + 1])


def meshgrid(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own ignores `indexing`."""
    tensors, indexing = inputs[0], inputs[1] if len(inputs) > 1 else "ij"
    vectors = [relay.reshape(each, [-1]) for each in tensors]
    return relay.meshgrid(vectors, indexing=indexing)


def arange(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own compiles each bound that is not a number yet, to know it."""
    bounds, options = inputs[:-4], inputs[-4:]
    return converter.stock["aten::arange"](as_numbers(bounds) + options, input_types)


def diagonal(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    data, offset, first, second = inputs
    shape = converter.infer_shape_with_prelude(data)
    first, second = first % len(shape), second % len(shape)
    others = [axis for axis in range(len(shape)) if axis not in (first, second)]
    rows, columns = shape[first], shape[second]
    begin = max(-offset, 0), max(offset, 0)
    count = min(rows - begin[0], columns - begin[1])
    if count <= 0:
        raise NotConverted("it has no elements")
    flat = relay.reshape(
        relay.transpose(data, [*others, first, second]), [*(shape[axis] for axis in others), rows * columns]
    )
    places = (begin[0] + np.arange(count)) * columns + begin[1] + np.arange(count)
    return relay.take(flat, relay.const(places), len(others))


def has_known_shape(converter: Converter, data: relay.Expr) -> bool:
    return are_integers(*converter.infer_shape_with_prelude(data))


def are_integers(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)


def as_number(extent: Any) -> int | None:
    """The extent as a number, or None if it is known only at run time."""
    number = known_number(extent)
    return int(number) if isinstance(number, (int, float)) else None


def as_numbers(values: list[Any]) -> list[Any]:
    """The values, as numbers where they are known."""
    known = map(known_number, values)
    return [value if number is None else number for value, number in zip(values, known)]


def filled_like(value: int | None, converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM's own uses the default dtype, not that of the tensor, if none is given."""
    data = inputs[0]
    fill, number = inputs[1:3] if value is None else (value, inputs[1])
    dtype = dtype_name(number) or converter.infer_type(data).dtype
    fill = relay.cast(fill, dtype) if isinstance(fill, relay.Expr) else relay.const(fill, dtype)
    shape = converter.infer_shape(data)
    if are_integers(*shape):
        return relay.full(fill, shape, dtype)
    return relay.full_like(relay.cast(data, dtype), fill)


def empty(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no default dtype, and no shape that is known only at run time."""
    shape, dtype, *_ = inputs
    known = [as_number(extent) for extent in shape] if isinstance(shape, list) else [None]
    if None in known:
        return filled(0.0, converter, inputs, input_types)
    # Zeros, by which passes know the result of an NMS of no boxes.
    return relay.zeros(known, dtype_name(dtype) or str(torch.get_default_dtype()).replace("torch.", ""))


def new_filled(value: float | None, converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no shape known only in part. Without a value here, it is the third input."""
    data, shape, *rest = inputs
    if value is None:
        value, *rest = rest
    dtype, *rest = rest
    if dtype is None:
        dtype = SCALAR_TYPES.index(getattr(torch, converter.infer_type(data).dtype))
    return full(converter, [shape, value, dtype, *rest], input_types)


def fill_diagonal(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    data, value, wrap = inputs
    shape = converter.infer_shape_with_prelude(data)
    if not are_integers(*shape):
        raise NotConverted("it changes a tensor whose shape is known only at run time")
    mask = torch.zeros(shape, dtype=torch.bool).fill_diagonal_(True, wrap=bool(wrap)).numpy()
    return relay.where(relay.const(mask), relay.const(value, converter.infer_type(data).dtype), data)


def fill(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes no tensor whose shape is known only at run time."""
    data, value = inputs
    return filled_like(None, converter, [data, value, None], input_types)


def clone(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own copies constants, too, which passes then do not take for constants."""
    is_constant = isinstance(inputs[0], relay.Constant)
    return inputs[0] if is_constant else converter.stock["aten::clone"](inputs, input_types)


CONVERTERS = {
    "aten::arange": arange,
    "aten::clone": clone,
    "aten::fill": fill,
    "aten::fill_": fill,
    "aten::empty": empty,
    "aten::empty_like": partial(filled_like, 0),
    "aten::fill_diagonal_": fill_diagonal,
    "aten::full": full,
    "aten::ones": partial(filled, 1.0),
    "aten::zeros": partial(filled, 0.0),
    "aten::full_like": partial(filled_like, None),
    "aten::new_empty": partial(new_filled, 0.0),
    "aten::new_full": partial(new_filled, None),
    "aten::new_ones": partial(new_filled, 1.0),
    "aten::new_zeros": partial(new_filled, 0.0),
    "aten::ones_like": partial(filled_like, 1),
    "aten::zeros_like": partial(filled_like, 0),
    "aten::expand": expand,
    "aten::expand_as": expand_as,
    "aten::reshape": reshape,
    "aten::scalar_tensor": scalar_tensor,
    "aten::size": size,
    "aten::numel": numel,
    "aten::split_with_sizes": split_with_sizes,
    "aten::view": view,
    "aten::copy": copy_,
    "aten::lift_fresh_copy": lift_fresh_copy,
    "aten::copy_": copy_,
    "aten::cat": cat,
    "aten::chunk": chunk,
    "aten::concat": cat,
    "aten::diagonal": diagonal,
    "aten::flatten": flatten,
    "aten::meshgrid": meshgrid,
    "aten::roll": roll,
    "aten::split": split,
    "aten::squeeze": squeeze,
    "aten::stack": stack,
    "aten::tensor_split": tensor_split,
    "aten::unflatten": unflatten,
    "aten::unfold": unfold,
    "aten::unsafe_chunk": chunk,
}
