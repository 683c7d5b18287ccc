"""Values that are computed only for the elements of a mask, computed for all of them."""

from __future__ import annotations

from tvm_passes.analysis.operators import is_elementwise
from tvm_passes.engine.expressions import op_name, type_of

import tvm
from tvm import relay


def for_all_elements(values: relay.Expr, mask: relay.Expr, behind: int = 0) -> relay.Expr | None:
    """`f(x)` for the values `f(x[mask])`; None if they are not of that form.

    `x` has the axes of the mask, and so many `behind` these.
    """
    if not isinstance(values, relay.Call):
        is_same = isinstance(values, relay.Constant) and len(type_of(values).shape) <= behind
        return values if is_same else None
    if op_name(values) == "transpose" and _keeps_order(values):
        return for_all_elements(values.args[0], mask, behind)
    if op_name(values) == "adv_index":
        return _unmasked(values.args[0], mask, behind)
    if not is_elementwise(values):
        return None
    operands = [for_all_elements(each, mask, behind) for each in values.args]
    if any(each is None for each in operands):
        return None
    return relay.Call(values.op, operands, values.attrs, values.type_args, values.span)


def _keeps_order(transpose: relay.Call) -> bool:
    axes = transpose.attrs.axes
    rank = len(type_of(transpose).shape)
    return rank < 2 or (axes is not None and [int(axis) for axis in axes] == list(range(rank)))


def _unmasked(taken: relay.Tuple, mask: relay.Expr, behind: int) -> relay.Expr | None:
    """x, if this is how TVM's importer spells x[mask] for a mask of its first axes."""
    data, *places = taken.fields
    rank = len(type_of(mask).shape)
    if op_name(data) == "transpose" and _keeps_order(data):
        data = data.args[0]
    if len(type_of(data).shape) != rank + behind or len(places) != rank:
        return None
    for axis, place in enumerate(places):
        is_row = op_name(place) == "squeeze" if rank == 1 else op_name(place) == "take"
        if not is_row or op_name(place.args[0]) != "argwhere":
            return None
        if rank > 1 and (int(place.attrs.axis), int(place.args[1].data.numpy())) != (1, axis):
            return None
        if not tvm.ir.structural_equal(place.args[0].args[0], mask, map_free_vars=False):
            return None
    return data
