"""NonMaxSuppression, RoiAlign, and the NMS of TensorRT's plugins."""

from __future__ import annotations

from types import ModuleType

import topi_ext

from tvm import relay

from .. import nms as _onnx_nms
from .. import plugin_nms
from .. import roi_align as _onnx_roi_align
from ._common import (
    Attrs,
    Converter,
    Inputs,
    Params,
    all_sizes_of,
    dtype_of,
    opset_of,
    several,
    sizes_of,
    stock,
)


def non_max_suppression(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own passes its inputs on to an operator that interprets some of them differently."""
    boxes, scores, *options = inputs
    most, iou_threshold, score_threshold = (options + [None] * 3)[:3]
    return _onnx_nms.non_max_suppression(
        boxes, scores, most, iou_threshold, score_threshold, attrs.get("center_point_box", 0)
    )


def roi_align(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own ignores the coordinate mode, which is `half_pixel` by default."""
    if sizes_of(inputs[0])[1] is None:
        raise NotImplementedError("the number of channels must be known")
    default = b"half_pixel" if opset_of(importer) >= 16 else b"output_half_pixel"
    half_pixel = attrs.get("coordinate_transformation_mode", default) == b"half_pixel"
    mode = attrs.get("mode", b"avg").decode().lower()
    if mode == "avg" and not half_pixel:
        return stock(importer, "RoiAlign")(inputs, attrs, params)
    return _onnx_roi_align.roi_align(
        *inputs,
        half_pixel=half_pixel,
        mode=mode,
        pooled=(attrs.get("output_height", 1), attrs.get("output_width", 1)),
        sampling_ratio=attrs.get("sampling_ratio", 0),
        spatial_scale=attrs.get("spatial_scale", 1.0),
    )


def efficient_nms(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: the best pairs of box and class, suppressed at an IoU from the threshold on."""
    if len(inputs) > 2:
        raise NotImplementedError("it decodes boxes by a third input, the anchors")
    boxes, scores = inputs
    if attrs.get("score_activation", 0):
        scores = relay.sigmoid(scores)
    if attrs.get("box_coding", 0):
        boxes = plugin_nms.corners(boxes)
    scores = plugin_nms.without_class(scores, attrs.get("background_class", -1))
    kept = plugin_nms.keep(
        plugin_nms.best_pairs(boxes, scores, plugin_nms.MOST_CANDIDATES),
        attrs.get("max_output_boxes", 100),
        plugin_nms.just_below(attrs.get("iou_threshold", 0.5)),
        plugin_nms.just_below(attrs.get("score_threshold", 0.25)),
        of_any_class=bool(attrs.get("class_agnostic", 0)),
    )
    return several(kept.count, kept.boxes, kept.scores, kept.classes)


def batched_nms(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: the best boxes of each class; padding is of class -1, and classes are floats."""
    kept = _of_each_class(inputs, attrs)
    return several(kept.count, kept.boxes, kept.scores, relay.cast(kept.classes, "float32"))


def batched_nms_of_rows(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: as `batched_nms`, with boxes and scores in one tensor, and without the number."""
    if attrs.get("return_index", 0):
        raise NotImplementedError("it returns indices")
    given = {name: attrs[its] for its, name in TENSORRTS_NAMES.items() if its in attrs}
    kept = _of_each_class(inputs, {"clipBoxes": 0, **given})
    return several(relay.concatenate([kept.boxes, relay.expand_dims(kept.scores, 2)], axis=2), kept.classes)


TENSORRTS_NAMES = {  # the attributes of mmdeploy's plugin
    "background_label_id": "backgroundLabelId",
    "clip_boxes": "clipBoxes",
    "iou_threshold": "iouThreshold",
    "is_normalized": "isNormalized",
    "keep_topk": "keepTopK",
    "num_classes": "numClasses",
    "score_threshold": "scoreThreshold",
    "topk": "topK",
}


def _of_each_class(inputs: Inputs, attrs: Attrs) -> plugin_nms.Kept:
    """What is kept by the attributes of BatchedNMS_TRT; padding is of class -1."""
    boxes, scores = inputs
    _check_classes(boxes, scores, attrs)
    scores = plugin_nms.without_class(scores, attrs.get("backgroundLabelId", -1))
    found = plugin_nms.best_of_each_class(boxes, scores, attrs.get("topK", -1))
    # Pixels have an extent of one: both corners belong to the box.
    more = relay.const([0, 0, 1, 1], dtype_of(boxes))
    kept = plugin_nms.keep(
        found,
        attrs.get("keepTopK", 100),
        attrs.get("iouThreshold", 0.5),
        attrs.get("scoreThreshold", 0.0),
        compared=found.boxes if attrs.get("isNormalized", 1) else found.boxes + more,
    )
    return kept._replace(
        boxes=relay.clip(kept.boxes, 0, 1) if attrs.get("clipBoxes", 1) else kept.boxes,
        classes=relay.where(kept.is_kept, kept.classes, relay.const(-1, "int32")),
    )


def _check_classes(boxes: relay.Expr, scores: relay.Expr, attrs: Attrs) -> None:
    """Check what the plugin is told besides the shapes."""
    classes = all_sizes_of(scores, "an NMS")[2]
    if attrs.get("numClasses", classes) != classes:
        raise NotImplementedError(f"its scores are of {classes} classes, not {attrs['numClasses']}")
    is_shared = all_sizes_of(boxes, "an NMS")[2] == 1
    if classes > 1 and bool(attrs.get("shareLocation", is_shared)) != is_shared:
        raise NotImplementedError("shareLocation does not agree with the shape of its boxes")


def max_roi_pool(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own reads wherever the index in the batch points."""
    data, rois = inputs
    pooled = tuple(attrs["pooled_shape"])
    return topi_ext.roi_pool(data, rois, pooled_size=pooled, spatial_scale=attrs.get("spatial_scale", 1.0))


OF_PLUGINS: dict[str, Converter] = {
    "EfficientNMS_TRT": efficient_nms,
    "BatchedNMS_TRT": batched_nms,
    "BatchedNMSDynamic_TRT": batched_nms,
    "TRTBatchedNMS": batched_nms_of_rows,
}
CONVERTERS: dict[str, Converter] = {
    "MaxRoiPool": max_roi_pool,
    "NonMaxSuppression": non_max_suppression,
    "RoiAlign": roi_align,
    **OF_PLUGINS,
}
