"""The exponential and the hyperbolic tangent in float32 on LLVM, by polynomials, which have vectors.

For an exponential, TVM calls the C library for each element, at a sixth of the speed: a softmax and a sigmoid
are an exponential for each element. The largest error is 2e-7 of the result, or of the smallest normal
number. For a hyperbolic tangent, TVM takes two exponentials; the largest error is 5e-7. Importing this
module registers both.
"""

from __future__ import annotations

import tvm
from tvm import tir

from .._strategy import ABOVE_STOCK
from .._vector_math import vector_exp, vector_tanh

POLYNOMIALS = {"tir.exp", "tir.sigmoid", "tir.tanh", "tir.erf"}


def _exp(call: tir.Call) -> tir.PrimExpr:
    (x,) = call.args
    if x.dtype.startswith("float32") and not _has_polynomial(x):
        once = tir.Var("x", x.dtype)  # the polynomial names it thirty times
        return tir.Let(once, x, vector_exp(once))
    types = tir.const(1, "uint32")  # of how many arguments the function is chosen by
    return tir.call_llvm_pure_intrin(x.dtype, "llvm.exp", types, x)  # as TVM lowers it


def _tanh(call: tir.Call) -> tir.PrimExpr:
    (x,) = call.args
    if x.dtype.startswith("float32") and not _has_polynomial(x):
        once = tir.Var("x", x.dtype)
        return tir.Let(once, x, vector_tanh(once))
    return _stock_tanh(call)


def _has_polynomial(x: tir.PrimExpr) -> bool:
    """Whether an operand becomes one, too: TVM writes out what is named inside of what is named."""
    nodes: list[tir.PrimExpr] = []
    tir.stmt_functor.post_order_visit(x, nodes.append)
    return any(isinstance(node, tir.Call) and node.op.name in POLYNOMIALS for node in nodes)


_stock_tanh = tvm.ir.Op.get("tir.tanh").get_attr("llvm.FLowerIntrinsic")
tvm.ir.register_intrin_lowering("tir.exp", target="llvm", f=_exp, level=ABOVE_STOCK)
tvm.ir.register_intrin_lowering("tir.tanh", target="llvm", f=_tanh, level=ABOVE_STOCK)
