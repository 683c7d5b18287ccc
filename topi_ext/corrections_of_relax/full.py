"""Tensors of infinities and NaN: TVM looks for "float" in an object, as if it were the name of a type."""

from __future__ import annotations

import functools

from tvm import relax, topi
from tvm.relax.transform.legalize_ops.common import _try_convert_to_scalar_const

from .._tvm import dtype_of
from .legalize import legalize


def _full(name: str, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    first, filling = call.args
    shape = first if name == "full" else first.ty.shape
    number = _try_convert_to_scalar_const(filling, python_native=True)
    if not isinstance(shape, relax.ShapeExpr) or not isinstance(number, float):
        return STOCK[name](builder, call)
    return builder.call_te(topi.full, list(shape.values), dtype_of(call.ty), number, primfunc_name_hint=name)


STOCK = {name: legalize(name, functools.partial(_full, name)) for name in ("full", "full_like")}
