"""The greater and the lesser of two floats are NaN if either is, as in NumPy, PyTorch and ONNX.

TVM's own give the second operand on CPUs if one is NaN, and on CUDA the one that is a number. With a number
as one operand, as in a ReLU, a CPU needs no more than TVM's own, with the number first.

Otherwise they are functions, which compilers expand in place: written out by TVM, each operand would be there
several times, and in a chain of them, as where boxes are clipped, each time with all of the chain before it.
Importing this module makes them so; `llvm` has the code that needs them take `defined_for_llvm`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import te, tir

from .._bounds import greatest, least
from .._cuda_source import change_by
from .._strategy import Compute, compute_by, generic, stock_compute, with_body
from .._target import is_for_cuda

# Functions of CUDA, and operators of TIR that call them; the comparisons of CUDA and of LLVM.
SIGNS = {"greatest_of_two": (">", "ogt"), "least_of_two": ("<", "olt")}
EXTERN = tvm.ir.Op.get("tir.call_pure_extern")
TYPES_OF_LLVM = {"float32": ("float", "i32"), "float64": ("double", "i64")}


def _of_two(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (result,) = stock(attrs, inputs, type_)
    (body,) = result.op.body
    if "float" not in result.dtype or not isinstance(body, (tir.Max, tir.Min)):
        return [result]
    one, other = (body.b, body.a) if _is_number(inputs[1]) else (body.a, body.b)
    if any(map(_is_number, inputs)) and not is_for_cuda():
        return [with_body(result, type(body)(one, other))]  # of which LLVM keeps the second
    dtype = result.dtype if result.dtype == "float64" else "float32"  # there are no vectors of halves
    operands = [operand.astype(dtype) for operand in (one, other)]
    return [with_body(result, tir.Call(dtype, tvm.ir.Op.get(f"tir.{name}"), operands).astype(result.dtype))]


def _is_number(tensor: te.Tensor) -> bool:
    """Whether it is a constant other than NaN."""
    if tensor.shape or not isinstance(tensor.op, te.ComputeOp):
        return False
    (body,) = tensor.op.body
    return isinstance(body, tir.FloatImm) and body.value == body.value


def _register(name: str, written_out: Callable[..., Any]) -> None:
    """An operator of TIR, of which TVM makes vectors: of an external function it does not."""

    def of_cuda(call: tir.Call) -> tir.PrimExpr:
        return tir.call_pure_extern(call.dtype, name, *call.args)

    def of_llvm(call: tir.Call) -> tir.PrimExpr:
        return tir.call_pure_extern(call.dtype, f"{name}.{call.dtype}", *call.args)

    def of_others(call: tir.Call) -> tir.PrimExpr:
        return written_out(*call.args)

    tvm.ir._ffi_api.RegisterOp(f"tir.{name}", "The greater or the lesser of two floats, or NaN if either is.")
    tvm.ir.register_op_attr(f"tir.{name}", "TCallEffectKind", tir.CallEffectKind.Pure)
    tvm.ir.register_op_attr(f"tir.{name}", "TVectorizable", True)
    for target, lowered in (("cuda", of_cuda), ("llvm", of_llvm), ("default", of_others)):
        tvm.ir.register_intrin_lowering(f"tir.{name}", target=target, f=lowered)


def provide(code: str) -> str:
    """CUDA code, behind the functions that it calls. Of a NaN that comes second all comparisons are false."""
    needed = [
        f"__device__ __forceinline__ {dtype} {name}({dtype} a, {dtype} b)"
        f" {{ return a {sign} b || a != a ? a : b; }}\n"
        for name, (sign, _) in SIGNS.items()
        if name in code
        for dtype in ("float", "double")
    ]
    return "".join(needed) + code


def called_of_llvm(call: tir.Call) -> str | None:
    """The name of the function, if it is one of these."""
    name = str(call.args[0].value) if call.op.same_as(EXTERN) else ""
    return name if name.split(".")[0] in SIGNS else None


def defined_for_llvm(body: tir.Stmt, names: Iterable[str]) -> tir.Stmt:
    """The body of a function, with the functions that it calls for LLVM to expand in it."""
    code = "".join(_code_of_llvm(*name.split(".")) for name in sorted(names))
    imported = tir.AttrStmt(tir.const(0), "pragma_import_llvm", tir.StringImm(code), body)
    return imported if code else body


def _code_of_llvm(name: str, dtype: str) -> str:
    """Of a number and NaN, a comparison keeps the second: one of both is NaN, and whatever bits join it."""
    type_ = tvm.DataType(dtype)
    number, bits = TYPES_OF_LLVM[dtype.split("x")[0]]
    number, bits, bit = (
        f"<{type_.lanes} x {each}>" if type_.lanes > 1 else each for each in (number, bits, "i1")
    )
    _, sign = SIGNS[name]
    return f"""
define {number} @{name}.{dtype}({number} %a, {number} %b) {{
  %a.first = fcmp {sign} {number} %a, %b
  %b.first = fcmp {sign} {number} %b, %a
  %one = select {bit} %a.first, {number} %a, {number} %b
  %other = select {bit} %b.first, {number} %b, {number} %a
  %one.bits = bitcast {number} %one to {bits}
  %other.bits = bitcast {number} %other to {bits}
  %both = or {bits} %one.bits, %other.bits
  %extreme = bitcast {bits} %both to {number}
  ret {number} %extreme
}}
"""


change_by(provide)
for _name, _function, _written_out in (
    ("maximum", "greatest_of_two", greatest),
    ("minimum", "least_of_two", least),
):
    _register(_function, _written_out)
    compute_by(_name, functools.partial(_of_two, _function, stock_compute(_name)), generic.schedule_injective)
