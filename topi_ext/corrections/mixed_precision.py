"""Register mixed-precision rules for operators that TVM has none for."""

from __future__ import annotations

from typing import Any

from tvm import relay
from tvm.relay.op import op as registry
from tvm.relay.transform import mixed_precision as stock

from .. import (  # noqa: F401  they register the operators
    attention,
    conv2d_nhwc,
    deformable_attention,
    group_norm,
    layer_norm,
    roi_align,
)
from .._register import known
from .._strategy import ABOVE_STOCK
from . import global_pooling

LAYOUTS = ("NCHW", "NHWC")
KIND = "FTVMMixedPrecisionConversionType"


def _gains(_call: relay.Call, dtype: str) -> list[Any]:
    return [stock.MIXED_PRECISION_ALWAYS, dtype, dtype]


def _gains_unless_typed(call: relay.Call, dtype: str) -> list[Any]:
    """Of a call whose attributes may say the type of its result."""
    kind = stock.MIXED_PRECISION_NEVER if call.attrs["out_dtype"] else stock.MIXED_PRECISION_ALWAYS
    return [kind, dtype, dtype]


def _follows(_call: relay.Call, dtype: str) -> list[Any]:
    return [stock.MIXED_PRECISION_FOLLOW, dtype, dtype]


def _follows_in_float16(_call: relay.Call, dtype: str) -> list[Any]:
    kind = stock.MIXED_PRECISION_FOLLOW if dtype == "float16" else stock.MIXED_PRECISION_NEVER
    return [kind, dtype, dtype]


def _follows_of_images(call: relay.Call, dtype: str) -> list[Any]:
    if len(call.args[0].checked_type.shape) != 4:  # TVM's own, which multiplies by weights of the grid's type
        return [stock.MIXED_PRECISION_NEVER, dtype, dtype]
    return _follows_in_float16(call, dtype)


def _follows_to_one_pixel(call: relay.Call, dtype: str) -> list[Any]:
    """Of a mean of whole images, which `in_float32` and `global_pooling` round once from float16."""
    layout, result = str(call.attrs.layout), call.checked_type.shape
    if layout not in LAYOUTS or any(known(result[layout.index(side)]) != 1 for side in "HW"):
        return [stock.MIXED_PRECISION_NEVER, dtype, dtype]
    return _follows_in_float16(call, dtype)


for _name in global_pooling.NAMES:  # for which TVM has rules
    registry.register_mixed_precision_conversion(_name, _follows_to_one_pixel, ABOVE_STOCK)

for _name, _kind in {
    "annotation.stop_fusion": _follows,
    "image.grid_sample": _follows_of_images,
    "nn.space_to_depth": _follows,
    "layout_transform": _follows,
    "topi_ext.attention": _gains,
    "topi_ext.conv2d_nhwc": _gains_unless_typed,
    "topi_ext.deformable_attention": _follows_in_float16,
    "topi_ext.group_norm": _follows,
    "topi_ext.layer_norm": _follows,
    "topi_ext.multiscale_roi_align": _follows_in_float16,
}.items():
    if relay.op.get(_name).get_attr(KIND) is None:  # TVM keeps what is registered, if this is imported again
        registry.register_mixed_precision_conversion(_name, _kind)
