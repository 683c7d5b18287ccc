"""The arguments of TVM's own NMS operators, in terms of `topi_ext.batched_nms`."""

from __future__ import annotations

import numpy as np

from tvm import relay

from ..engine.expressions import known_extent, scalar
from ..engine.rule import Refusal

FLOATS = ("float32", "float16", "bfloat16")

# For a positive float t that is not subnormal, t * JUST_BELOW_1 rounds to the next float down: it falls short
# of t by t * 2**-24, which is more than half of the distance to that float, and at most all of it.
JUST_BELOW_1 = np.float32(1 - 2**-24)


def thresholds(
    iou_threshold: relay.Expr, score_threshold: relay.Expr
) -> tuple[relay.Expr, relay.Expr | None]:
    """The two thresholds with which topi_ext.batched_nms keeps the same boxes as TVM's NMS.

    A score threshold of -inf is none: `from_onnx` gives it where the model has none, and scores of -inf and
    NaN take part.

    TVM suppresses at `iou >= threshold`, the operator at `iou > threshold`: it is given the next float down.
    TVM keeps nothing at an IoU threshold of 0 or less; where that is known only at run time, a score
    threshold that no score exceeds has the same effect.
    """
    value = scalar(iou_threshold)
    if value is not None:
        below = relay.const(np.nextafter(np.float32(value), np.float32(-np.inf)), "float32")
        return below, None if scalar(score_threshold) == -np.inf else score_threshold
    positive = iou_threshold > relay.const(0, "float32")
    unreachable = relay.const(np.inf, "float32")
    below = iou_threshold * relay.const(JUST_BELOW_1, "float32")
    return below, relay.where(positive, score_threshold, unreachable)


def why_no_thresholds(iou_threshold: relay.Expr, score_threshold: relay.Expr) -> Refusal | None:
    """Why topi_ext.batched_nms does not take these thresholds of TVM's NMS, or None."""
    for name, threshold in (("IoU", iou_threshold), ("score", score_threshold)):
        if len(threshold.checked_type.shape) != 0 or threshold.checked_type.dtype != "float32":
            return Refusal(f"the {name} threshold is not a float32 scalar")
    value = scalar(iou_threshold)
    if value is not None and not value > 0:
        return Refusal(f"TVM's NMS keeps nothing at an IoU threshold of {value}")
    return None


def why_no_boxes(boxes: relay.Expr, scores: relay.Expr, rank: int) -> Refusal | None:
    """Why topi_ext.batched_nms does not take boxes of this rank and scores, or None."""
    boxes, scores = boxes.checked_type, scores.checked_type
    if boxes.dtype not in FLOATS or scores.dtype not in FLOATS:
        return Refusal(f"there is no kernel for boxes of {boxes.dtype} and scores of {scores.dtype}")
    if len(boxes.shape) != rank or known_extent(boxes.shape[-1]) != 4:
        return Refusal(f"boxes of shape {boxes.shape} are not rows of four coordinates")
    return None
