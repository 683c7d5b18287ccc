"""The exponential in float32 on LLVM, by a polynomial, which has vectors.

TVM calls the C library for each element, at a sixth of the speed: a softmax and a sigmoid are an exponential
for each element. The largest error is 2e-7 of the result, or of the smallest normal number. Importing this
module registers it.
"""

from __future__ import annotations

import tvm
from tvm import tir

from .._strategy import ABOVE_STOCK
from .._vector_math import vector_exp

POLYNOMIALS = {"tir.exp", "tir.sigmoid", "tir.tanh", "tir.erf"}


def _exp(call: tir.Call) -> tir.PrimExpr:
    (x,) = call.args
    if x.dtype.startswith("float32") and not _has_polynomial(x):
        once = tir.Var("x", x.dtype)  # the polynomial names it thirty times
        return tir.Let(once, x, vector_exp(once))
    types = tir.const(1, "uint32")  # of how many arguments the function is chosen by
    return tir.call_llvm_pure_intrin(x.dtype, "llvm.exp", types, x)  # as TVM lowers it


def _has_polynomial(x: tir.PrimExpr) -> bool:
    """Whether an operand becomes one, too: TVM writes out what is named inside of what is named."""
    nodes: list[tir.PrimExpr] = []
    tir.stmt_functor.post_order_visit(x, nodes.append)
    return any(isinstance(node, tir.Call) and node.op.name in POLYNOMIALS for node in nodes)


tvm.ir.register_intrin_lowering("tir.exp", target="llvm", f=_exp, level=ABOVE_STOCK)
