"""How the boxes that an NMS keeps look in a graph: the first `count` of its indices."""

import numpy as np

import topi_ext

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, is_tuple_get_item, wildcard

from ._matchers import constant
from .canonicalize.shape_values import all_known, shape_values


class Selection:
    """Patterns for a rule to inherit: `selection` matches the kept indices of one `topi_ext.batched_nms`."""

    nms = is_op("topi_ext.batched_nms")(None)
    begin, strides = wildcard(), wildcard()
    count = is_op("expand_dims")(is_tuple_get_item(nms, 1))
    selection = is_op("dyn.strided_slice")(is_tuple_get_item(nms, 0), begin, count, strides)


def select(boxes, scores, class_ids, iou_threshold, **options):
    """The kept indices of one class-aware NMS without a batch, as long as there are kept boxes."""
    nms = topi_ext.batched_nms(boxes, scores, class_ids, iou_threshold, **options)
    indices, count = relay.TupleGetItem(nms, 0), relay.TupleGetItem(nms, 1)
    zero, one = relay.const([0], "int64"), relay.const([1], "int64")
    return relay.strided_slice(indices, zero, relay.expand_dims(count, 0), one, slice_mode="size")


def one_class(scores):
    """Class ids that are all the same."""
    return relay.cast(relay.zeros_like(scores), "int32")


def all_equal(graph, expr, number):
    """Whether a small integer tensor holds nothing but this number."""
    values = shape_values(graph, expr)
    return all_known(values) and all(value == number for value in values.flat)


def scalar(expr):
    """The number a constant holds alone, or None."""
    value = constant(expr)
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else None
