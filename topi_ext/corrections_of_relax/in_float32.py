"""Operators of half precision that are computed in float32, and rounded.

TVM computes some of them in float32 in part, and leaves their results in it, though their type in the graph
is that of the data: results of a network were float32, or what followed was refused while compiling. For
others it has no code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import relax, te, topi
from tvm import tirx as tir

from .._floats import HALF
from .._tvm import dtype_of
from .legalize import legalize


class _Widening:
    """A builder whose kernels take float32 in place of another type, and return that one."""

    def __init__(self, builder: relax.BlockBuilder, dtype: str) -> None:
        self._builder, self._dtype = builder, dtype

    def call_te(self, compute: Callable[..., Any], *args: Any, **options: Any) -> relax.Expr:
        def widened(*args: Any, **options: Any) -> Any:
            options = {name: _wide(value) for name, value in options.items()}
            made = compute(*map(_wide, args), **options)
            return self._rounded(made) if isinstance(made, te.Tensor) else list(map(self._rounded, made))

        options = {"primfunc_name_hint": compute.__name__, **options}
        return self._builder.call_te(widened, *args, **options)

    def _rounded(self, result: te.Tensor) -> te.Tensor:
        return topi.cast(result, self._dtype) if dtype_of(result) == "float32" else result


def _wide(value: Any) -> Any:
    if isinstance(value, te.Tensor):
        return topi.cast(value, "float32")
    is_half = isinstance(value, tir.FloatImm) and dtype_of(value) in HALF  # a number beside a tensor
    return tir.const(value.value, "float32") if is_half else value


def in_float32(stock: Any, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """What TVM's own function makes of a call, with kernels in float32 for data of half precision."""
    dtype = dtype_of(call.args[0].ty)
    return stock(_Widening(builder, dtype) if dtype in HALF else builder, call)


def _legalized(name: str, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return in_float32(STOCK[name], builder, call)


WITHOUT_CODE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "cosh", "sinh"),
    *("isfinite", "isinf", "isnan", "nn.layer_norm", "power"),  # of bfloat16
)
STOCK = {
    name: legalize(name, functools.partial(_legalized, name))
    for name in ("nn.batch_norm", "image.grid_sample", *WITHOUT_CODE)
}
