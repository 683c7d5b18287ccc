"""Operators of detection models, including those that this project traces in place of a loop."""

from __future__ import annotations

from typing import Any

import topi_ext
from tvm_passes.detection.selection import as_class_ids, select
from tvm_passes.detection.stock_nms import FLOATS

from tvm import relay

from ..class_loop import BATCHED_NMS
from ..detections import HEATMAPS_TO_KEYPOINTS, PASTE_MASKS
from .converter import Converter, Inputs, InputTypes


def batched_nms(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """The loop over classes of scripted torchvision is exact within each class, and so is this."""
    boxes, scores, ids, iou_threshold = inputs
    for what, tensor in (("boxes", boxes), ("scores", scores)):
        dtype = converter.infer_type(tensor).dtype
        if dtype not in FLOATS:
            raise TypeError(f"{what} for NMS must be of {' or '.join(FLOATS)}, not {dtype}")
    class_ids = as_class_ids(ids, converter.infer_type(ids).dtype)
    if class_ids is None:
        raise TypeError(f"class ids for NMS must be integers, not {converter.infer_type(ids).dtype}")
    return select(boxes, scores, class_ids, iou_threshold)


def paste_masks(_converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """The loop that pastes the masks of Mask R-CNN is one operator."""
    masks, boxes, *image_size = inputs
    return topi_ext.paste_masks(masks, boxes, image_size)


def heatmaps_to_keypoints(_converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """The loop over the heatmaps of Keypoint R-CNN is one operator."""
    return tuple(topi_ext.heatmaps_to_keypoints(*inputs))


CONVERTERS = {
    BATCHED_NMS: batched_nms,
    PASTE_MASKS: paste_masks,
    HEATMAPS_TO_KEYPOINTS: heatmaps_to_keypoints,
}
