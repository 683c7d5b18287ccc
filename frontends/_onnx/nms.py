"""ONNX's NonMaxSuppression in terms of TVM's `vision.all_class_non_max_suppression`.

TVM's operator differs in several ways, which are bridged here:

- It suppresses at an IoU equal to the threshold, ONNX only above it: it gets the next float up.
- It keeps nothing at a threshold of 0 or less. No IoU is less than 0, so the threshold is at least the
  smallest positive float.
- It takes a limit of 0 boxes for no limit. In ONNX a limit of 0 keeps none, and so does a missing one.
- Its importer takes a missing score threshold for 0. Here it is -inf, which the passes take for none, and
  one of -inf, which no score of -inf exceeds, is the lowest float.

Not bridged: it suppresses no box whose score is 0 or less, and drops those whose score is -1 or less.
`RestoreBatchedNMS` and `LowerClassAwareNMS` replace it by an operator that compares all scores.
"""

from __future__ import annotations

import numpy as np

from tvm_passes.engine.expressions import type_of

from tvm import relay

MIN_POSITIVE = np.nextafter(np.float32(0), np.float32(1))
LOWEST = np.finfo("float32").min

# For a positive normal float t, t / JUST_BELOW_1 rounds to the next float up: it exceeds t by slightly more
# than t * 2**-24, which is at least half of the distance to that float, and less than all of it.
JUST_BELOW_1 = np.float32(1 - 2**-24)


def non_max_suppression(
    boxes: relay.Expr,
    scores: relay.Expr,
    most: relay.Expr | None,
    iou_threshold: relay.Expr | None,
    score_threshold: relay.Expr | None,
    center_point_box: int,
) -> relay.Expr:
    """The rows of (image, class, box) that are kept, int64, (K, 3)."""
    if most is None or (isinstance(most, relay.Constant) and most.data.numpy().item() <= 0):
        return relay.const(np.zeros((0, 3)), "int64")
    indices, count = relay.op.vision.all_class_non_max_suppression(
        _corners(boxes) if center_point_box else boxes,
        scores,
        _scalar(most),
        _next_up(iou_threshold),
        _least(score_threshold),
    )
    if not isinstance(most, relay.Constant):
        any_wanted = _scalar(most) > relay.const(0, type_of(most).dtype)
        count = count * relay.cast(any_wanted, "int64")
    return relay.strided_slice(indices, relay.const([0], "int64"), count)


def _corners(boxes: relay.Expr) -> relay.Expr:
    """The corners of boxes given by centre and size; a negative size becomes 0, as both overlap nothing."""
    x, y, width, height = relay.split(boxes, 4, axis=2)
    dtype = type_of(boxes).dtype
    half_width, half_height = (
        relay.maximum(size, relay.const(0, dtype)) / relay.const(2, dtype) for size in (width, height)
    )
    corners = [y - half_height, x - half_width, y + half_height, x + half_width]
    return relay.concatenate(corners, axis=2)


def _next_up(threshold: relay.Expr | None) -> relay.Expr:
    """The least float32 that is greater than the threshold, and greater than 0."""
    if threshold is None:
        return relay.const(MIN_POSITIVE)
    if isinstance(threshold, relay.Constant):
        above = np.nextafter(threshold.data.numpy().astype("float32").reshape(()), np.float32(np.inf))
        return relay.const(np.maximum(above, MIN_POSITIVE))
    return relay.maximum(_scalar(threshold) / relay.const(JUST_BELOW_1), relay.const(MIN_POSITIVE))


def _least(threshold: relay.Expr | None) -> relay.Expr:
    if threshold is None:
        return relay.const(-np.inf, "float32")
    if isinstance(threshold, relay.Constant):
        return relay.const(np.maximum(threshold.data.numpy().reshape(()), LOWEST), threshold.data.dtype)
    return _scalar(threshold)


def _scalar(tensor: relay.Expr) -> relay.Expr:
    """A scalar, or a vector of one element, as a scalar."""
    if isinstance(tensor, relay.Constant):
        return relay.const(tensor.data.numpy().reshape(()), tensor.data.dtype)  # else int64 is narrowed
    return relay.squeeze(tensor, [0]) if len(type_of(tensor).shape) else tensor
