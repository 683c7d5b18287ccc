"""Operators of each element by itself, which keep NaN.

What is multiplied by a constant 0 is computed: TVM takes it for 0, of infinities and NaN, too.
"""

from __future__ import annotations

import operator
from typing import Any

from tvm import relax, tirx

from .._bounds import clip, greatest, least, relu
from .._tvm import dtype_of
from .legalize import legalize, of_two


def _relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(relu, *call.args)


def _clip(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, *bounds = call.args
    if "float" not in dtype_of(data.ty) or not all(hasattr(bound, "value") for bound in bounds):
        return stock_clip(builder, call)
    return builder.call_te(clip, data, *(float(bound.value) for bound in bounds))


def _differs(x: Any, y: Any) -> Any:
    """Not by "not x == y", of which TVM makes "x != y", and LLVM says that of two numbers only."""
    return (x.equal(y).astype("int8") ^ tirx.const(1, "int8")).astype("bool")


legalize("nn.relu", _relu)
stock_clip = legalize("clip", _clip)
of_two("maximum", greatest)
of_two("minimum", least)
of_two("multiply", operator.mul)
of_two("not_equal", _differs)
