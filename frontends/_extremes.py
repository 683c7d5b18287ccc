"""The greater and the lesser of two numbers, which PyTorch and ONNX define for NaN, too."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvm import relay


def maximum(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """NaN if either is; what Relay's own gives for NaN depends on the target."""
    return _or_nan(dtype, relay.maximum, x, y)


def minimum(dtype: str, x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """As `maximum`."""
    return _or_nan(dtype, relay.minimum, x, y)


def _or_nan(dtype: str, function: Callable[..., relay.Expr], x: relay.Expr, y: relay.Expr) -> relay.Expr:
    """If one operand is a number, TVM's own will do: LLVM keeps the second operand if it is NaN."""
    if "float" not in dtype or _is_number(x):
        return function(x, y)
    if _is_number(y):
        return function(y, x)
    result = function(x, y)
    for each in (x, y):
        result = relay.where(relay.isnan(each), relay.const(math.nan, dtype), result)
    return result


def _is_number(x: relay.Expr) -> bool:
    while isinstance(x, relay.Call) and getattr(x.op, "name", "") == "cast":
        x = x.args[0]
    return isinstance(x, relay.Constant) and not x.data.shape and not np.isnan(x.data.numpy())
