"""torchvision's operators on regions, and deformable convolution.

Convention: a region is (index in the batch, x1, y1, x2, y2) in the image. Pixel centres of feature maps are
at integer coordinates, and everything off the map is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import topi_ext
from topi_ext.batched_nms import one_class
from tvm_passes.detection.selection import select
from tvm_passes.detection.stock_nms import FLOATS

from tvm import relay

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


def ps_roi_align(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM lacks it: `roi_align` in which each bin takes its own channels."""
    data, regions, scale, down, across, ratio = inputs
    bins = down * across
    channels = converter.infer_shape(data)[1] // bins
    pooled = roi_align(converter, [data, regions, scale, down, across, ratio, True], input_types)
    pooled = relay.reshape(pooled, [-1, channels, bins * bins])
    own = relay.const((np.arange(bins) * (bins + 1)).astype("int32"))
    taken = relay.take(pooled, own, axis=2, mode="fast")
    return relay.reshape(taken, [-1, channels, down, across]), None  # the second serves the gradient


def roi_pool(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's converter lacks it."""
    data, regions, scale, down, across = inputs
    _only(converter, [data, regions], ("float32",))
    return relay.vision.roi_pool(data, regions, (down, across), scale), None  # the second serves the gradient


def deform_conv2d(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own ignores the mask, and is wrong for samples near the border."""
    data, weight, offset, mask, bias, *options, use_mask = inputs
    strides, padding, dilation, (groups, offset_groups) = options[:2], options[2:4], options[4:6], options[6:]
    dtype = _only(converter, [data, weight, offset], ("float32", "float16", "float64"))
    batch, channels, height, width = converter.infer_shape(data)
    outputs, per_group, *kernel = converter.infer_shape(weight)
    out_height, out_width = converter.infer_shape(offset)[2:]
    points, places = kernel[0] * kernel[1], out_height * out_width
    computed = "float32" if dtype == "float16" else dtype
    data, weight, offset, mask, bias = (
        relay.cast(each, computed) if dtype != computed else each
        for each in (data, weight, offset, mask, bias)
    )

    # By offset group, point of the kernel, and place of the output.
    offset = relay.reshape(offset, [batch, offset_groups, points, 2, places])
    y, x = (
        relay.take(offset, relay.const(axis), axis=3) + relay.const(grid, computed)
        for axis, grid in enumerate(_grid(kernel, (out_height, out_width), strides, padding, dilation))
    )
    pixels = relay.reshape(data, [batch, offset_groups, channels // offset_groups, height * width])
    pixels = relay.reshape(relay.transpose(pixels, [0, 1, 3, 2]), [-1, channels // offset_groups])
    maps = np.arange(batch * offset_groups).reshape(batch, offset_groups, 1, 1)
    sampled = _bilinear(pixels, relay.const(maps.astype("int32")), (y, x), (height, width), computed)
    if use_mask:
        sampled = sampled * relay.reshape(mask, [batch, offset_groups, points, places, 1])

    columns = relay.reshape(
        relay.transpose(sampled, [0, 3, 1, 4, 2]), [batch * places, groups, per_group * points]
    )
    filters = relay.reshape(weight, [groups, outputs // groups, per_group * points])
    if groups == 1:
        result = relay.nn.dense(relay.squeeze(columns, [1]), relay.squeeze(filters, [0]))
    else:
        result = relay.nn.batch_matmul(relay.transpose(columns, [1, 0, 2]), filters)
        result = relay.transpose(result, [1, 0, 2])
    result = relay.transpose(relay.reshape(result, [batch, places, outputs]), [0, 2, 1])
    result = relay.reshape(result, [batch, outputs, out_height, out_width])
    result = relay.nn.bias_add(result, bias)
    return relay.cast(result, dtype) if dtype != computed else result


def _grid(
    kernel: list[int], outputs: tuple[int, int], strides: Any, padding: Any, dilation: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The rows and columns that a convolution without offsets reads, (points of the kernel, places)."""
    axes = [
        np.arange(taps)[:, None] * step + np.arange(count)[None] * stride - pad
        for taps, step, count, stride, pad in zip(kernel, dilation, outputs, strides, padding)
    ]
    shape = kernel[0], kernel[1], outputs[0], outputs[1]
    rows = np.broadcast_to(axes[0][:, None, :, None], shape)
    columns = np.broadcast_to(axes[1][None, :, None, :], shape)
    flat = kernel[0] * kernel[1], outputs[0] * outputs[1]
    return rows.reshape(flat), columns.reshape(flat)


@dataclass(frozen=True)
class _Neighbour:
    """One of the two rows or columns around a coordinate; its weight is 0 if it is off the map."""

    index: relay.Expr
    weight: relay.Expr


def _neighbours(at: relay.Expr, size: int, dtype: str) -> list[_Neighbour]:
    one, last = relay.const(1.0, dtype), relay.const(float(size - 1), dtype)
    zero = relay.const(0.0, dtype)
    # More than a pixel off the map nothing is read, and the index must not overflow.
    at = relay.minimum(relay.maximum(at, relay.const(-2.0, dtype)), relay.const(float(size + 1), dtype))
    before = relay.floor(at)
    fraction = at - before
    found = []
    for place, weight in ((before, one - fraction), (before + one, fraction)):
        inside = relay.logical_and(place >= zero, place <= last)
        index = relay.cast(relay.minimum(relay.maximum(place, zero), last), "int32")
        found.append(_Neighbour(index, relay.where(inside, weight, zero)))
    return found


def _bilinear(
    pixels: relay.Expr,
    maps: relay.Expr,
    at: tuple[relay.Expr, relay.Expr],
    size: tuple[int, int],
    dtype: str,
) -> relay.Expr:
    """The channels at coordinates on maps; pixels are (maps * rows * columns, channels)."""
    height, width = (relay.const(extent, "int32") for extent in size)
    rows, columns = (_neighbours(axis, extent, dtype) for axis, extent in zip(at, size))
    terms = []
    for row in rows:
        for column in columns:
            index = (maps * height + row.index) * width + column.index
            weight = relay.expand_dims(row.weight * column.weight, -1)
            terms.append(relay.take(pixels, index, axis=0, mode="fast") * weight)
    return terms[0] + terms[1] + terms[2] + terms[3]


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
    "torchvision::deform_conv2d": deform_conv2d,
}
