"""Converters of this project's own, where TVM's importer has none, a wrong one, or one that is not needed.

Each takes the importer it works in, then what every converter of TVM's takes: the inputs, the attributes,
the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

import tvm
from tvm import relay

from . import _onnx_nms, _onnx_roi_align, _onnx_slice
from ._onnx_fold import keep_known
from ._onnx_loops import known_loop
from ._onnx_types import sizes, type_of

Inputs = Sequence[relay.Expr]
Attrs = dict[str, Any]
Params = dict[str, tvm.nd.NDArray]


def bound_to(importer: ModuleType) -> dict[str, Callable]:
    """The converters by operator name, for the importer's table."""
    return {name: functools.partial(convert, importer) for name, convert in CONVERTERS.items()}


def cast(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own asks `onnx.mapping`, which recent onnx has no more, and keeps casts that change nothing."""
    dtype = importer.get_type(attrs["to"])
    return inputs[0] if type_of(inputs[0]).dtype == dtype else relay.cast(inputs[0], dtype)


def clip(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own forgets a constant upper bound where there is no lower one."""
    data, dtype = inputs[0], type_of(inputs[0]).dtype
    bounds = [inputs[1], inputs[2]] if len(inputs) > 1 else [attrs.get("min"), attrs.get("max")]
    values = [bound.data.numpy().item() if isinstance(bound, relay.Constant) else bound for bound in bounds]
    if all(isinstance(value, (float, int)) for value in values):
        return relay.clip(data, *values)
    for bound, limit in zip(bounds, (relay.maximum, relay.minimum)):
        if bound is not None:
            data = limit(data, relay.const(bound, dtype) if isinstance(bound, float) else bound)
    return data


def concat(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """Of one tensor: nothing to do."""
    if len(inputs) == 1:
        return inputs[0]
    return relay.concatenate(list(inputs), attrs["axis"])


def constant(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own knows the attribute `value` only."""
    for name, dtype in CONSTANT_ATTRIBUTES.items():
        if name in attrs:
            return relay.const(np.array(attrs[name], dtype))
    return _stock(importer, "Constant")(inputs, attrs, params)


CONSTANT_ATTRIBUTES = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
}


def expand(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes the greater of two lengths, and so makes one row of none."""
    data, shape = inputs
    known, wanted = type_of(data).shape, type_of(shape)
    if any(not hasattr(dim, "value") for dim in (*known, *wanted.shape)):
        return _stock(importer, "Expand")(inputs, attrs, params)
    rank = max(len(known), int(wanted.shape[0]))
    lengths = [1] * (rank - len(known)) + [int(dim) for dim in known]
    missing = relay.const([1] * (rank - int(wanted.shape[0])), wanted.dtype)
    shape = relay.concatenate([missing, shape], 0) if rank > int(wanted.shape[0]) else shape
    # Only what is 1 gets longer.
    have = np.array(lengths, wanted.dtype)
    shape = relay.where(relay.const(have == 1), shape, relay.const(have, wanted.dtype))
    return relay.broadcast_to(data, importer.fold_constant(shape))


def gather(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own wraps negative indices around at run time, also those that cannot be negative.

    It does so with `where`, whose shape function takes a scalar for a vector: the result of a gather by a
    scalar then has a wrong shape.
    """
    data, indices = inputs
    axis = attrs.get("axis", 0)
    if never_negative(indices):
        return relay.take(data, indices, axis)
    if isinstance(indices, relay.Constant) or len(type_of(indices).shape):
        return _stock(importer, "Gather")(inputs, attrs, params)
    dtype = type_of(indices).dtype
    size = relay.take(relay.shape_of(data, dtype), relay.const(axis, "int64"), mode="wrap")
    negative = relay.cast(indices < relay.const(0, dtype), dtype)
    return relay.take(data, indices + negative * size, axis)


def identity(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own makes a copy."""
    return inputs[0]


def if_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """A branch that is decided is all that is imported: a dead one may not even have a type."""
    condition = inputs[0]
    if not isinstance(condition, relay.Constant):
        return importer.If._impl_v1(inputs, attrs, params)
    branch = attrs["then_branch" if condition.data.numpy().item() else "else_branch"]
    outer = importer.GraphProto.current
    inner = importer.GraphProto(outer._shape, outer._dtype, outer._freeze_params, outer._op_type_dict)
    inner._nodes = outer._nodes.copy()
    with inner:
        result = inner.from_onnx(branch, outer.opset, get_output_expr=True)
    outer._params.update(inner._params)
    return relay.TupleWrapper(result, len(branch.output)) if len(branch.output) > 1 else result


def loop(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """Some loops over detections are one operator; of all others TVM makes a recursive function."""
    scope = importer.GraphProto.current
    graph, node = scope.place
    found = known_loop(graph, node, scope.imported)
    if found is None:
        return _stock(importer, "Loop")(inputs, attrs, params)
    return relay.TupleWrapper(relay.Tuple(found), len(found)) if len(found) > 1 else found[0]


def split(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """A split into one part changes nothing; TVM's own makes a `split` that does not compile."""
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return inputs[0]
    return _stock(importer, "Split")(inputs, attrs, params)


def non_max_suppression(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own passes on what TVM's operator takes for something else."""
    boxes, scores, *options = inputs
    most, iou_threshold, score_threshold = (options + [None] * 3)[:3]
    return _onnx_nms.non_max_suppression(
        boxes, scores, most, iou_threshold, score_threshold, attrs.get("center_point_box", 0)
    )


def pad(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes the axes for a part of the pads, and reads beyond the tensor for negative pads."""
    if len(inputs) > 3 and inputs[3] is not None:
        raise NotImplementedError("padding of some axes only")
    if isinstance(inputs[1], relay.Constant) and (inputs[1].data.numpy() < 0).any():
        raise NotImplementedError("padding by less than nothing")
    return _stock(importer, "Pad")(inputs, attrs, params)


def resize(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own ignores what came with opset 18."""
    if attrs.get("antialias") or "axes" in attrs:
        raise NotImplementedError("resizing of some axes only, or with antialiasing")
    if attrs.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise NotImplementedError("resizing that keeps the aspect ratio")
    return _stock(importer, "Resize")(inputs, attrs, params)


def roi_align(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own ignores the coordinate mode, which is `half_pixel` where it is not given."""
    opset = importer.GraphProto.current.opset
    default = b"half_pixel" if opset >= 16 else b"output_half_pixel"
    half_pixel = attrs.get("coordinate_transformation_mode", default) == b"half_pixel"
    mode = attrs.get("mode", b"avg").decode().lower()
    if mode == "avg" and not half_pixel:
        return _stock(importer, "RoiAlign")(inputs, attrs, params)
    return _onnx_roi_align.roi_align(
        *inputs,
        half_pixel=half_pixel,
        mode=mode,
        pooled=(attrs.get("output_height", 1), attrs.get("output_width", 1)),
        sampling_ratio=attrs.get("sampling_ratio", 0),
        spatial_scale=attrs.get("spatial_scale", 1.0),
    )


def slice_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """Bounds were attributes once, and are inputs now.

    With bounds that only the runtime knows TVM's own forgets the sizes of all axes.
    """
    data, *bounds = inputs
    if not bounds:
        bounds = [attrs.get(name) for name in ("starts", "ends", "axes")]
    else:
        bounds = [
            bound.data.numpy().tolist() if isinstance(bound, relay.Constant) else bound for bound in bounds
        ]
    starts, ends, axes, steps = (bounds + [None, None])[:4]
    if any(isinstance(bound, relay.Expr) for bound in (starts, ends, axes, steps)):
        return _keep_other_axes(_stock(importer, "Slice")(inputs, attrs, params), data, axes)
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return _onnx_slice.constant_slice(data, dict(zip(axes, zip(starts, ends, steps))))


def _keep_other_axes(sliced: relay.Expr, data: relay.Expr, axes: Any) -> relay.Expr:
    """A slice, with the sizes that are known of the axes that it takes whole, where `axes` says which."""
    if not isinstance(axes, list):
        return sliced
    known = list(sizes(type_of(data)))
    for axis in axes:
        known[axis] = None
    return keep_known(sliced, known)


def space_to_depth(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own knows the mode DCR only, the only one there was before ONNX had the attribute."""
    block = int(attrs["blocksize"])
    if attrs.get("mode", b"DCR") == b"DCR":
        return relay.nn.space_to_depth(inputs[0], block)
    tiles = relay.reshape(inputs[0], [0, 0, -4, -1, block, -4, -1, block])
    tiles = relay.transpose(tiles, [0, 1, 3, 5, 2, 4])  # N, C, block, block, H, W
    return relay.reshape(relay.reshape(tiles, [0, -3, -2]), [0, -3, -2])


def top_k(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """LLVM has no sort for uint64: sort int64 in the same order, which flipping the top bit gives."""
    stock = _stock(importer, "TopK")
    if type_of(inputs[0]).dtype != "uint64":
        return stock(inputs, attrs, params)
    top_bit = relay.const(np.array(1 << 63, "uint64"))
    signed = relay.cast(relay.bitwise_xor(inputs[0], top_bit), "int64")
    values, indices = stock([signed, *inputs[1:]], attrs, params)
    values = relay.bitwise_xor(relay.cast(values, "uint64"), top_bit)
    return relay.TupleWrapper(relay.Tuple([values, indices]), 2)


def never_negative(indices: relay.Expr) -> bool:
    """Whether these integers come from where no negative ones do: positions that an operator found."""
    if isinstance(indices, relay.Constant):
        return bool((indices.data.numpy() >= 0).all())
    if isinstance(indices, relay.If):
        return all(map(never_negative, (indices.true_branch, indices.false_branch)))
    if isinstance(indices, relay.Tuple):
        return all(map(never_negative, indices.fields))
    if isinstance(indices, relay.TupleGetItem):
        source = getattr(getattr(indices.tuple_value, "op", None), "name", None)
        return (source, indices.index) in (("topk", 1), ("vision.all_class_non_max_suppression", 0))
    name = getattr(getattr(indices, "op", None), "name", None)
    return name in ("argsort", "argwhere", "shape_of") or (
        name in KEEPS_ELEMENTS and never_negative(indices.args[0])
    )


KEEPS_ELEMENTS = {  # of its first operand, so the result is negative only where that is
    "cast",
    "concatenate",
    "copy",
    "dyn.strided_slice",
    "expand_dims",
    "reshape",
    "squeeze",
    "strided_slice",
    "take",
    "transpose",
}


def _stock(importer: ModuleType, name: str) -> Callable:
    return getattr(importer, name).get_converter(importer.GraphProto.current.opset)


CONVERTERS = {
    "Cast": cast,
    "Clip": clip,
    "Concat": concat,
    "Constant": constant,
    "Expand": expand,
    "Gather": gather,
    "Identity": identity,
    "If": if_,
    "Loop": loop,
    "NonMaxSuppression": non_max_suppression,
    "Pad": pad,
    "Resize": resize,
    "RoiAlign": roi_align,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "TopK": top_k,
}
