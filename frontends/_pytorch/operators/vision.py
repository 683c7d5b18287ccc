"""torchvision's operators on regions, and deformable convolution.

Convention: a region is (index in the batch, x1, y1, x2, y2) in the image. Pixel centres of feature maps are
at integer coordinates, and everything off the map is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import topi_ext
from topi_ext.batched_nms import one_class
from tvm_passes.detection.selection import select
from tvm_passes.detection.stock_nms import FLOATS

from tvm import relay

from ..._deform_conv2d import DeformConv2d
from ..._operators_of_relay import OfRelay
from .converter import Convert, Converter, Inputs, InputTypes, NotConverted


def nms(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own keeps all boxes at a threshold up to 0, and suppresses at an IoU equal to a higher one."""
    boxes, scores, iou_threshold = inputs
    _only(converter, [boxes, scores], FLOATS)
    return select(boxes, scores, one_class(scores), iou_threshold)


def roi_align(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own with `aligned` shifts the index in the batch too, and reads out of bounds."""
    data, regions, scale, down, across, ratio, aligned = inputs
    dtype = _only(converter, [data, regions], ("float32", "float16"))
    if not aligned and dtype == "float32":
        return converter.stock["torchvision::roi_align"](inputs[:6], input_types)
    return topi_ext.roi_align(
        data,
        regions,
        pooled_size=(down, across),
        spatial_scale=scale,
        sampling_ratio=ratio,
        aligned=bool(aligned),
    )


def ps_roi_align(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it. A region without samples gives 0, where torchvision divides 0 by 0."""
    data, regions, scale, down, across, ratio = inputs
    _only(converter, [data, regions], ("float32", "float16"))
    options = {"pooled_size": (down, across), "spatial_scale": scale, "sampling_ratio": ratio}
    pooled = topi_ext.roi_align(data, regions, **options, aligned=True, by_position=True)
    return pooled, None  # the second serves the gradient


def roi_pool(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's converter lacks it, and its own operator reads where the index in the batch points."""
    return _pooled(topi_ext.roi_pool, converter, inputs)


def ps_roi_pool(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    return _pooled(topi_ext.ps_roi_pool, converter, inputs)


def _pooled(pool: Callable[..., relay.Expr], converter: Converter, inputs: Inputs) -> Any:
    data, regions, scale, down, across = inputs
    _only(converter, [data, regions], ("float32", "float16"))
    pooled = pool(data, regions, pooled_size=(down, across), spatial_scale=scale)
    return pooled, None  # the second serves the gradient


def deform_conv2d(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own ignores the mask, and is wrong for samples near the border."""
    data, weight, offset, mask, bias, *options, use_mask = inputs
    convolve = DeformConv2d(options[:2], options[2:4], options[4:6], *options[6:])
    _only(converter, [data, weight, offset], ("float32", "float16"))
    shapes = [converter.infer_shape(each) for each in (data, weight, offset)]
    result = convolve(OfRelay(), data, weight, offset, mask if use_mask else None, shapes)
    return relay.nn.bias_add(result, bias)


def _only(converter: Converter, tensors: list[relay.Expr], dtypes: tuple[str, ...]) -> str:
    """The one dtype of all tensors, which must be among `dtypes`."""
    found = {str(converter.infer_type(tensor).dtype) for tensor in tensors}
    if len(found) > 1 or not found <= set(dtypes):
        names = " and ".join(sorted(found))
        raise NotConverted(f"its tensors must be all {' or all '.join(dtypes)}, not {names}")
    return found.pop()


CONVERTERS: dict[str, Convert] = {
    "torchvision::nms": nms,
    "torchvision::roi_align": roi_align,
    "torchvision::ps_roi_align": ps_roi_align,
    "torchvision::roi_pool": roi_pool,
    "torchvision::ps_roi_pool": ps_roi_pool,
    "torchvision::deform_conv2d": deform_conv2d,
}
