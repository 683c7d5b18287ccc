"""Operators that move elements or ask for shapes, also where a dimension is known at run time only."""

from __future__ import annotations

import sys
from typing import Any

from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.relay.frontend.common import try_infer_value

from .._onnx_fold import keep_known
from .._onnx_slice import constant_slice
from .converter import Converter, Inputs, InputTypes


def scalar_tensor(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes constants only."""
    value, dtype, *_ = inputs
    if isinstance(value, relay.Constant) or not isinstance(value, relay.Expr):
        return converter.stock["aten::scalar_tensor"](inputs, input_types)
    return relay.cast(value, stock._convert_dtype_value(dtype))


def slice_(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own forgets all known dimensions where one is unknown."""
    data, axis, begin, end, step = inputs
    begin, end = 0 if begin is None else begin, sys.maxsize if end is None else end
    shape = converter.infer_shape_with_prelude(data)
    if not are_integers(axis, begin, end, step):
        kept = [size if place != axis % len(shape) else 0 for place, size in enumerate(shape)]
        sliced = converter.stock["aten::slice"]([data, axis, begin, end, step], input_types)
        return keep_known(sliced, [size if isinstance(size, int) else 0 for size in kept])
    if are_integers(*shape):
        return converter.stock["aten::slice"]([data, axis, begin, end, step], input_types)
    return constant_slice(data, {axis: (begin, end, step)})


def expand_as(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """What TVM's own makes of an unknown shape does not compile when a slice follows: add zeros instead."""
    data, like = inputs
    dtype = converter.infer_type(data).dtype
    if has_known_shape(converter, like) or dtype == "bool":
        return converter.stock["aten::expand_as"](inputs, input_types)
    return relay.add(data, relay.cast(relay.zeros_like(like), dtype))


def split_with_sizes(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes no sizes that only the runtime knows, as of each image's boxes in a batch."""
    data, sizes, axis = inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else 0
    if len(sizes) == 1 or are_integers(*sizes):
        return converter.stock["aten::split_with_sizes"](inputs, input_types)
    ends = [sizes[0]]
    for size in sizes[1:]:
        ends.append(ends[-1] + size)
    cuts = zip([0, *ends], ends)
    return relay.expr.TupleWrapper(
        relay.Tuple([slice_(converter, [data, axis, *cut, 1], input_types) for cut in cuts]), len(sizes)
    )


def reshape(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own asks the runtime for the whole shape where one extent is unknown, which follows: -1."""
    data, extents, *_ = inputs
    known = [as_number(extent) for extent in extents]
    if known.count(None) == 1 and all(extent is None or extent > 0 for extent in known):
        return relay.reshape(data, [-1 if extent is None else extent for extent in known])
    return converter.stock["aten::reshape"](inputs, input_types)


def view(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own guesses unknown extents by running the graph on random inputs: `reshape` asks for them."""
    if isinstance(inputs[1], list):
        return reshape(converter, inputs, input_types)
    return converter.stock["aten::view"](inputs, input_types)


def size(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own gives a shape as a whole only where it is unknown."""
    if len(inputs) > 1 or not has_known_shape(converter, inputs[0]):
        return converter.stock["aten::size"](inputs, input_types)
    return [relay.const(extent, "int64") for extent in converter.infer_shape_with_prelude(inputs[0])]


def copy_(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it: what the target is afterwards. `_torch_mutation` cares for what it is a view of."""
    target, source, *_ = inputs
    dtype = converter.infer_type(target).dtype
    source = relay.cast(source, dtype) if isinstance(source, relay.Expr) else relay.const(source, dtype)
    if not has_known_shape(converter, target):
        return relay.broadcast_to_like(source, target)
    return relay.broadcast_to(source, converter.infer_shape_with_prelude(target))


def has_known_shape(converter: Converter, data: relay.Expr) -> bool:
    return are_integers(*converter.infer_shape_with_prelude(data))


def are_integers(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)


def as_number(extent: Any) -> int | None:
    """The extent as a number, or None if it is known only at runtime."""
    value, _ = try_infer_value(extent, int) if isinstance(extent, relay.Expr) else (extent, True)
    return int(value) if isinstance(value, int) else None


CONVERTERS = {
    "aten::expand_as": expand_as,
    "aten::reshape": reshape,
    "aten::scalar_tensor": scalar_tensor,
    "aten::size": size,
    "aten::slice": slice_,
    "aten::split_with_sizes": split_with_sizes,
    "aten::view": view,
    "aten::copy_": copy_,
}
