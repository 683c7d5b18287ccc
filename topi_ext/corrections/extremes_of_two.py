"""The greater and the lesser of two floats are NaN if either is, as in NumPy, PyTorch and ONNX.

TVM's own give the second operand on CPUs if one is NaN, and on CUDA the one that is a number. Importing this
module makes them those of `_bounds` on CPUs. With a number as one operand, as in a ReLU, a CPU needs no more
than TVM's own, with the number first.

On CUDA they are functions: written out, each operand would be there several times, and in a chain of them, as
where boxes are clipped, each time with all of the chain before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tir

from .._bounds import greatest, least
from .._cuda_source import change_by
from .._strategy import Compute, compute_by, generic, stock_compute, with_body
from .._target import is_for_cuda

# Functions of CUDA, and operators of TIR that call them.
SIGNS = {"greatest_of_two": ">", "least_of_two": "<"}


def _of_two(
    name: str,
    extreme: Callable[..., Any],
    stock: Compute,
    attrs: Any,
    inputs: list[te.Tensor],
    type_: Any,
) -> list[te.Tensor]:
    (result,) = stock(attrs, inputs, type_)
    (body,) = result.op.body
    if "float" not in result.dtype or not isinstance(body, (tir.Max, tir.Min)):
        return [result]
    one, other = (body.b, body.a) if _is_number(inputs[1]) else (body.a, body.b)
    if is_for_cuda():
        extreme = functools.partial(_called, name)
    elif any(map(_is_number, inputs)):
        return [with_body(result, type(body)(one, other))]  # of which LLVM keeps the second
    dtype = result.dtype if result.dtype == "float64" else "float32"  # there are no vectors of halves
    return [with_body(result, extreme(one.astype(dtype), other.astype(dtype)).astype(result.dtype))]


def _called(name: str, one: tir.PrimExpr, other: tir.PrimExpr) -> tir.PrimExpr:
    return tir.Call(one.dtype, tvm.ir.Op.get(f"tir.{name}"), [one, other])


def _is_number(tensor: te.Tensor) -> bool:
    """Whether it is a constant other than NaN."""
    if tensor.shape or not isinstance(tensor.op, te.ComputeOp):
        return False
    (body,) = tensor.op.body
    return isinstance(body, tir.FloatImm) and body.value == body.value


def _register(name: str) -> None:
    """An operator of TIR, of which TVM makes vectors: of an external function it does not."""

    def external(call: tir.Call) -> tir.PrimExpr:
        return tir.call_pure_extern(call.dtype, name, *call.args)

    tvm.ir._ffi_api.RegisterOp(f"tir.{name}", "The greater or the lesser of two floats, or NaN if either is.")
    tvm.ir.register_op_attr(f"tir.{name}", "TCallEffectKind", tir.CallEffectKind.Pure)
    tvm.ir.register_op_attr(f"tir.{name}", "TVectorizable", True)
    tvm.ir.register_intrin_lowering(f"tir.{name}", target="cuda", f=external)


def provide(code: str) -> str:
    """CUDA code, behind the functions that it calls. Of a NaN that comes second all comparisons are false."""
    needed = [
        f"__device__ __forceinline__ {dtype} {name}({dtype} a, {dtype} b)"
        f" {{ return a {sign} b || a != a ? a : b; }}\n"
        for name, sign in SIGNS.items()
        if name in code
        for dtype in ("float", "double")
    ]
    return "".join(needed) + code


change_by(provide)
for _name, _function, _extreme in (
    ("maximum", "greatest_of_two", greatest),
    ("minimum", "least_of_two", least),
):
    _register(_function)
    _compute = functools.partial(_of_two, _function, _extreme, stock_compute(_name))
    compute_by(_name, _compute, generic.schedule_injective)
