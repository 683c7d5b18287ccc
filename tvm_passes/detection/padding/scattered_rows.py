"""Operators that replace elements of padded rows, or whole rows by their indices."""

from __future__ import annotations

import numpy as np

from tvm import relay

from .padded import Became, NotStatic, Padded, along_axis
from .walk import Walk


def scatter_nd(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """The same elements of each row are replaced, by indices along other axes, or rows by their indices."""
    data, indices, updates = args
    if any(isinstance(part, Padded) and part.holds_moved for part in (data, updates)):
        raise NotStatic("it uses row indices, which padding changed")
    of_indices = walk.shape(walk.expr(indices))
    if isinstance(indices, Padded):
        return _replaced(walk, call, args)
    if not isinstance(data, Padded) or data.axis < of_indices[0]:
        raise NotStatic("rows are replaced by index")
    axis = data.axis - of_indices[0] + len(of_indices) - 1
    if not isinstance(updates, Padded) or (updates.rows, updates.axis) != (data.rows, axis):
        raise NotStatic("the operands have different valid rows")
    return walk.padded(call, args, data.rows, data.axis)


def _replaced(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """The data, where rows of the updates are written; padding is written nowhere, past the last row."""
    data, indices, updates = args
    if indices.axis == 0 or not isinstance(updates, Padded):
        raise NotStatic("rows are replaced by index")
    if (updates.rows, updates.axis) != (indices.rows, indices.axis - 1):
        raise NotStatic("the operands have different valid rows")
    depth = indices.shape[0]
    if isinstance(data, Padded):
        if (data.axis, depth, indices.places) != (0, 1, data.rows):
            raise NotStatic("rows are replaced at indices that may belong to other rows")
    elif indices.holds_moved:
        raise NotStatic("rows are replaced at indices that may belong to other rows")
    dtype = walk.dtype(indices.expr)
    nowhere = along_axis(
        np.array([walk.shape(walk.expr(data))[0], *[0] * (depth - 1)], dtype), 0, indices.rank
    )
    valid = along_axis(indices.rows.valid, indices.axis, indices.rank)
    inside = relay.where(valid, indices.expr, relay.const(nowhere, dtype))
    result = walk.typed(relay.Call(call.op, [walk.expr(data), inside, updates.expr], call.attrs))
    return Padded(result, data.rows, data.axis) if isinstance(data, Padded) else result
