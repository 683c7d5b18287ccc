"""Resizing of images, `torch.nn.functional.interpolate` in all its modes.

PyTorch resizes by the given scale, TVM's operators by the ratio of the sizes. If both are the same, Relay's
operators for images are used, which passes recognize; otherwise `_resize` uses positions and weights that are
computed here as PyTorch computes them on CPUs for contiguous tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm import relay

from ... import _resize
from ..resizing import CUBIC, Axis, is_ignored
from . import quantised
from .converter import Convert, Converter, Inputs, InputTypes, NotConverted, bind
from .pooling import adaptive_avg_pool, numbers
from .shapes import are_integers

AXES = {1: "W", 2: "HW", 3: "DHW"}


def resize(
    converter: Converter,
    data: relay.Expr,
    size: Any,
    scales: Any,
    mode: str,
    align_corners: bool = False,
    antialias: bool = False,
) -> relay.Expr:
    """The data, (N, C, *spatial), resized to `size` or, where that is None, by `scales`."""
    tensor = converter.infer_type(data)
    shape, dtype = converter.infer_shape(data), str(tensor.dtype)
    spatial = shape[2:]
    if not all(isinstance(extent, int) for extent in spatial):
        raise NotConverted("an image whose size is known only at run time cannot be resized")
    of_bytes = dtype == "uint8" and len(spatial) == 2 and mode in ("linear", "cubic")
    if "float" not in dtype and not mode.startswith("nearest") and not of_bytes:
        raise NotConverted(
            f"interpolation of {dtype} is not supported, only of floats, and of uint8 in 2 dimensions"
        )
    scales = list(scales) if scales else [None] * len(spatial)
    if size is None:
        size = [int(np.floor(float(extent) * scale)) for extent, scale in zip(spatial, scales)]
    sizes = numbers(size)
    precision = np.float64 if dtype == "float64" or of_bytes else np.float32
    scales = [
        None if is_ignored(extent, out, sizes, mode, antialias) else scale
        for extent, out, scale in zip(spatial, sizes, scales)
    ]
    axes = [
        Axis(extent, out, scale, align_corners, precision)
        for extent, out, scale in zip(spatial, sizes, scales)
    ]
    is_exact = dtype == "float32" or (mode == "nearest" and dtype == "float16")
    is_computed = len(axes) == 2 or are_integers(*shape)  # TVM takes other ranks only with all sizes known
    if not antialias and is_exact and is_computed and _is_relays(axes, mode):
        coordinates = "align_corners" if align_corners else "half_pixel"
        options = {"nearest": ("nearest_neighbor", "asymmetric")}.get(mode, (mode, coordinates))
        resize_of_rank = {1: relay.image.resize1d, 2: relay.image.resize2d, 3: relay.image.resize3d}
        layout = "NC" + AXES[len(axes)]
        return resize_of_rank[len(axes)](
            data, [axis.outputs for axis in axes], None, layout, *options, cubic_alpha=CUBIC
        )
    taps = {2 + place: axis.taps(mode, antialias) for place, axis in enumerate(axes)}
    return (
        _resize.resample_bytes(data, shape, taps) if of_bytes else _resize.resample(data, shape, dtype, taps)
    )


def _is_relays(axes: list[Axis], mode: str) -> bool:
    """Whether the operators of Relay compute the same."""
    if mode == "nearest":
        return all(np.array_equal(axis.nearest(False), axis.nearest_of_tvm()) for axis in axes)
    return mode != "nearest-exact" and all(axis.by_ratio for axis in axes)


def nearest(mode: str, converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own resizes by the ratio of the sizes, not by the scale, and lacks some ranks."""
    data, size, *scales = quantised.given(converter, inputs)
    return resize(converter, data, size, _listed(scales), mode)


def weighted(mode: str, antialias: bool, converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own resizes by the ratio of the sizes, not by the scale, and lacks antialiasing."""
    data, size, align_corners, *scales = quantised.given(converter, inputs)

    def of(data: relay.Expr) -> relay.Expr:
        return resize(converter, data, size, _listed(scales), mode, bool(align_corners), antialias)

    if quantised.is_quantised(converter, inputs):
        return quantised.to_nearest(of, data, zero_point=inputs[-1])
    return of(data)


def interpolate(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own resizes by the ratio of the sizes, and only 2-D images; scripted code calls this."""
    data, size, scales, mode, align_corners, recompute, antialias = inputs
    spatial = converter.infer_shape(data)[2:]
    each = [value if isinstance(value, list) else [value] * len(spatial) for value in (size, scales)]
    wanted, given = (None if None in values else values for values in each)
    if wanted is None and (recompute or mode == "area"):
        wanted = [int(np.floor(float(extent) * scale)) for extent, scale in zip(spatial, given or [])]
        given = None
    if mode == "area":
        return adaptive_avg_pool(len(spatial), converter, [data, wanted], input_types)
    mode = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}.get(str(mode), str(mode))
    return resize(converter, data, wanted, given, mode, bool(align_corners), bool(antialias))


def _listed(scales: list[Any]) -> list[Any] | None:
    """The scales, given as one list or as a number for each axis; None if there are none."""
    values = scales[0] if len(scales) == 1 and isinstance(scales[0], list) else scales
    return None if not values or None in values else values


CONVERTERS: dict[str, Convert] = {"aten::__interpolate": interpolate}
for _rank in AXES:
    CONVERTERS[f"aten::upsample_nearest{_rank}d"] = bind(nearest, "nearest")
    CONVERTERS[f"aten::_upsample_nearest_exact{_rank}d"] = bind(nearest, "nearest-exact")
for _name, _mode in (("linear1d", "linear"), ("bilinear2d", "linear"), ("trilinear3d", "linear")):
    CONVERTERS[f"aten::upsample_{_name}"] = bind(weighted, _mode, False)
CONVERTERS["aten::upsample_bicubic2d"] = bind(weighted, "cubic", False)
CONVERTERS["aten::_upsample_bilinear2d_aa"] = bind(weighted, "linear", True)
CONVERTERS["aten::_upsample_bicubic2d_aa"] = bind(weighted, "cubic", True)
