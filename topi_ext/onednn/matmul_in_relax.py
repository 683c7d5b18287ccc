"""How Relax computes matmul with oneDNN. Importing this module registers it.

The axes of the batch are merged, which moves nothing in memory: oneDNN multiplies each item of two batches,
or each of one with the only item of the other. Where the second operand is one matrix, all rows of the first
are one, too.

Half precision that oneDNN does not multiply on a processor, as float16 on most, is multiplied as float32:
that loses nothing, and the sums are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, topi

from .._floats import HALF
from .._register import known
from .._tvm import dtype_of, libraries_of
from .._types import IntExpr
from ..corrections_of_relax.legalize import legalize
from . import library
from .matmul import AT_RUN_TIME, Problem, is_capable, product

Shape = Sequence[IntExpr]


def _matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    target = tvm.target.Target.current(allow_none=True)
    has_onednn = target is not None and target.kind.name == "llvm" and library.NAME in libraries_of(target)
    merged = _merged(call) if has_onednn else None
    problem = None if merged is None else _problem(call, merged)
    if problem is not None and problem.dtype in HALF and not is_capable(problem):
        problem = problem._replace(dtype="float32", result="float32")
    if merged is None or problem is None or not is_capable(problem):
        return stock(builder, call)
    left, right = (
        _cast(builder, _reshaped(builder, each, shape), problem.dtype)
        for each, shape in zip(call.args, merged)
    )
    shape = [merged[0][0] if problem.shapes[1][0] == 1 else merged[1][0], merged[0][1], merged[1][2]]

    def computed(*inputs: Any) -> Any:
        return product(problem, shape, inputs)

    products = builder.emit(builder.call_te(computed, left, right, primfunc_name_hint="matmul"))
    products = _cast(builder, products, dtype_of(call.ty))
    return builder.call_te(topi.reshape, products, call.ty.shape.values)


def _merged(call: relax.Call) -> list[Shape] | None:
    """The shapes of the operands with one axis for the batch; None where oneDNN has no such product."""
    types = [argument.ty for argument in call.args]
    if not all(isinstance(each.shape, relax.ShapeExpr) and each.ndim >= 2 for each in types):
        return None
    left, right = (list(each.shape.values) for each in types)
    of_left, of_right = left[:-2], right[:-2]
    if all(known(extent) == 1 for extent in of_right):
        return [[1, math.prod(left[:-1]), left[-1]], [1, *right[-2:]]]
    if _are_same(of_left, of_right) or all(known(extent) == 1 for extent in of_left):
        return [[math.prod(of_left), *left[-2:]], [math.prod(of_right), *right[-2:]]]
    return None


def _problem(call: relax.Call, merged: Sequence[Shape]) -> Problem | None:
    shapes = [[known(extent) for extent in shape] for shape in merged]
    left, right = (dtype_of(argument.ty) for argument in call.args)
    if left != right or any(0 in shape for shape in shapes):
        return None
    extents = [[extent or AT_RUN_TIME for extent in shape] for shape in shapes]
    return Problem(extents, [False, False], left, dtype_of(call.ty))


def _reshaped(builder: relax.BlockBuilder, operand: relax.Expr, shape: Shape) -> relax.Expr:
    if _are_same(shape, operand.ty.shape.values):
        return operand
    return builder.emit(builder.call_te(topi.reshape, operand, shape))


def _cast(builder: relax.BlockBuilder, tensor: relax.Expr, dtype: str) -> relax.Expr:
    return tensor if dtype_of(tensor.ty) == dtype else builder.emit(builder.call_te(topi.cast, tensor, dtype))


def _are_same(shape: Shape, other: Shape) -> bool:
    return len(shape) == len(other) and all(map(tvm.sym.Analyzer().can_prove_equal, shape, other))


stock = legalize("matmul", _matmul)
