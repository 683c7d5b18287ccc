"""The outputs of a function whose detections are padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tvm
from tvm import relay
from tvm.relay.op.dyn import _make as dynamic
from tvm.relay.ty import is_dynamic

from ...engine.expressions import op_name
from ...engine.graph import Graph
from ..padding.padded import Became, NotStatic, Padded
from ..padding.walk import Walk

OF_MASKS = ("topi_ext.paste_masks", "topi_ext.encode_masks")


def _cut(walk: Walk, result: Became, attrs: tvm.ir.Attrs | None) -> tuple[relay.Expr, tvm.ir.Attrs | None]:
    """Cut each output to the number of detections."""
    return _each(walk, result, _first_rows), attrs


def _first_rows(output: Padded) -> relay.Expr:
    lengths = [relay.const([length], "int32") for length in output.shape]
    lengths[output.axis] = relay.expand_dims(output.rows.count, 0)
    zeros, ones = (relay.const([value] * output.rank, "int32") for value in (0, 1))
    cut = dynamic.strided_slice(output.expr, zeros, relay.concatenate(lengths, 0), ones, "end")
    known = [-1 if axis == output.axis else length for axis, length in enumerate(output.shape)]
    return relay.reshape(cut, known)  # the slice's type loses the static lengths of the other axes


def is_cut(function: relay.Function) -> bool:
    """Whether only such cuts at the outputs have shapes that are known at run time only."""
    ends: list[relay.Expr] = []

    def follow(output: relay.Expr) -> None:
        if isinstance(output, relay.Tuple):
            for field in output.fields:
                follow(field)
        elif op_name(output) in (*OF_MASKS, "reshape") and is_dynamic(output.checked_type):
            ends.append(output)
            for arg in output.args:
                follow(arg)
        elif op_name(output) == "dyn.strided_slice" and not is_dynamic(output.args[0].checked_type):
            ends.append(output)

    follow(function.body)
    calls = [node for node in Graph(function).nodes if isinstance(node, relay.Call)]
    return all(node in ends for node in calls if is_dynamic(node.checked_type))


def _padded(walk: Walk, result: Became, attrs: tvm.ir.Attrs | None) -> tuple[relay.Expr, tvm.ir.Attrs]:
    """Zero the rows after the detections, and append their number, for several images one per image.

    The attribute `padded_rows` has, for each output but the last, its axis of detections and the index of the
    number that counts them, or an empty list if it has no such axis. It is empty, and no number is appended,
    if no output has such an axis, since the network itself brings its outputs to a fixed length.
    """
    padded = _each(walk, result, lambda output: _zero_elsewhere(walk, output))
    outputs = list(_leaves(result))
    detections = []
    for output in outputs:
        if isinstance(output, Padded) and output.rows not in detections:
            detections.append(output.rows)
    attrs = dict(attrs.items()) if attrs else {}
    if not detections:  # the network pads them itself
        return padded, tvm.ir.make_node("DictAttrs", **attrs, padded_rows=[])
    fields = padded.fields if isinstance(result, tuple) else [padded]
    numbers = [rows.number for rows in detections]
    number = numbers[0] if len(numbers) == 1 else relay.stack(numbers, 0)
    if "output_names" in attrs:
        attrs["output_names"] = [*attrs["output_names"], "num_detections"]
    attrs["padded_rows"] = [
        [output.axis, detections.index(output.rows)] if isinstance(output, Padded) else []
        for output in outputs
    ]
    return relay.Tuple([*fields, number]), tvm.ir.make_node("DictAttrs", **attrs)


def _zero_elsewhere(walk: Walk, output: Padded) -> relay.Expr:
    shape = [1] * output.rank
    shape[output.axis] = output.rows.capacity
    return relay.where(
        relay.reshape(output.rows.valid, shape), output.expr, relay.const(0, walk.dtype(output.expr))
    )


def _leaves(result: Became) -> Iterator[Became]:
    parts = result if isinstance(result, tuple) else [result]
    for part in parts:
        yield from _leaves(part) if isinstance(part, tuple) else [part]


def _each(walk: Walk, result: Became, finish: Callable[[Padded], relay.Expr]) -> relay.Expr:
    """The finished outputs; an output computed from another uses the finished one."""
    finished = {}

    def of(output: Became) -> relay.Expr:
        if isinstance(output, tuple):
            return relay.Tuple([of(part) for part in output])
        if not isinstance(output, Padded):
            return output
        if output.holds_moved:
            raise NotStatic("an output holds the indices of the rows that a filter keeps")
        key = output.expr, output.rows.key
        if key not in finished:
            from_masks = _is_nothing_of_zeros(output.expr)
            finished[key] = of_masks(output) if from_masks else finish(walk.compacted(output))
        return finished[key]

    def of_masks(output: Padded) -> relay.Expr:
        """Finish the small masks, rather than the images that they are pasted into, or those encoded."""
        call = output.expr
        return relay.Call(call.op, [of(Padded(arg, output.rows)) for arg in call.args], call.attrs)

    return of(result)


def _is_nothing_of_zeros(expr: relay.Expr) -> bool:
    """Whether the expression pastes or encodes masks, and a mask of zeros gives an empty image."""
    name = op_name(expr)
    if name not in OF_MASKS:
        return False
    has_threshold = name == "topi_ext.encode_masks" or expr.attrs["has_threshold"]
    return not has_threshold or float(expr.attrs["threshold"]) > 0


OUTPUTS = {"cut": _cut, "padded": _padded}
