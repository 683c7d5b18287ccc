"""Graphs written by hand of the rows that an NMS or a filter keeps, and these made static."""

import numpy as np

from tests.helpers import apply, module
from tests.ops.detections import clustered_detections
from tests.passes.images_of_masks import N
from tvm_passes import Canonicalize, MakeDetectionStatic
from tvm_passes.detection.selection import select

import tvm
from tvm import relay


def detections(seed=0, scale=1.0):
    """No scores tie: of those that do, torch's top-k takes any."""
    boxes, scores, ids = clustered_detections(N, 3, seed)
    boxes[seed % 5 :: 5, 2:] = boxes[seed % 5 :: 5, :2] + np.float32(1e-3)
    return boxes, scores * np.float32(scale), ids


INPUTS = [detections(seed) for seed in range(6)] + [detections(0, 0.01), detections(0, 100)]


def static(mod, outputs):
    after, report = apply(tvm.transform.Sequential([MakeDetectionStatic(outputs), Canonicalize()]), mod)
    made, _ = report.passes
    assert not made.refusals, made.refusals
    return after


def is_dynamic(node):
    return "?" in str(getattr(node, "_checked_type_", ""))


def kept(boxes, scores, ids, most=9):
    return select(boxes, scores, ids, 0.5, max_output_size=most)


def rows(tensor, selection):
    return relay.take(tensor, selection, axis=0, mode="clip")


def size(tensor):
    return relay.take(relay.shape_of(tensor), relay.const(0), axis=0)


def places(mask):
    return relay.squeeze(relay.argwhere(mask), [1])


def column(boxes, number=0):
    return relay.take(boxes, relay.const(number), axis=1)


def filtered(boxes, threshold=100.0):
    return rows(boxes, places(column(boxes) > relay.const(threshold)))


def of_kept(function, most=9):
    """A function of the boxes that an NMS keeps, as a module."""
    inputs = [
        relay.var("boxes", shape=(N, 4)),
        relay.var("scores", shape=(N,)),
        relay.var("ids", shape=(N,), dtype="int64"),
    ]
    return module(*inputs, function(rows(inputs[0], kept(*inputs, most))))


def as_maps(boxes):
    return relay.expand_dims(boxes, 2, 2)


def bounds(*lengths):
    lengths = [relay.const(each, "int64") if isinstance(each, int) else each for each in lengths]
    return relay.concatenate([relay.expand_dims(relay.cast(each, "int64"), 0) for each in lengths], 0)
