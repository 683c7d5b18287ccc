"""Which operators gain from half precision, and which mean the same in it.

TVM's registry says what gains (convolutions, matrix products) and what can follow. It ignores
what a call's attributes and constants say against it; that is checked here.
"""

from __future__ import annotations

import math

import numpy as np

from topi_ext.attention.op import NAME as ATTENTION
from topi_ext.conv2d_nhwc.problem import INT8
from topi_ext.corrections.convert_layout import GRID_SAMPLE, GROUP_NORM, LAYER_NORM, MULTISCALE_ROI_ALIGN
from topi_ext.corrections.mixed_precision import KIND
from topi_ext.deformable_attention.op import NAME as DEFORMABLE_ATTENTION

from tvm import relay
from tvm.relay.transform.mixed_precision import MIXED_PRECISION_ALWAYS, MIXED_PRECISION_FOLLOW

from ..engine.expressions import constant, op_name, operands
from .half_precision import MAX_WINDOW, holds, holds_each

CONV2D_NHWC = "topi_ext.conv2d_nhwc"


def gains(node: relay.Expr, dtype: str) -> bool:
    """Whether a node reads or gives float32 and its operator is faster in half precision."""
    if op_name(node) == CONV2D_NHWC:  # of which one in int8 may give float32, and one of float32 int8
        return is_float32(node) or is_float32(node.args[0])
    return _kind(node, dtype) == MIXED_PRECISION_ALWAYS


def follows(node: relay.Expr, dtype: str) -> bool:
    """Whether a node gives float32, or int8 of it, and its operator can follow others to half precision."""
    if isinstance(node, relay.TupleGetItem):
        return op_name(node.tuple_value) is not None and is_float32(node.tuple_value)
    return _kind(node, dtype) == MIXED_PRECISION_FOLLOW


def _kind(node: relay.Expr, dtype: str) -> int | None:
    kind = node.op.get_attr(KIND) if op_name(node) is not None and _is_in_float32(node) else None
    return None if kind is None else int(kind(node, dtype)[0])


def _is_in_float32(node: relay.Call) -> bool:
    """Whether a call gives float32, or computes what it gives in int8 from float32."""
    return is_float32(node) or (gives_int8(node) and all(map(is_float32, data_of(node))))


def gives_int8(node: relay.Expr) -> bool:
    """Whether a node is a RoIAlign that has rounded its result to int8, whatever type it reads."""
    return op_name(node) == MULTISCALE_ROI_ALIGN and node.checked_type.dtype == INT8


def why_not_half(node: relay.Expr, dtype: str) -> str | None:
    """Why its attributes or constants keep a node from half precision, or None."""
    if not isinstance(node, relay.Call):
        return None
    name = op_name(node) or ""
    if getattr(node.attrs, "dtype", None):
        return "stays float32: its dtype attribute says so"
    if name == "divide" and constant(node.args[1]) is None:
        return f"stays float32: in {dtype} the divisor may become 0"
    if name.startswith("nn.avg_pool") and math.prod(map(int, node.attrs.pool_size)) > MAX_WINDOW:
        return f"stays float32: it sums more than {MAX_WINDOW} pixels"
    constants = [constant(data) for data in data_of(node) if is_float32(data)]
    if name == "clip":
        constants.append(np.array([node.attrs.a_min, node.attrs.a_max], "float32"))
    # 0 in place of a small bound or divisor may make what is computed of it infinite.
    is_held = holds_each if name in ("clip", "divide") else holds
    if not all(is_held(dtype, each) for each in constants):
        return f"stays float32: a constant is out of the range of {dtype}"
    return None


def data_of(node: relay.Expr) -> list[relay.Expr]:
    """The operands of a node, except places, masks, and numbers for each channel that are used in float32."""
    if isinstance(node, relay.TupleGetItem):
        return [node.tuple_value]
    if not isinstance(node, relay.Call):
        return []
    flat = operands(node)
    if op_name(node) == CONV2D_NHWC:
        data, weight, _bias, residual, *_of_filters = flat
        return [data, weight, *([residual] if node.attrs["has_residual"] else [])]
    if op_name(node) in (DEFORMABLE_ATTENTION, GRID_SAMPLE, GROUP_NORM, LAYER_NORM):
        return flat[:1]
    if op_name(node) == ATTENTION:
        return flat[:3]
    return flat[:-1] if op_name(node) == MULTISCALE_ROI_ALIGN else flat


def is_float32(expr: relay.Expr) -> bool:
    """Whether a tensor, or each of a tuple, is float32."""
    type_ = expr.checked_type
    parts = type_.fields if isinstance(type_, relay.TupleType) else [type_]
    return all(isinstance(part, relay.TensorType) and part.dtype == "float32" for part in parts)
