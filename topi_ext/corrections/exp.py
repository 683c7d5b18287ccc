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

MAX_NODES = 100  # of an operand, which the polynomial names thirty times
REPEATED = {"tir.exp", "tir.sigmoid", "tir.tanh", "tir.erf"}  # whose polynomials do so, too


def _exp(call: tir.Call) -> tir.PrimExpr:
    (x,) = call.args
    if x.dtype.startswith("float32") and _is_short(x):
        return vector_exp(x)
    types = tir.const(1, "uint32")  # of how many arguments the function is chosen by
    return tir.call_llvm_pure_intrin(x.dtype, "llvm.exp", types, x)  # as TVM lowers it


def _is_short(x: tir.PrimExpr) -> bool:
    """Whether an expression may be written out thirty times."""
    nodes: list[tir.PrimExpr] = []
    tir.stmt_functor.post_order_visit(x, nodes.append)
    names = {getattr(node.op, "name", "") for node in nodes if isinstance(node, tir.Call)}
    return len(nodes) <= MAX_NODES and not names & REPEATED


tvm.ir.register_intrin_lowering("tir.exp", target="llvm", f=_exp, level=ABOVE_STOCK)
