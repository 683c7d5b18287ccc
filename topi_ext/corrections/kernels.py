"""Operators that TVM computes differently from NumPy, PyTorch and ONNX, or has no code for."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, topi

from .. import _bounds
from .._strategy import ABOVE_STOCK, compute_by, generic, with_body

NOT_OF_FLOAT16 = ("acos", "acosh", "asin", "asinh", "atan", "atanh")
stock_trilu, stock_resize2d = topi.trilu, topi.image.resize2d


def relu(_attrs: Any, inputs: list[te.Tensor], _type: tvm.ir.Type) -> list[te.Tensor]:
    return [_bounds.relu(*inputs)]


def trilu(data: te.Tensor, k: te.Tensor, upper: bool) -> te.Tensor:
    return stock_trilu(data, k(*[0] * len(k.shape)), upper)


def resize2d(
    data: te.Tensor, roi: Any, size: Any, layout: str = "NCHW", *args: Any, **options: Any
) -> te.Tensor:
    if layout in ("NCHW", "NHWC") or sorted(layout) != sorted("NCHW"):
        return _without_float32(stock_resize2d(data, roi, size, layout, *args, **options))
    ordered = topi.transpose(data, [layout.index(axis) for axis in "NCHW"])
    resized = stock_resize2d(ordered, roi, size, "NCHW", *args, **options)
    return topi.transpose(resized, ["NCHW".index(axis) for axis in layout])


def _without_float32(resized: te.Tensor) -> te.Tensor:
    """The same tensor, if it takes elements of another, without converting them to float32 and back."""
    (body,) = resized.op.body
    if not isinstance(body, tvm.tir.Cast) or not isinstance(body.value, tvm.tir.Cast):
        return resized
    taken = body.value.value
    if not isinstance(taken, tvm.tir.ProducerLoad) or taken.dtype != body.dtype:
        return resized
    return with_body(resized, taken)


def reverse(attrs: Any, inputs: list[te.Tensor], _type: tvm.ir.Type) -> list[te.Tensor]:
    (data,) = inputs
    axis = int(attrs.axis) % len(data.shape)

    def reversed_at(*at: tvm.tir.Var) -> tvm.tir.PrimExpr:
        # The maximum is for the compiler, which knows no bounds of an index that is read from a tensor.
        last = data.shape[axis] - 1
        return data(*at[:axis], te.max(last - at[axis], 0), *at[axis + 1 :])

    return [te.compute(data.shape, reversed_at, name="reversed", tag=topi.tag.INJECTIVE)]


def _in_float32(call: tvm.tir.Call) -> tvm.tir.PrimExpr:
    if call.dtype != "float16":
        return call  # as TVM lowers it
    wide = tvm.tir.call_intrin("float32", call.op.name, tvm.tir.Cast("float32", call.args[0]))
    return tvm.tir.Cast("float16", wide)


for name in NOT_OF_FLOAT16:
    tvm.ir.register_intrin_lowering(f"tir.{name}", target="llvm", f=_in_float32, level=ABOVE_STOCK)
compute_by("nn.relu", relu, generic.schedule_injective)
compute_by("reverse", reverse, generic.schedule_injective)
topi.clip, topi.trilu, topi.image.resize2d = _bounds.clip, trilu, resize2d
