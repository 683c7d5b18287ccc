"""NonMaxSuppression, RoiAlign."""

from __future__ import annotations

from types import ModuleType

from tvm import relay

from .. import nms as _onnx_nms
from .. import roi_align as _onnx_roi_align
from ._common import Attrs, Converter, Inputs, Params, opset_of, stock


def non_max_suppression(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own passes its inputs on to an operator that interprets some of them differently."""
    boxes, scores, *options = inputs
    most, iou_threshold, score_threshold = (options + [None] * 3)[:3]
    return _onnx_nms.non_max_suppression(
        boxes, scores, most, iou_threshold, score_threshold, attrs.get("center_point_box", 0)
    )


def roi_align(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own ignores the coordinate mode, which is `half_pixel` by default."""
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


CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": non_max_suppression, "RoiAlign": roi_align}
