"""Operators that slice, gather, search, sort or suppress padded rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvm
from tvm import relay

from ...analysis.bounds import bound, is_bounded
from ...analysis.filters import LOWEST
from ...analysis.operators import computes_along
from ...analysis.shape_values import TO_THE_END, Clamped, Element, Minimum
from ...engine.expressions import constant, op_name
from .padded import Became, NotStatic, Padded, Rows, along_axis, valid_first
from .row_by_row import along_another_axis
from .walk import Walk, data_of


def strided_slice(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """A slice of other axes, of the leading rows, or of a part of concatenated rows."""
    data, attrs = data_of(args), call.attrs
    if str(attrs.slice_mode) != "end":
        raise NotStatic("the size of a slice is known only at run time")
    axes, *bounds = _axes_and_bounds(walk, call, data.rank)
    rows, cuts = data.rows, {}
    for axis, first, last, step in zip(axes, *bounds):
        if axis == data.axis:
            found = _between(walk, data.rows, first, last, step)
            if found is None:
                data = walk.compacted(data)
                found = _between(walk, data.rows, first, last, step)
            if found is None:
                raise NotStatic("it takes rows other than the leading ones or a concatenated part")
            (start, stop), rows = found
            cut: tuple[int, ...] = start, stop, 1
        elif not all(map(walk.is_fixed, (first, last, step))):
            raise NotStatic("the slice of another axis depends on the number of valid rows")
        else:
            cut = tuple(int(walk.length(bound)) for bound in (first, last, step))
        if cut[::2] != (0, 1) or cut[1] < data.shape[axis]:
            cuts[axis] = cut[0], min(cut[1], TO_THE_END), cut[2]
    if not cuts:
        return data
    begin, end, strides = zip(*cuts.values())
    result = relay.strided_slice(data.expr, begin, end, strides, axes=list(cuts))
    return Padded(walk.typed(result), rows, data.axis)


def _axes_and_bounds(walk: Walk, call: relay.Call, rank: int) -> tuple[list[Any], ...]:
    """The axes that a slice cuts, and where it begins and ends along each, with which stride."""
    if op_name(call) == "dyn.strided_slice":
        begin, end, strides = (walk.known_lengths(bound) for bound in call.args[1:])
        return list(range(len(begin))), begin, end, strides
    attrs = call.attrs
    given = attrs.begin, attrs.end, attrs.strides or [1] * len(attrs.begin)
    axes = range(len(attrs.begin)) if attrs.axes is None else [int(axis) % rank for axis in attrs.axes]
    return (list(axes), *(list(map(int, bound)) for bound in given))


def _between(
    walk: Walk, rows: Rows, first: Element, last: Element, step: Element
) -> tuple[tuple[int, int], Rows] | None:
    """The index range of a slice of leading rows or of whole concatenated parts, and the rows it takes.

    None if it takes others.
    """
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
    return None


def _inside(walk: Walk, bound: Element, rows: Rows) -> Element:
    """The bound before it was clamped to the number of rows, which padding makes unnecessary."""
    if isinstance(bound, Clamped):
        return bound.bound if walk.counted(bound.dim) == rows.counted else None
    if isinstance(bound, Minimum):
        whole = [walk.counted(length) == rows.counted for length in bound]
        return bound[1 - whole.index(True)] if any(whole) else None
    return bound


def take(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
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
    # The index in an invalid row may be anything: keep it in bounds.
    mode = "wrap" if str(attrs.mode) == "wrap" else "clip"
    taken = relay.take(walk.expr(data), indices.expr, axis=axis, mode=mode)
    return Padded(walk.typed(taken), indices.rows, axis + indices.axis)


def _check_index(data: Became, axis: int, index: Became) -> None:
    """Raise NotStatic unless an index along an axis refers to the same row as in the original graph.

    Of padded rows, only indices that were computed as such will do: another, such as one more than those,
    may be past the valid rows, or count from the last of them. But where a row has become several, one of
    them is found by computing with its index.
    """
    rows = data.rows if isinstance(data, Padded) and data.axis == axis else None
    if rows is not None and not isinstance(index, Padded):
        raise NotStatic("single rows are taken by index")
    places = index.places if isinstance(index, Padded) else None
    may_be_computed = rows is None or (rows.are_first and rows.origin is not None)
    if places != rows and not (may_be_computed and (places is None or places.are_first)):
        raise NotStatic("rows are taken at indices that may belong to other rows")


def _check_some(*lengths: int) -> None:
    """Raise NotStatic if an invalid row has nothing to read."""
    if 0 in lengths:
        raise NotStatic("rows are taken from a tensor without rows, where padding would read out of bounds")


def adv_index(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """A gather of an element or item for each row, at indices computed for it."""
    data, *indices = args[0]
    for axis, index in enumerate(indices):
        _check_index(data, axis, index)
    if isinstance(data, Padded) and data.axis >= len(indices):
        raise NotStatic("rows are taken along two axes")
    padded = [index for index in indices if isinstance(index, Padded)]
    if not padded or any(index.rank != 1 or index.rows != padded[0].rows for index in padded):
        raise NotStatic("rows are taken by several indices with different valid rows")
    if any(not isinstance(index, Padded) and walk.shape(index) != (1,) for index in indices):
        raise NotStatic("padded rows are taken together with rows that are all valid")
    lengths = walk.shape(walk.expr(data))[: len(indices)]
    _check_some(*lengths)
    inside = [_inside_of(walk, length, index) for length, index in zip(lengths, indices)]
    taken = relay.Call(call.op, [relay.Tuple([walk.expr(data), *inside])], call.attrs)
    return Padded(walk.typed(taken), padded[0].rows)


def gather_nd(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """A gather of an element or item for each row, whose indices lie along the first axis."""
    data, indices = args
    if isinstance(data, Padded) or not isinstance(indices, Padded):
        raise NotStatic("rows are taken by several indices, or along two axes")
    if int(call.attrs.batch_dims) != 0 or indices.axis == 0:
        raise NotStatic("padded rows are not those of the indices")
    depth = indices.shape[0]
    _check_some(*walk.shape(data)[:depth])
    valid = along_axis(indices.rows.valid, indices.axis, indices.rank)
    inside = relay.where(valid, indices.expr, relay.const(0, walk.dtype(indices.expr)))
    taken = relay.Call(call.op, [data, inside], call.attrs)
    return Padded(walk.typed(taken), indices.rows, indices.axis - 1)


def _inside_of(walk: Walk, length: int, index: Became) -> relay.Expr:
    """The index, kept in bounds: in an invalid row it may be anything."""
    if not isinstance(index, Padded):
        return walk.expr(index)
    numbers = constant(index.expr)
    if numbers is not None and np.all((numbers >= 0) & (numbers < length)):
        return index.expr
    return _zero_elsewhere(walk, index)


def _zero_elsewhere(walk: Walk, vector: Padded) -> relay.Expr:
    return relay.where(vector.rows.valid, vector.expr, relay.const(0, walk.dtype(vector.expr)))


def argwhere(walk: Walk, call: relay.Call, args: list[Became]) -> Padded:
    """The indices of rows where a mask is true: those of all rows, valid where the mask is true."""
    mask = args[0]
    if len(call.args[0].checked_type.shape) != 1:
        return _argwhere_along_axes(walk, call, mask)
    valid = mask
    if isinstance(mask, Padded):
        valid = relay.logical_and(mask.expr, mask.rows.valid)
    (capacity,) = walk.shape(walk.expr(mask))
    rows = Rows(capacity, ("where", call.args[0]), mask=walk.typed(valid))
    places = mask.rows if isinstance(mask, Padded) else None
    return Padded(walk.all_rows(capacity), rows, places=places)


def _argwhere_along_axes(walk: Walk, call: relay.Call, mask: Became) -> Padded:
    """The indices of all elements, as NumPy counts them."""
    if isinstance(mask, Padded):
        raise NotStatic("argwhere searches along several axes of detections")
    shape = walk.shape(mask)
    if not shape:
        raise NotStatic("argwhere searches a scalar")
    indices = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1).astype("int32")
    valid = walk.typed(relay.reshape(mask, (-1,)))
    rows = Rows(len(indices), ("where", call.args[0]), mask=valid)
    return Padded(walk.typed(relay.const(indices, call.checked_type.dtype)), rows)


def topk(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """Along the rows; an upper bound of k must be known."""
    data, attrs = data_of(args), call.attrs
    if op_name(call) == "topk" and not computes_along(call, data.axis):
        return along_another_axis(walk, call, args)
    wanted = [int(attrs.k)] if op_name(call) == "topk" else walk.known_lengths(call.args[1])
    most = _inside(walk, wanted[0], data.rows) if len(wanted) == 1 else None
    if most is None or (not isinstance(most, int) and walk.counted(most) != data.rows.counted):
        raise NotStatic("the k of a top-k is known only at run time")
    most = min(walk.length(most), data.rows.capacity)
    values, indices = _sorted(walk, call, data, most)
    return {"both": (values, indices), "values": values, "indices": indices}[str(attrs.ret_type)]


def sort(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """`sort` and `argsort`, along the rows or another axis."""
    data = data_of(args)
    if not computes_along(call, data.axis):
        return along_another_axis(walk, call, args)
    return _sorted(walk, call, data, data.rows.capacity)[op_name(call) == "argsort"]


def _sorted(walk: Walk, call: relay.Call, data: Padded, most: int) -> tuple[Padded, Padded]:
    """At most this many valid rows in the order that the call sorts them, and their indices."""
    attrs, dtype, axis = call.attrs, walk.dtype(data.expr), data.axis
    valid = data.rows.valid if data.rank == 1 else along_axis(data.rows.valid, axis, data.rank)
    index_type = str(attrs.dtype) if op_name(call) != "sort" else "int32"
    above = None if attrs.is_ascend else bound(call.args[0])
    if above is not None:
        lowest_last = relay.where(valid, data.expr, relay.const(LOWEST, dtype))
        both = walk.typed(relay.topk(lowest_last, most, axis, is_ascend=False, dtype=index_type).astuple())
        values, indices = relay.TupleGetItem(both, 0), relay.TupleGetItem(both, 1)
    else:  # no value is known to sort behind all others: sort all, then bring the valid ones to the front
        numbers = relay.where(valid, data.expr, relay.const(0, dtype))
        every = relay.argsort(numbers, axis=axis, is_ascend=bool(attrs.is_ascend), dtype="int32")
        are_valid = relay.take(data.rows.valid, every)
        order = relay.gather(every, axis, valid_first(are_valid, data.rows.capacity, axis, data.rank))
        indices = relay.cast(relay.strided_slice(order, [0], [most], axes=[axis]), index_type)
        values = relay.gather(data.expr, axis, indices)
    rows = Rows(most, ("top", call), arranges=data.rows if most == data.rows.capacity else None)
    if above is not None and data.rank == 1 and not data.rows.are_first:
        # Of the values taken, all valid ones are above the bound and no other is, being -inf. Not to count
        # them all beforehand leaves the mask without other users, so TVM fuses it into what it masks.
        rows.mask = walk.typed(above.holds(values, dtype))
        rows.count = relay.sum(relay.cast(rows.mask, "int32"))
    else:
        rows.count = relay.minimum(data.rows.number, relay.const(most, "int32"))
    order = Padded(walk.typed(indices), rows, axis, places=data.rows)
    return Padded(walk.typed(values), rows, axis), order


def nms(walk: Walk, call: relay.Call, args: list[Became]) -> relay.Expr:
    """Class-aware NMS is made to skip invalid rows; its results already have static shapes."""
    tensors, rest = list(args[:3]), [walk.expr(arg) for arg in args[3:]]
    if any(isinstance(arg, Padded) for arg in args[3:]):
        raise NotStatic("a threshold is computed from padded rows")
    if any(not isinstance(tensor, Padded) or tensor.axis != 0 for tensor in tensors):
        raise NotStatic("only some operands of an NMS are padded")
    rows = tensors[0].rows
    if any(tensor.rows != rows for tensor in tensors):
        raise NotStatic("boxes, scores and class ids of an NMS have different valid rows")
    if not walk.keeps_selections_alone(call):
        raise NotStatic("results of an NMS other than the kept boxes and their number are used")
    attrs = dict(call.attrs.items())
    if attrs["has_valid_count"]:
        raise NotStatic("an NMS already has a valid count")
    if not attrs["has_score_threshold"] and not is_bounded(call.args[1]):
        tensors = [walk.compacted(tensor) for tensor in tensors]  # no score is known to be below all others
    rows = tensors[0].rows
    boxes, scores, ids = (tensor.expr for tensor in tensors)
    if rows.are_first:
        attrs["has_valid_count"], rest[0] = 1, rows.count
    else:
        if not attrs["has_score_threshold"]:
            attrs["has_score_threshold"], rest[2] = 1, relay.const(LOWEST, "float32")
        scores = relay.where(rows.valid, scores, relay.const(LOWEST, walk.dtype(scores)))
    return walk.typed(
        relay.Call(call.op, [boxes, scores, ids, *rest], tvm.ir.make_node("DictAttrs", **attrs))
    )
