"""What each operator does with rows of which only some count.

A function takes the walk, a call, and what its arguments have become: a `Padded`, a tuple of such, SIZE, or
the expression that they were, where nothing of it is padded. It gives what the call becomes: there, the rows
that count are what the call would give for the rows that count alone. What it cannot promise it refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

import tvm
from tvm import relay

from .._filters import LOWEST, is_bounded
from .._matchers import is_elementwise, may_divide_by_zero, op_name
from .._selection import scalar
from ..canonicalize.shape_values import Clamped, Dim, Element, Least, shape_values
from ..canonicalize.static_forms import TO_THE_END
from .padded import Became, Padded, Rows, all_of, in_a_row

if TYPE_CHECKING:
    from .walk import Walk

SIZE = object()  # integers that follow from how many rows count, which may only go into shapes


class NotStatic(Exception):
    """Why a graph cannot have fixed shapes."""


def handler_of(call: relay.Call) -> Callable[[Walk, relay.Call, list[Became]], Became]:
    """The function of this module that knows an operator."""
    name = op_name(call)
    if name in _HANDLERS:
        return _HANDLERS[name]
    if is_elementwise(call):
        return _elementwise
    raise NotStatic(f"nothing is known of {name or 'a function'} over detections")


def handle(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """What a call becomes that has padded arguments, or looks for rows."""
    parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
    name = op_name(call)
    has_places = any(isinstance(part, Padded) and part.places for part in parts)
    if has_places and name not in ("shape_of", *_SAME_ELEMENTS, *_BY_INDEX):
        raise NotStatic("it computes with the places of rows, which are others than before")
    became = handler_of(call)(walk, call, args)
    if name in (*_SAME_ELEMENTS, *_BY_INDEX) and isinstance(parts[0], Padded):
        became.places = parts[0].places
    return became


def shape_of(_walk: Walk, _call: relay.Call, _args: list[Became]) -> object:
    return SIZE


# --- row by row


def _elementwise(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    if may_divide_by_zero(call) and isinstance(args[1], Padded):
        raise NotStatic("it divides integers by those of rows, where one that does not count may be 0")
    first = next(arg for arg in args if isinstance(arg, Padded))
    axis = first.axis - first.rank  # counted from the end, where shapes are lined up
    for arg in args:
        if isinstance(arg, Padded):
            if arg.rows != first.rows or arg.axis - arg.rank != axis:
                raise NotStatic("different rows count in what is combined")
        elif len(walk.shape(arg)) >= -axis and walk.shape(arg)[axis] != 1:
            raise NotStatic("rows of which some count are combined with rows that all do")
    return walk.padded(call, args, first.rows, len(call.checked_type.shape) + axis)


def _item_by_item(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """The first argument, or the last if it is rois, has items, and each gives one of the result."""
    parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
    items = parts[-1 if "roi_align" in op_name(call) else 0]
    if any(isinstance(part, Padded) != (part is items) for part in parts):
        raise NotStatic("other than its items are padded")
    layouts = (str(getattr(call.attrs, name, "N")) for name in ("data_layout", "layout"))
    if items.axis != 0 or any(layout[0] != "N" for layout in layouts):
        raise NotStatic("the rows are not the items of a batch")
    return walk.padded(call, args, items.rows, 0)


def _paste_masks(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    return walk.padded(call, args, _rows_of_all("masks and boxes", args), 0)


def _heatmaps_to_keypoints(walk: Walk, call: relay.Call, args: list[Became]) -> tuple[Padded, ...]:
    """Where a row does not count, a roi that is nowhere: there is nothing to compute for it."""
    rows = _rows_of_all("maps and rois", args)
    maps, rois = (arg.expr for arg in args)
    valid = relay.expand_dims(rows.valid, 1)
    rois = relay.where(valid, rois, relay.const(math.inf, walk.dtype(rois)))
    results = walk.typed(relay.Call(call.op, [maps, rois], call.attrs))
    return tuple(Padded(walk.typed(relay.TupleGetItem(results, index)), rows) for index in range(2))


def _rows_of_all(names: str, args: list[Became]) -> Rows:
    """The rows of which each argument has an item."""
    first = args[0]
    if any(not isinstance(arg, Padded) or arg.axis != 0 for arg in args) or first.rows != args[1].rows:
        raise NotStatic(f"{names} are of different rows")
    return first.rows


def _along_another_axis(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    if int(call.attrs.axis) % data.rank == data.axis:
        raise NotStatic("it goes along the rows")
    return walk.padded(call, args, data.rows, data.axis)


def _reduce(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    axes = set(range(data.rank)) if call.attrs.axis is None else {int(a) % data.rank for a in call.attrs.axis}
    axes = set(range(data.rank)) - axes if call.attrs.exclude else axes
    if data.axis in axes:
        raise NotStatic("it reduces over the rows")
    gone = 0 if call.attrs.keepdims else sum(axis < data.axis for axis in axes)
    return walk.padded(call, args, data.rows, data.axis - gone)


# --- other places of the same rows


def _transpose(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    axes = call.attrs.axes
    order = list(range(data.rank))[::-1] if axes is None else [int(axis) % data.rank for axis in axes]
    return walk.padded(call, args, data.rows, order.index(data.axis))


def _expand_dims(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    at, new = int(call.attrs.axis), int(call.attrs.num_newaxis)
    at = at + data.rank + 1 if at < 0 else at
    return walk.padded(call, args, data.rows, data.axis + (new if at <= data.axis else 0))


def _squeeze(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    (data,) = args
    if call.attrs.axis is None or any(int(axis) % data.rank == data.axis for axis in call.attrs.axis):
        raise NotStatic("it squeezes the rows")
    gone = sum(int(axis) % data.rank < data.axis for axis in call.attrs.axis)
    return walk.padded(call, args, data.rows, data.axis - gone)


def _reshape(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    data, lengths = _data(args), None
    if op_name(call) == "dyn.reshape":
        lengths = _new_shape(walk, call.args[1])
        shape = [-1 if length is None else walk.length(length) for length in lengths]
        result = walk.typed(relay.reshape(data.expr, shape, bool(call.attrs.allowzero)))
    else:
        result = walk.typed(relay.Call(call.op, [data.expr], call.attrs))
    before, after = data.shape, walk.shape(result)
    for axis, dim in enumerate(call.checked_type.shape):
        # The first axis of unknown length is the one of rows, if what is in front of it is the same.
        if not hasattr(dim, "value") and math.prod(before[: data.axis]) == math.prod(after[:axis]):
            rows = _resized(data.rows, after[axis])
            if rows is not None and (lengths is None or _is_shape(walk, lengths, rows, axis)):
                return Padded(result, rows, axis)
    raise NotStatic("it mixes rows with other axes")


def _new_shape(walk: Walk, expr: relay.Expr) -> list[Element]:
    """The lengths for a reshape, of which one may be -1 or unknown."""
    values = shape_values(walk.graph, expr)
    if values is None or sum(value is None or value == -1 for value in values) > 1:
        raise NotStatic("a shape is computed from how many rows count")
    return list(values)


def _is_shape(walk: Walk, lengths: list[Element], rows: Rows, at: int) -> bool:
    """Whether only the length of one axis depends on rows, and is as many as count of these."""
    others = lengths[:at] + lengths[at + 1 :]
    if not all(map(walk.is_fixed, others)):
        return False
    follows = lengths[at] in (None, -1, 0)
    return follows or walk.counted(lengths[at]) == rows.counted


def _resized(rows: Rows, length: int) -> Rows | None:
    if length % rows.capacity == 0:
        return rows.repeated(length // rows.capacity)
    return rows.merged(rows.capacity // length) if rows.capacity % length == 0 else None


def _concatenate(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
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
    rows = [part.rows if isinstance(part, Padded) else all_of(walk.shape(part)[at]) for part in parts]
    return walk.padded(call, args, in_a_row(rows), at)


def _split(walk: Walk, call: relay.Call, args: list[Became]) -> tuple[Padded, ...]:
    (data,) = args
    if int(call.attrs.axis) % data.rank == data.axis:
        raise NotStatic("it splits the rows")
    whole = walk.typed(relay.Call(call.op, [data.expr], call.attrs))
    number = len(call.checked_type.fields)
    return tuple(
        Padded(walk.typed(relay.TupleGetItem(whole, index)), data.rows, data.axis) for index in range(number)
    )


def _pad(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    data = _data(args)
    if any(int(width) for width in call.attrs.pad_width[data.axis]):
        raise NotStatic("it pads the rows")
    return walk.padded(call, args, data.rows, data.axis)


# --- some of the rows


def _strided_slice(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """Of other axes, of the first rows, or of those that were put in a row with others."""
    data, attrs = _data(args), call.attrs
    if str(attrs.slice_mode) != "end":
        raise NotStatic("a slice of a size that is known only at run time")
    if op_name(call) == "strided_slice":
        begin, end, strides = attrs.begin, attrs.end, attrs.strides or [1] * len(attrs.begin)
        axes = range(len(begin)) if attrs.axes is None else [int(axis) % data.rank for axis in attrs.axes]
    else:
        begin, end, strides = (_known(walk, bound) for bound in call.args[1:])
        axes = range(len(begin))
    rows, cuts = data.rows, {}
    for axis, first, last, step in zip(axes, begin, end, strides):
        if axis == data.axis:
            (start, stop), rows = _between(walk, rows, first, last, step)
            cut: tuple[int, ...] = start, stop, 1
        elif not all(map(walk.is_fixed, (first, last, step))):
            raise NotStatic("how much it takes of another axis depends on how many rows count")
        else:
            cut = tuple(int(walk.length(bound)) for bound in (first, last, step))
        if cut[::2] != (0, 1) or cut[1] < data.shape[axis]:
            cuts[axis] = cut[0], min(cut[1], TO_THE_END), cut[2]
    if not cuts:
        return data
    begin, end, strides = zip(*cuts.values())
    result = relay.strided_slice(data.expr, begin, end, strides, axes=list(cuts))
    return Padded(walk.typed(result), rows, data.axis)


def _between(
    walk: Walk, rows: Rows, first: Element, last: Element, step: Element
) -> tuple[tuple[int, int], Rows]:
    """Where the rows are that a slice takes, which are the first or the parts of others; and which."""
    first, last = _inside(walk, first, rows), _inside(walk, last, rows)
    if int(step) == 1 and first is not None and last is not None:
        begin, end = walk.counted(first), walk.counted(last)
        if isinstance(last, int) and last >= rows.capacity:
            end = rows.counted
        if first == 0 and end == rows.counted:
            return (0, rows.capacity), rows
        if rows.are_first and first == 0 and isinstance(last, int) and last >= 0:
            return (0, last), rows.first(last)
        found = rows.between(begin, end)
        if found is not None:
            start, part = found
            return (start, start + part.capacity), part
    raise NotStatic("it takes other rows than the first, or than were put in a row")


def _inside(walk: Walk, bound: Element, rows: Rows) -> Element:
    """A bound that may be greater than the number of rows, in the place of one that stays inside."""
    if isinstance(bound, Clamped):
        return bound.bound if walk.counted(bound.dim) == rows.counted else None
    if isinstance(bound, Least):
        whole = [walk.counted(length) == rows.counted for length in bound]
        return bound[1 - whole.index(True)] if any(whole) else None
    return bound


def _data(args: list[Became]) -> Padded:
    """The first argument, which has the rows."""
    if not isinstance(args[0], Padded):
        raise NotStatic("how it works depends on what is detected")
    return args[0]


def _take(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    data, indices = args
    attrs, shape = call.attrs, walk.shape(walk.expr(data))
    if int(attrs.batch_dims) != 0 or (attrs.axis is None and len(shape) > 1):
        raise NotStatic("elements are taken from several axes at once")
    axis = int(attrs.axis or 0) % len(shape)
    _check_index(data, axis, indices)
    if not isinstance(indices, Padded):
        more = len(indices.checked_type.shape) - 1
        return walk.padded(call, args, data.rows, data.axis + (more if axis < data.axis else 0))
    if isinstance(data, Padded) and data.axis != axis:
        raise NotStatic("rows are taken along two axes")
    if isinstance(data, Padded) and str(attrs.mode) == "wrap":
        raise NotStatic("an index may count from the last row")
    if walk.lists_all(indices.expr) and indices.rank == 1 and shape[axis] == indices.rows.capacity:
        return Padded(walk.expr(data), indices.rows, axis)
    _check_some(shape[axis])
    # Whatever the index of a row that does not count, it reads inside.
    mode = "wrap" if str(attrs.mode) == "wrap" else "clip"
    taken = relay.take(walk.expr(data), indices.expr, axis=axis, mode=mode)
    return Padded(walk.typed(taken), indices.rows, axis + indices.axis)


def _check_index(data: Became, axis: int, index: Became) -> None:
    """That an index along an axis means the same row as before."""
    rows = data.rows if isinstance(data, Padded) and data.axis == axis else None
    if rows is not None and not isinstance(index, Padded):
        raise NotStatic("single rows are taken")
    if (index.places if isinstance(index, Padded) else None) != (rows and rows.places):
        raise NotStatic("rows are taken at places that are not known to be theirs")


def _check_some(*lengths: int) -> None:
    """That there is something to read for a row that does not count."""
    if 0 in lengths:
        raise NotStatic("rows are taken of none, where one that does not count would be read outside")


def _adv_index(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """An element or item for each row, at places that are computed for it."""
    data, *indices = args[0]
    for axis, index in enumerate(indices):
        _check_index(data, axis, index)
    if isinstance(data, Padded) and data.axis >= len(indices):
        raise NotStatic("rows are taken along two axes")
    padded = [index for index in indices if isinstance(index, Padded)]
    if not padded or any(index.rank != 1 or index.rows != padded[0].rows for index in padded):
        raise NotStatic("rows are taken by several indices that are not of the same rows")
    if any(not isinstance(index, Padded) and walk.shape(index) != (1,) for index in indices):
        raise NotStatic("rows of which some count are taken together with others that all do")
    _check_some(*walk.shape(walk.expr(data))[: len(indices)])
    inside = [_zero_elsewhere(walk, index) if isinstance(index, Padded) else index for index in indices]
    taken = relay.Call(call.op, [relay.Tuple([walk.expr(data), *inside])], call.attrs)
    return Padded(walk.typed(taken), padded[0].rows)


def _zero_elsewhere(walk: Walk, vector: Padded) -> relay.Expr:
    return relay.where(vector.rows.valid, vector.expr, relay.const(0, walk.dtype(vector.expr)))


def _argwhere(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """The rows where a mask holds: all rows, of which those count."""
    mask = args[0]
    if len(call.args[0].checked_type.shape) != 1:
        raise NotStatic("elements are looked for along several axes")
    valid = mask
    if isinstance(mask, Padded):
        valid = relay.logical_and(mask.expr, mask.rows.valid)
    (capacity,) = walk.shape(walk.expr(mask))
    rows = Rows(capacity, ("where", call.args[0]), mask=walk.typed(valid))
    places = mask.rows.places if isinstance(mask, Padded) else None
    return Padded(walk.all_rows(capacity), rows, places=places)


def _topk(walk: Walk, call: relay.Call, args: list[Became]) -> Padded | tuple[Padded, Padded]:
    """The others get what sorts last; how many are wanted at most is known."""
    data, attrs = _data(args), call.attrs
    if data.rank != 1 or attrs.is_ascend or data.axis != 0:
        raise NotStatic("a top-k that is not of the greatest of all rows")
    if not is_bounded(call.args[0]):
        raise NotStatic("whether a top-k sorts NaN or -inf is not known")
    wanted = [int(attrs.k)] if op_name(call) == "topk" else _known(walk, call.args[1])
    most = _inside(walk, wanted[0], data.rows) if len(wanted) == 1 else None
    if most is None or (not isinstance(most, int) and walk.counted(most) != data.rows.counted):
        raise NotStatic("how many a top-k gives is known only at run time")
    most = min(walk.length(most), data.rows.capacity)
    rows = Rows(most, ("top", call), count=relay.minimum(data.rows.number, relay.const(most, "int32")))
    dtype = walk.dtype(data.expr)
    sorted_last = relay.where(data.rows.valid, data.expr, relay.const(LOWEST, dtype))
    kind = str(attrs.ret_type)
    result = relay.topk(sorted_last, most, ret_type=kind, is_ascend=False, dtype=str(attrs.dtype))
    places = data.rows.places
    if kind != "both":
        return Padded(walk.typed(result), rows, places=places if kind == "indices" else None)
    result = walk.typed(result.astuple())
    values, indices = (walk.typed(relay.TupleGetItem(result, index)) for index in range(2))
    return Padded(values, rows), Padded(indices, rows, places=places)


def nms(walk: Walk, call: relay.Call, args: list[Became]) -> relay.Expr:
    """Class-aware NMS leaves out what does not count; what it keeps has fixed size already."""
    tensors, rest = list(args[:3]), [walk.expr(arg) for arg in args[3:]]
    if any(isinstance(arg, Padded) for arg in args[3:]):
        raise NotStatic("a threshold is computed from rows of which some count")
    if any(not isinstance(tensor, Padded) or tensor.axis != 0 for tensor in tensors):
        raise NotStatic("an NMS of boxes of which only some properties are padded")
    rows = tensors[0].rows
    if any(tensor.rows != rows for tensor in tensors):
        raise NotStatic("boxes, scores and class ids of an NMS are of different rows")
    if not walk.keeps_selections_alone(call):
        raise NotStatic("more is taken of an NMS than the boxes that it keeps, and their number")
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


def _full(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    if isinstance(args[0], Padded):
        raise NotStatic("it is filled with a value of a row")
    shape, rows, axis = _shape_with_rows(walk, call.args[1])
    return Padded(walk.typed(relay.full(walk.expr(args[0]), shape, call.checked_type.dtype)), rows, axis)


def _broadcast_to(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    data = args[0]
    shape, rows, axis = _shape_with_rows(walk, call.args[1])
    if isinstance(data, Padded) and (data.rows, data.axis - data.rank) != (rows, axis - len(shape)):
        raise NotStatic("it is broadcast to other rows")
    return Padded(walk.typed(relay.broadcast_to(walk.expr(data), shape)), rows, axis)


def _arange(walk: Walk, call: relay.Call, _args: list[Became]) -> Padded:
    (stop,) = _known(walk, call.args[1])
    rows = walk.rows(stop) if isinstance(stop, Dim) else None
    if (scalar(call.args[0]), scalar(call.args[2])) != (0, 1) or rows is None:
        raise NotStatic("it counts other than the rows")
    numbers = np.arange(rows.capacity).astype(call.checked_type.dtype)
    return Padded(walk.typed(relay.const(numbers, call.checked_type.dtype)), rows, places=rows.places)


def _shape_with_rows(walk: Walk, expr: relay.Expr) -> tuple[list[int], Rows, int]:
    """A shape's lengths, and which rows are along which of its axes."""
    values = _known(walk, expr)
    depending = [axis for axis, value in enumerate(values) if not walk.is_fixed(value)]
    if len(depending) != 1 or not isinstance(values[depending[0]], Dim):
        raise NotStatic("a shape is computed from how many rows count")
    (axis,) = depending
    return [walk.length(value) for value in values], walk.rows(values[axis]), axis


def _known(walk: Walk, expr: relay.Expr) -> list[Element]:
    values = shape_values(walk.graph, expr)
    if values is None or any(value is None for value in values.flat):
        raise NotStatic("a length is computed from how many rows count")
    return list(values.flat)


_SAME_ELEMENTS = (
    "cast",
    "transpose",
    "expand_dims",
    "squeeze",
    "reshape",
    "dyn.reshape",
    "strided_slice",
    "dyn.strided_slice",
)
_BY_INDEX = ("take", "adv_index")
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
    **dict.fromkeys(("repeat", "tile", "broadcast_to"), _elementwise),  # of axes other than that of the rows
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
