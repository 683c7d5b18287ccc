"""The NMS of TensorRT's plugins, for which detectors are exported, in terms of `topi_ext.batched_nms`.

They take the scores of all classes, and give as many detections of each image as there may be: first those
that are kept, in descending order of score, then padding. So all shapes are static.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import topi_ext

from tvm import relay

from .operators._common import all_sizes_of, like

MOST_CANDIDATES = 4096  # that EfficientNMS_TRT looks at


class Candidates(NamedTuple):
    """Pairs of a box and a class, the best ones of each image or of each class; all but boxes are (B, K)."""

    boxes: relay.Expr  # (B, K, 4)
    scores: relay.Expr
    classes: relay.Expr  # int32


class Kept(NamedTuple):
    """What an NMS keeps of candidates, padded with zeros."""

    count: relay.Expr  # int32 (B, 1)
    boxes: relay.Expr  # (B, most, 4)
    scores: relay.Expr
    classes: relay.Expr  # int32
    is_kept: relay.Expr  # bool (B, most)


def best_pairs(boxes: relay.Expr, scores: relay.Expr, most: int) -> Candidates:
    """The best pairs of each image; boxes are (B, N, 4), (B, N, 1, 4) or (B, N, C, 4), scores (B, N, C)."""
    batch, count, classes = all_sizes_of(scores, "an NMS")
    flat = relay.reshape(scores, [batch, count * classes])
    best, places = _top(flat, min(most, count * classes))
    ids = relay.floor_mod(places, relay.const(classes, "int32"))
    return Candidates(_rows(boxes, places, classes), best, ids)


def best_of_each_class(boxes: relay.Expr, scores: relay.Expr, most: int) -> Candidates:
    """The best of each class and image; the tensors are those of `best_pairs`."""
    batch, count, classes = all_sizes_of(scores, "an NMS")
    most = min(most, count) if most > 0 else count
    best, boxes_of_best = _top(relay.transpose(scores, [0, 2, 1]), most)
    ids = np.broadcast_to(np.arange(classes, dtype="int32")[:, None], (batch, classes, most))
    pairs = boxes_of_best * relay.const(classes, "int32") + relay.const(ids)
    best, pairs, ids = (
        relay.reshape(each, [batch, classes * most]) for each in (best, pairs, relay.const(ids))
    )
    return Candidates(_rows(boxes, pairs, classes), best, ids)


def without_class(scores: relay.Expr, background: int) -> relay.Expr:
    """Scores of which those of a class are so low that none is kept."""
    classes = all_sizes_of(scores, "an NMS")[2]
    if not 0 <= background < classes:
        return scores
    return relay.where(relay.const(np.arange(classes) == background), like(-np.inf, scores), scores)


def keep(
    candidates: Candidates,
    most: int,
    iou_threshold: float,
    score_threshold: float,
    compared: relay.Expr | None = None,
    of_any_class: bool = False,
) -> Kept:
    """The kept ones; `compared` are the boxes whose IoU is computed, if other ones."""
    boxes, scores, classes = candidates
    indices, count = relay.TupleWrapper(
        topi_ext.batched_nms(
            in_order(boxes) if compared is None else compared,
            scores,
            relay.zeros_like(classes) if of_any_class else classes,
            iou_threshold,
            score_threshold=score_threshold,
            max_output_size=most,
        ),
        2,
    )
    is_kept = relay.greater_equal(indices, relay.const(0, "int64"))
    places = relay.maximum(indices, relay.const(0, "int64"))

    def kept(values: relay.Expr) -> relay.Expr:
        return relay.where(is_kept, relay.gather(values, 1, places), like(0, values))

    rows = relay.where(relay.expand_dims(is_kept, 2), _gathered(boxes, places), like(0, boxes))
    return Kept(relay.expand_dims(count, 1), rows, kept(scores), kept(classes), is_kept)


def in_order(boxes: relay.Expr) -> relay.Expr:
    """Boxes given by any two opposite corners, the lesser coordinates first."""
    first, second = relay.split(boxes, 2, axis=-1)
    return relay.concatenate([relay.minimum(first, second), relay.maximum(first, second)], axis=-1)


def corners(boxes: relay.Expr) -> relay.Expr:
    """The corners of boxes given by centre and size."""
    centre, size = relay.split(boxes, 2, axis=-1)
    half = size * like(0.5, boxes)
    return relay.concatenate([centre - half, centre + half], axis=-1)


def just_below(threshold: float) -> float:
    """The next float32 down: what is above it is at least the threshold."""
    return float(np.nextafter(np.float32(threshold), np.float32(-np.inf)))


def _top(scores: relay.Expr, most: int) -> tuple[relay.Expr, relay.Expr]:
    best = relay.topk(scores, most, axis=-1, dtype="int32")
    return best[0], best[1]


def _rows(boxes: relay.Expr, pairs: relay.Expr, classes: int) -> relay.Expr:
    """The boxes of pairs, which count the classes of each box."""
    batch, _, *of_classes, _ = all_sizes_of(boxes, "an NMS")
    if of_classes in ([], [1]):
        pairs = relay.floor_divide(pairs, relay.const(classes, "int32"))
    return _gathered(relay.reshape(boxes, [batch, -1, 4]), pairs)


def _gathered(boxes: relay.Expr, places: relay.Expr) -> relay.Expr:
    return relay.gather(boxes, 1, relay.repeat(relay.expand_dims(places, 2), 4, axis=2))
