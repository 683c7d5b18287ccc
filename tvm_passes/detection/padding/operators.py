"""The functions that handle operators on padded rows, by operator.

Each handler takes the walk, a call, and what its arguments have become: a `Padded`, a tuple of them, SIZE, or
the original expression if nothing in it is padded. It returns what the call becomes, whose valid rows are
what the call would compute from the valid rows alone, and raises NotStatic if it cannot guarantee that.

An operator that is row-wise by `analysis/operators.py` needs no entry here.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relay

from ...analysis import operators as known
from ...engine.expressions import op_name
from . import moved_rows, new_rows, row_by_row, scattered_rows, some_rows
from .padded import SIZE, Became, NotStatic, Padded
from .walk import Walk

SAME_ROWS = (  # the rows that remain keep their values
    *("cast", "transpose", "expand_dims", "squeeze", "reshape", "dyn.reshape"),
    *("strided_slice", "dyn.strided_slice"),
)
BY_INDEX = ("take", "gather", "adv_index")
OF_INDICES = ("shape_of", "stack", "scatter_nd", *SAME_ROWS, *BY_INDEX)  # may get indices of moved rows
LIKE = ("full_like", "ones_like", "zeros_like")  # read no number of the first argument


def handle(walk: Walk, call: relay.Call, args: list[Became]) -> Became:
    """The replacement of a call with padded arguments or sizes, or of one that searches for rows."""
    parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
    name = op_name(call)
    read = parts[1:] if name in LIKE else parts
    has_moved = any(isinstance(part, Padded) and part.holds_moved for part in read)
    if has_moved and name not in OF_INDICES:
        raise NotStatic("it uses row indices, which padding changed")
    became = _handler_of(call)(walk, call, args)
    if name in (*SAME_ROWS, *BY_INDEX, "stack") and isinstance(parts[0], Padded):
        became.places = parts[0].places
    return became


def _handler_of(call: relay.Call) -> Callable[[Walk, relay.Call, list[Became]], Became]:
    name = op_name(call) or "a function"
    if name in OF_OPERATORS:
        return OF_OPERATORS[name]
    if known.is_elementwise(call):
        return row_by_row.elementwise
    rows = known.known_of(call).rows
    if rows is None:
        raise NotStatic(f"{name} is not supported on detections")
    return BY_ROWS[rows]


def _shape_of(_walk: Walk, _call: relay.Call, _args: list[Became]) -> object:
    return SIZE


OF_OPERATORS = {
    "shape_of": _shape_of,
    **dict.fromkeys(("topi_ext.paste_masks", "topi_ext.encode_masks"), row_by_row.of_masks_and_boxes),
    "topi_ext.heatmaps_to_keypoints": row_by_row.heatmaps_to_keypoints,
    "image.grid_sample": row_by_row.grid_sample,
    "image.resize2d": row_by_row.resize2d,
    "gather": row_by_row.gather,
    # along axes without rows
    **dict.fromkeys(("repeat", "tile", "broadcast_to", "broadcast_to_like"), row_by_row.elementwise),
    "annotation.stop_fusion": row_by_row.elementwise,
    "scatter_nd": scattered_rows.scatter_nd,
    "transpose": moved_rows.transpose,
    "expand_dims": moved_rows.expand_dims,
    "squeeze": moved_rows.squeeze,
    "reshape": moved_rows.reshape,
    "dyn.reshape": moved_rows.reshape,
    "concatenate": moved_rows.concatenate,
    "stack": moved_rows.concatenate,
    "split": moved_rows.split,
    "nn.pad": moved_rows.pad,
    "dyn.nn.pad": moved_rows.pad_to_fixed_length,
    "strided_slice": some_rows.strided_slice,
    "dyn.strided_slice": some_rows.strided_slice,
    "take": some_rows.take,
    "adv_index": some_rows.adv_index,
    "gather_nd": some_rows.gather_nd,
    "argwhere": some_rows.argwhere,
    "argsort": some_rows.sort,
    "sort": some_rows.sort,
    "topk": some_rows.topk,
    "dyn.topk": some_rows.topk,
    "topi_ext.batched_nms": some_rows.nms,
    "dyn.full": new_rows.full,
    "dyn.broadcast_to": new_rows.broadcast_to,
    "arange": new_rows.arange,
}
BY_ROWS = {
    known.ITEMS: row_by_row.item_by_item,
    known.REGIONS: row_by_row.item_by_item,
    known.OTHER_AXES: row_by_row.along_another_axis,
    known.NOT_REDUCED: row_by_row.reduce,
}
