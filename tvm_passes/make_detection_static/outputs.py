"""The outputs of a function whose detections are padded."""

import tvm
from tvm import relay
from tvm.relay.op.dyn import _make as dynamic

from .operators import NotStatic
from .padded import Padded
from .walk import SIZE


def _cut(walk, result, attrs):
    """Each output as long as there are detections."""
    return _each(result, lambda output: _first_rows(walk, output)), attrs


def _first_rows(walk, output):
    lengths = [relay.const([length], "int32") for length in output.shape]
    lengths[output.axis] = relay.expand_dims(output.rows.count, 0)
    zeros, ones = (relay.const([value] * output.rank, "int32") for value in (0, 1))
    cut = dynamic.strided_slice(output.expr, zeros, relay.concatenate(lengths, 0), ones, "end")
    known = [-1 if axis == output.axis else length for axis, length in enumerate(output.shape)]
    return relay.reshape(cut, known)  # the slice forgets the other lengths


def _padded(walk, result, attrs):
    """Each output with zeros behind the detections, and their number."""
    outputs = list(result) if isinstance(result, tuple) else [result]
    rows = [output.rows for output in outputs if isinstance(output, Padded)]
    if any(other != rows[0] for other in rows):
        raise NotStatic("the outputs are of different detections, which one number cannot count")
    padded = _each(tuple(outputs), lambda output: _zero_elsewhere(walk, output))
    names = attrs.get("output_names") if attrs else None
    if names is not None:
        attrs = tvm.ir.make_node(
            "DictAttrs", **{**dict(attrs.items()), "output_names": [*names, "num_detections"]}
        )
    return relay.Tuple([*padded.fields, rows[0].count]), attrs


def _zero_elsewhere(walk, output):
    shape = [1] * output.rank
    shape[output.axis] = output.rows.capacity
    return relay.where(
        relay.reshape(output.rows.valid, shape), output.expr, relay.const(0, walk.dtype(output.expr))
    )


def _each(result, finish):
    if isinstance(result, tuple):
        return relay.Tuple([_each(output, finish) for output in result])
    if result is SIZE:
        raise NotStatic("an output says how many detections there are")
    if isinstance(result, Padded):
        if not result.rows.are_first:
            raise NotStatic("an output is what a filter leaves, which is in no place of its own")
        return finish(result)
    return result


OUTPUTS = {"cut": _cut, "padded": _padded}
