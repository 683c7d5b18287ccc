"""Integers wrap around, as in NumPy and PyTorch, where a sum or product is not in the range of its type.

TVM takes those of 32 bits or more not to overflow, as is true of indices: the sum of two int32 becomes one of
int64 where it is widened behind, "x + 1 > x" is true, and "x * 3 / 3" is x. Importing this module adds "& ~0"
to such operators of a network: all bits stay, but TVM's simplifier does not see through it. TVM tells LLVM
that nothing overflows, too: `llvm` has what is marked so computed in twice the bits and then cut, of which
LLVM makes one operation of the type again, and assumes nothing of it.

C, and so CUDA, computes narrower ones in 32 bits, in which they stay up to the next store: they are cut, too.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import te, tir

from .._floats import vector_type
from .._strategy import Compute, compute_by, generic, stock_compute, with_body

OPERATORS = "add", "subtract", "multiply", "negative"
AND = tvm.ir.Op.get("tir.bitwise_and")
BITS_OF_INT = 32  # of C, which computes with no fewer


def _wrapping(stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (result,) = stock(attrs, inputs, type_)
    if "int" not in result.dtype:
        return [result]
    (body,) = result.op.body
    if tvm.DataType(result.dtype).bits < BITS_OF_INT:
        return [with_body(result, _computed_in(BITS_OF_INT, body))]
    return [with_body(result, body & tir.bitwise_not(tir.const(0, result.dtype)))]


def wrapped(call: tir.Call) -> tir.PrimExpr | None:
    """What is marked, for LLVM."""
    if not call.op.same_as(AND) or not isinstance(call.args[0], (tir.Add, tir.Sub, tir.Mul)):
        return None
    value, others = call.args
    return tir.bitwise_and(_computed_in(2 * tvm.DataType(call.dtype).bits, value), others)


def _computed_in(bits: int, value: tir.Add | tir.Sub | tir.Mul) -> tir.PrimExpr:
    own = tvm.DataType(value.dtype)
    signed, wide = (vector_type(f"int{count}", own.lanes) for count in (own.bits, bits))
    a, b = (tir.Cast(wide, tir.Cast(signed, operand)) for operand in (value.a, value.b))
    return tir.Cast(value.dtype, type(value)(a, b))


for _name in OPERATORS:
    compute_by(_name, functools.partial(_wrapping, stock_compute(_name)), generic.schedule_injective)
