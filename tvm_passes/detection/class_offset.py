"""Which offsets keep the boxes of different classes apart, for graphs of either TVM."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..engine.contract import Refusal

# An offset that is not computed from the boxes must be as large as the image, or this large, to keep classes
# apart: detectors in use add 7,680 or 4,096, or the greatest extent of the image, by which they divide boxes
# and offset.
MIN_FIXED_OFFSET = 4096
ROUNDED = 1 - 1e-5
CHANNELS = 1, 3, 4  # of images, first or last


def size_of_image(shapes: Iterable[Sequence[int]]) -> float:
    """The greatest extent of the images among a function's inputs; infinity if none has a known size."""
    extents = [0]
    for shape in shapes:
        if len(shape) in (3, 4) and {shape[-3], shape[-1]} & set(CHANNELS):
            extents += shape[-3:]
    return max(extents) or math.inf


def why_too_small(pixels: float, size: float) -> Refusal | None:
    """Why a constant offset may leave boxes of two classes overlapping, or None; `size` is the image's."""
    if pixels >= min(MIN_FIXED_OFFSET, ROUNDED * size):
        return None
    return Refusal(f"an offset of {round(pixels, 3)} may let boxes of different classes overlap")


def why_not_above_the_largest(more: float) -> Refusal | None:
    """Why the largest coordinate plus a constant is too small an offset, or None."""
    if more >= 1:
        return None
    return Refusal(f"the offset is the largest coordinate plus {more}, which is less than 1")


def why_disjoint_boxes_count(iou_threshold: float | None) -> Refusal | None:
    """Why boxes that are apart suppress each other, or None; None is a threshold that is not known."""
    if iou_threshold is None or iou_threshold >= 0:
        return None
    return Refusal(f"at an IoU threshold of {iou_threshold}, disjoint boxes suppress each other too")
