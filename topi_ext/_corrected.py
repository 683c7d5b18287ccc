"""Kernels of TVM's own that are wrong, not exact, or do not compile. Importing this module corrects them.

| operator | what TVM does | here |
|---|---|---|
| `clip` with `a_min > a_max` | gives `a_min` | `a_max`, as in NumPy, ONNX and PyTorch |
| `clip` of NaN | gives a bound | NaN, as they have it |
| `erf` of float64 | is computed in float32 | by the C library's, or CUDA's |
| `acos` ... `atanh` of float16 | there is no code | in float32 |
| `image.resize2d` behind a transpose | refuses what TVM makes its layout, as "WCHN" | any order |
| `squeeze` of one channel behind a convolution | does not compile on CPUs | in the old layout |
| `negative` of the float 0 | gives 0 | -0, by which a division has the other sign |
| `trilu` with a `k` of int32 | reads an unknown variable if fused | `k` is read first |
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay, te, topi

ABOVE_STOCK = 11  # the level of TVM's own registrations is 10
NOT_OF_FLOAT16 = ("acos", "acosh", "asin", "asinh", "atan", "atanh")
stock_trilu, stock_resize2d = topi.trilu, topi.image.resize2d


def clip(x: te.Tensor, a_min: float, a_max: float) -> te.Tensor:
    low, high = (tvm.tir.const(bound, x.dtype) for bound in (min(a_min, a_max), a_max))
    target = tvm.target.Target.current()
    by_comparing = target is not None and target.kind.name == "cuda" and x.dtype.startswith("float")

    def clipped(*at: tvm.tir.Var) -> tvm.tir.PrimExpr:
        value = x(*at)
        if by_comparing:  # NaN is neither less nor more; the minimum and maximum of CUDA drop it
            return tvm.tir.Select(value > high, high, tvm.tir.Select(value < low, low, value))
        return te.min(high, te.max(low, value))  # of a number and NaN, LLVM keeps what stands second

    return te.compute(x.shape, clipped, name="T_clip", tag=topi.tag.ELEMWISE)


def _legalize_erf(attrs: Any, inputs: list[relay.Expr], types: list[relay.Type]) -> relay.Expr | None:
    if types[0].dtype in ("float32", "float64"):
        return None
    return relay.cast(relay.erf(relay.cast(inputs[0], "float32")), types[0].dtype)


def _in_float32(call: tvm.tir.Call) -> tvm.tir.PrimExpr:
    if call.dtype != "float16":
        return call  # as TVM lowers it
    wide = tvm.tir.call_intrin("float32", call.op.name, tvm.tir.Cast("float32", call.args[0]))
    return tvm.tir.Cast("float16", wide)


def _legalize_negative(attrs: Any, inputs: list[relay.Expr], types: list[relay.Type]) -> relay.Expr | None:
    dtype = types[0].dtype
    return relay.multiply(inputs[0], relay.const(-1, dtype)) if dtype.startswith("float") else None


def trilu(data: te.Tensor, k: te.Tensor, upper: bool) -> te.Tensor:
    return stock_trilu(data, k(*[0] * len(k.shape)), upper)


def resize2d(
    data: te.Tensor, roi: Any, size: Any, layout: str = "NCHW", *args: Any, **options: Any
) -> te.Tensor:
    if layout in ("NCHW", "NHWC") or sorted(layout) != sorted("NCHW"):
        return stock_resize2d(data, roi, size, layout, *args, **options)
    ordered = topi.transpose(data, [layout.index(axis) for axis in "NCHW"])
    resized = stock_resize2d(ordered, roi, size, "NCHW", *args, **options)
    return topi.transpose(resized, ["NCHW".index(axis) for axis in layout])


def _infer_layout_of_squeeze(attrs: Any, new: Any, old: Any, types: list[relay.Type]) -> Any:
    """What a convolution's layout has split, as the channels of NCHW1c, cannot go as one axis."""
    shape = types[0].shape
    if attrs.axis is None:
        axes = [
            axis for axis, extent in enumerate(shape) if isinstance(extent, tvm.tir.IntImm) and extent == 1
        ]
    else:
        axes = [int(axis) % max(len(shape), 1) for axis in attrs.axis]
    attrs = tvm.ir.make_node("relay.attrs.SqueezeAttrs", axis=axes)
    known = new and old and len(old[0]) == len(shape)
    if known and any(old[0].name[axis].lower() in new[0].name for axis in axes):
        new = old
    return stock_layout_of_squeeze(attrs, new, old, types)


stock_layout_of_squeeze = tvm.ir.Op.get("squeeze").get_attr("FInferCorrectLayout")
tvm.ir.register_op_attr("squeeze", "FInferCorrectLayout", _infer_layout_of_squeeze, ABOVE_STOCK)
topi.math.erf_legalize.register(["cpu", "cuda"], override=True)(_legalize_erf)
for name in NOT_OF_FLOAT16:
    tvm.ir.register_intrin_lowering(f"tir.{name}", target="llvm", f=_in_float32, level=ABOVE_STOCK)
tvm.ir.register_op_attr("negative", "FTVMLegalize", _legalize_negative)
topi.clip, topi.trilu, topi.image.resize2d = clip, trilu, resize2d
