"""What each operator does with rows of which only some count.

A function takes the walk, a call, and what its arguments have become: a `Padded`, a tuple of such, SIZE, or
the expression that they were, where nothing of it is padded. It gives what the call becomes: there, the rows
that count are what the call would give for the rows that count alone. What it cannot promise it refuses.
"""

import math

import numpy as np

import tvm
from tvm import relay

from .._filters import LOWEST, is_bounded
from .._matchers import is_elementwise, op_name
from .._selection import scalar
from ..canonicalize.shape_values import Clamped, Dim, shape_values
from ..canonicalize.static_forms import TO_THE_END
from .padded import Padded, Rows, all_of, in_a_row

SIZE = object()  # integers that follow from how many rows count, which may only go into shapes


class NotStatic(Exception):
    """Why a graph cannot have fixed shapes."""


def handler_of(call):
    """The function of this module that knows an operator."""
    name = op_name(call)
    if name in _HANDLERS:
        return _HANDLERS[name]
    if is_elementwise(call):
        return _elementwise
    raise NotStatic(f"nothing is known of {name or 'a function'} over detections")


def shape_of(_walk, _call, _args):
    return SIZE


# --- row by row


def _elementwise(walk, call, args):
    first = next(arg for arg in args if isinstance(arg, Padded))
    axis = first.axis - first.rank  # counted from the end, where shapes are lined up
    for arg in args:
        if isinstance(arg, Padded):
            if arg.rows != first.rows or arg.axis - arg.rank != axis:
                raise NotStatic("different rows count in what is combined")
        elif len(arg.checked_type.shape) >= -axis and int(arg.checked_type.shape[axis]) != 1:
            raise NotStatic("rows of which some count are combined with rows that all do")
    return walk.padded(call, args, first.rows, len(call.checked_type.shape) + axis)


def _item_by_item(walk, call, args):
    """One argument has items along its first axis, and each gives one of the result."""
    parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
    items, *others = (part for part in parts if isinstance(part, Padded))
    if others:
        raise NotStatic("several of what it takes are padded")
    layouts = (str(getattr(call.attrs, name, "N")) for name in ("data_layout", "layout"))
    if items.axis != 0 or any(layout[0] != "N" for layout in layouts):
        raise NotStatic("the rows are not the items of a batch")
    return walk.padded(call, args, items.rows, 0)


def _paste_masks(walk, call, args):
    return walk.padded(call, args, _rows_of_all("masks and boxes", args), 0)


def _heatmaps_to_keypoints(walk, call, args):
    """Where a row does not count, a roi that is nowhere: there is nothing to compute for it."""
    rows = _rows_of_all("maps and rois", args)
    maps, rois = (arg.expr for arg in args)
    valid = relay.expand_dims(rows.valid, 1)
    rois = relay.where(valid, rois, relay.const(math.inf, walk.dtype(rois)))
    results = walk.typed(relay.Call(call.op, [maps, rois], call.attrs))
    return tuple(Padded(walk.typed(relay.TupleGetItem(results, index)), rows) for index in range(2))


def _rows_of_all(names, args):
    """The rows of which each argument has an item."""
    first = args[0]
    if any(not isinstance(arg, Padded) or arg.axis != 0 for arg in args) or first.rows != args[1].rows:
        raise NotStatic(f"{names} are of different rows")
    return first.rows


def _along_another_axis(walk, call, args):
    (data,) = args
    if int(call.attrs.axis) % data.rank == data.axis:
        raise NotStatic("it goes along the rows")
    return walk.padded(call, args, data.rows, data.axis)


def _reduce(walk, call, args):
    (data,) = args
    axes = set(range(data.rank)) if call.attrs.axis is None else {int(a) % data.rank for a in call.attrs.axis}
    axes = set(range(data.rank)) - axes if call.attrs.exclude else axes
    if data.axis in axes:
        raise NotStatic("it reduces over the rows")
    gone = 0 if call.attrs.keepdims else sum(axis < data.axis for axis in axes)
    return walk.padded(call, args, data.rows, data.axis - gone)


# --- other places of the same rows


def _transpose(walk, call, args):
    (data,) = args
    axes = call.attrs.axes
    order = list(range(data.rank))[::-1] if axes is None else [int(axis) % data.rank for axis in axes]
    return walk.padded(call, args, data.rows, order.index(data.axis))


def _expand_dims(walk, call, args):
    (data,) = args
    at, new = int(call.attrs.axis), int(call.attrs.num_newaxis)
    at = at + data.rank + 1 if at < 0 else at
    return walk.padded(call, args, data.rows, data.axis + (new if at <= data.axis else 0))


def _squeeze(walk, call, args):
    (data,) = args
    if call.attrs.axis is None or any(int(axis) % data.rank == data.axis for axis in call.attrs.axis):
        raise NotStatic("it squeezes the rows")
    gone = sum(int(axis) % data.rank < data.axis for axis in call.attrs.axis)
    return walk.padded(call, args, data.rows, data.axis - gone)


def _reshape(walk, call, args):
    data = args[0]
    if op_name(call) == "dyn.reshape":
        result = walk.typed(relay.reshape(data.expr, _shape(walk, call.args[1]), bool(call.attrs.allowzero)))
    else:
        result = walk.typed(relay.Call(call.op, [data.expr], call.attrs))
    before, after = data.shape, walk.shape(result)
    for axis, dim in enumerate(call.checked_type.shape):
        # The first axis of unknown length is the one of rows, if what is in front of it is the same.
        if not hasattr(dim, "value") and math.prod(before[: data.axis]) == math.prod(after[:axis]):
            rows = _resized(data.rows, after[axis])
            if rows is not None:
                return Padded(result, rows, axis)
    raise NotStatic("it mixes rows with other axes")


def _resized(rows, length):
    if length % rows.capacity == 0:
        return rows.repeated(length // rows.capacity)
    return rows.merged(rows.capacity // length) if rows.capacity % length == 0 else None


def _concatenate(walk, call, args):
    """Or stack, which makes an axis first."""
    (parts,) = args
    stacks = op_name(call) == "stack"
    first = next(part for part in parts if isinstance(part, Padded))
    rank = first.rank + stacks
    at = int(call.attrs.axis) % rank
    if stacks or at != first.axis:
        if any(
            not isinstance(part, Padded) or (part.rows, part.axis) != (first.rows, first.axis)
            for part in parts
        ):
            raise NotStatic("different rows count in what is put together")
        return walk.padded(call, args, first.rows, first.axis + (stacks and at <= first.axis))
    if any(isinstance(part, Padded) and part.axis != at for part in parts):
        raise NotStatic("different axes count in what is put together")
    rows = [
        part.rows if isinstance(part, Padded) else all_of(int(part.checked_type.shape[at])) for part in parts
    ]
    return walk.padded(call, args, in_a_row(rows), at)


def _split(walk, call, args):
    (data,) = args
    if int(call.attrs.axis) % data.rank == data.axis:
        raise NotStatic("it splits the rows")
    whole = walk.typed(relay.Call(call.op, [data.expr], call.attrs))
    number = len(call.checked_type.fields)
    return tuple(
        Padded(walk.typed(relay.TupleGetItem(whole, index)), data.rows, data.axis) for index in range(number)
    )


def _pad(walk, call, args):
    data = args[0]
    if any(int(width) for width in call.attrs.pad_width[data.axis]):
        raise NotStatic("it pads the rows")
    return walk.padded(call, args, data.rows, data.axis)


# --- some of the rows


def _strided_slice(walk, call, args):
    """Of other axes, or of the first rows."""
    data, attrs = args[0], call.attrs
    if str(attrs.slice_mode) != "end":
        raise NotStatic("a slice of a size that is known only at run time")
    if op_name(call) == "strided_slice":
        begin, end, strides = attrs.begin, attrs.end, attrs.strides or [1] * len(attrs.begin)
        axes = range(len(begin)) if attrs.axes is None else [int(axis) % data.rank for axis in attrs.axes]
    else:
        begin, end, strides = (_known(walk, bound) for bound in call.args[1:])
        axes = range(len(begin))
    rows, cuts = data.rows, {}
    for axis, *bounds in zip(axes, begin, end, strides):
        first, last, step = (int(walk.length(bound)) for bound in bounds)
        length = data.shape[axis]
        if (first, step) == (0, 1) and last >= length:
            continue
        cuts[axis] = first, min(last, TO_THE_END), step
        if axis == data.axis:
            if (
                (first, step) != (0, 1)
                or last < 0
                or not rows.are_first
                or not _is_first(walk, bounds[1], rows)
            ):
                raise NotStatic("it takes other rows than the first")
            rows = rows.first(last)
    if not cuts:
        return data
    begin, end, strides = zip(*cuts.values())
    result = relay.strided_slice(data.expr, begin, end, strides, axes=list(cuts))
    return Padded(walk.typed(result), rows, data.axis)


def _is_first(walk, bound, rows):
    """Whether a bound takes so many of the rows that count, or all if there are fewer."""
    if isinstance(bound, int):
        return True
    dim = bound.dim if isinstance(bound, Clamped) else bound
    source = walk.of(dim.tensor)
    return isinstance(source, Padded) and (source.rows, source.axis) == (rows, dim.axis)


def _take(walk, call, args):
    data, indices = args
    attrs, shape = call.attrs, walk.shape(walk.expr(data))
    if int(attrs.batch_dims) != 0 or (attrs.axis is None and len(shape) > 1):
        raise NotStatic("elements are taken from several axes at once")
    axis = int(attrs.axis or 0) % len(shape)
    if not isinstance(indices, Padded):
        if data.axis == axis:
            raise NotStatic("single rows are taken")
        more = len(indices.checked_type.shape) - 1
        return walk.padded(call, args, data.rows, data.axis + (more if axis < data.axis else 0))
    if isinstance(data, Padded) and data.axis != axis:
        raise NotStatic("rows are taken along two axes")
    if walk.lists_all(indices.expr) and indices.rank == 1 and shape[axis] == indices.rows.capacity:
        return Padded(walk.expr(data), indices.rows, axis)
    # Whatever the index of a row that does not count, it reads inside.
    mode = "wrap" if str(attrs.mode) == "wrap" else "clip"
    taken = relay.take(walk.expr(data), indices.expr, axis=axis, mode=mode)
    return Padded(walk.typed(taken), indices.rows, axis + indices.axis)


def _adv_index(walk, call, args):
    """An element or item for each row, at places that are computed for it."""
    data, *indices = args[0]
    padded = [index for index in indices if isinstance(index, Padded)]
    if not padded or any(index.rank != 1 or index.rows != padded[0].rows for index in padded):
        raise NotStatic("rows are taken by several indices that are not of the same rows")
    if any(not isinstance(index, Padded) and walk.shape(index) != (1,) for index in indices):
        raise NotStatic("rows of which some count are taken together with others that all do")
    inside = [_zero_elsewhere(walk, index) if isinstance(index, Padded) else index for index in indices]
    taken = relay.Call(call.op, [relay.Tuple([walk.expr(data), *inside])], call.attrs)
    return Padded(walk.typed(taken), padded[0].rows)


def _zero_elsewhere(walk, vector):
    return relay.where(vector.rows.valid, vector.expr, relay.const(0, walk.dtype(vector.expr)))


def _argwhere(walk, call, args):
    """The rows where a mask holds: all rows, of which those count."""
    mask = args[0]
    if len(call.args[0].checked_type.shape) != 1:
        raise NotStatic("elements are looked for along several axes")
    valid = mask
    if isinstance(mask, Padded):
        valid = relay.logical_and(mask.expr, mask.rows.valid)
    (capacity,) = walk.shape(walk.expr(mask))
    return Padded(walk.all_rows(capacity), Rows(capacity, ("where", call.args[0]), mask=walk.typed(valid)))


def _topk(walk, call, args):
    """The others get what sorts last; how many are wanted at most is known."""
    data, attrs = args[0], call.attrs
    if data.rank != 1 or attrs.is_ascend or data.axis != 0:
        raise NotStatic("a top-k that is not of the greatest of all rows")
    if not is_bounded(call.args[0]):
        raise NotStatic("whether a top-k sorts NaN or -inf is not known")
    wanted = [int(attrs.k)] if op_name(call) == "topk" else _known(walk, call.args[1])
    if len(wanted) != 1 or not _is_first(walk, wanted[0], data.rows):
        raise NotStatic("how many a top-k gives is known only at run time")
    most = min(walk.length(wanted[0]), data.rows.capacity)
    rows = Rows(most, ("top", call), count=relay.minimum(data.rows.number, relay.const(most, "int32")))
    dtype = walk.dtype(data.expr)
    sorted_last = relay.where(data.rows.valid, data.expr, relay.const(LOWEST, dtype))
    kind = str(attrs.ret_type)
    result = relay.topk(sorted_last, most, ret_type=kind, is_ascend=False, dtype=str(attrs.dtype))
    if kind != "both":
        return Padded(walk.typed(result), rows)
    result = walk.typed(result.astuple())
    return tuple(Padded(walk.typed(relay.TupleGetItem(result, index)), rows) for index in range(2))


def nms(walk, call, args):
    """Class-aware NMS leaves out what does not count; what it keeps has fixed size already."""
    tensors, rest = list(args[:3]), [walk.expr(arg) for arg in args[3:]]
    if any(isinstance(arg, Padded) for arg in args[3:]):
        raise NotStatic("a threshold is computed from rows of which some count")
    if any(not isinstance(tensor, Padded) or tensor.axis != 0 for tensor in tensors):
        raise NotStatic("an NMS of boxes of which only some properties are padded")
    rows = tensors[0].rows
    if any(tensor.rows != rows for tensor in tensors):
        raise NotStatic("boxes, scores and class ids of an NMS are of different rows")
    attrs = dict(call.attrs.items())
    if attrs["has_valid_count"]:
        raise NotStatic("an NMS has a number of boxes already")
    boxes, scores, ids = (tensor.expr for tensor in tensors)
    if rows.are_first:
        attrs["has_valid_count"], rest[0] = 1, rows.count
    else:
        if not attrs["has_score_threshold"]:
            if not is_bounded(call.args[1]):
                raise NotStatic("whether an NMS gets a score of NaN or -inf is not known")
            attrs["has_score_threshold"], rest[2] = 1, relay.const(LOWEST, "float32")
        scores = relay.where(rows.valid, scores, relay.const(LOWEST, walk.dtype(scores)))
    return walk.typed(
        relay.Call(call.op, [boxes, scores, ids, *rest], tvm.ir.make_node("DictAttrs", **attrs))
    )


# --- new tensors with as many rows


def _full(walk, call, args):
    if isinstance(args[0], Padded):
        raise NotStatic("it is filled with a value of a row")
    shape, rows, axis = _shape_with_rows(walk, call.args[1])
    return Padded(walk.typed(relay.full(args[0], shape, call.checked_type.dtype)), rows, axis)


def _broadcast_to(walk, call, args):
    data = args[0]
    shape, rows, axis = _shape_with_rows(walk, call.args[1])
    if isinstance(data, Padded) and (data.rows, data.axis - data.rank) != (rows, axis - len(shape)):
        raise NotStatic("it is broadcast to other rows")
    return Padded(walk.typed(relay.broadcast_to(walk.expr(data), shape)), rows, axis)


def _arange(walk, call, _args):
    (stop,) = _known(walk, call.args[1])
    if (scalar(call.args[0]), scalar(call.args[2])) != (0, 1) or not isinstance(stop, Dim):
        raise NotStatic("it counts other than the rows")
    source = walk.of(stop.tensor)
    if not isinstance(source, Padded) or source.axis != stop.axis:
        raise NotStatic("it counts other than the rows")
    numbers = np.arange(source.rows.capacity).astype(call.checked_type.dtype)
    return Padded(walk.typed(relay.const(numbers, call.checked_type.dtype)), source.rows)


def _shape_with_rows(walk, expr):
    """A shape's lengths, and which rows are along which of its axes."""
    found = None
    values = _known(walk, expr)
    for axis, value in enumerate(values):
        if isinstance(value, (Dim, Clamped)):
            dim = value.dim if isinstance(value, Clamped) else value
            source = walk.of(dim.tensor)
            is_rows = isinstance(source, Padded) and source.axis == dim.axis and isinstance(value, Dim)
            if not is_rows or found is not None:
                raise NotStatic("a shape is computed from how many rows count")
            found = source.rows, axis
    if found is None:
        raise NotStatic("a shape is computed from how many rows count")
    return [walk.length(value) for value in values], *found


def _shape(walk, expr):
    """The lengths for a reshape, of which one may be -1."""
    values = shape_values(walk.graph, expr)
    if values is None or sum(value is None for value in values) > 1:
        raise NotStatic("a shape is computed from how many rows count")
    return [-1 if value is None else walk.length(value) for value in values]


def _known(walk, expr):
    values = shape_values(walk.graph, expr)
    if values is None or any(value is None for value in values.flat):
        raise NotStatic("a length is computed from how many rows count")
    return list(values.flat)


_HANDLERS = {
    "shape_of": shape_of,
    "transpose": _transpose,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "dyn.reshape": _reshape,
    "concatenate": _concatenate,
    "stack": _concatenate,
    "split": _split,
    "nn.pad": _pad,
    "strided_slice": _strided_slice,
    "dyn.strided_slice": _strided_slice,
    "take": _take,
    "adv_index": _adv_index,
    "argwhere": _argwhere,
    "topk": _topk,
    "dyn.topk": _topk,
    "topi_ext.batched_nms": nms,
    "dyn.full": _full,
    "dyn.broadcast_to": _broadcast_to,
    "arange": _arange,
    "topi_ext.paste_masks": _paste_masks,
    "topi_ext.heatmaps_to_keypoints": _heatmaps_to_keypoints,
    "nn.softmax": _along_another_axis,
    "nn.log_softmax": _along_another_axis,
    **dict.fromkeys(("max", "min", "sum", "mean", "prod", "argmax", "argmin", "any", "all"), _reduce),
    **dict.fromkeys(
        (
            "nn.dense",
            "nn.batch_flatten",
            "nn.conv2d",
            "nn.conv2d_transpose",
            "nn.max_pool2d",
            "nn.avg_pool2d",
            "nn.global_avg_pool2d",
            "nn.adaptive_avg_pool2d",
            "image.resize2d",
            "vision.roi_align",
            "topi_ext.multiscale_roi_align",
        ),
        _item_by_item,
    ),
}
