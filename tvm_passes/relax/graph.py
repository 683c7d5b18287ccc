"""A function of Relax as rules see it: what its variables are bound to, who uses them, and its constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm import relax, sym
from tvm.ir import Expr, GenericConst
from tvm.relax.dpl import DFPattern
from tvm.relax.dpl.pattern import WildcardPattern

from ..analysis.known_activations import sigmoid

FLOATS = "float32", "float16", "bfloat16"  # of which NumPy has arrays, with ml_dtypes, which TVM imports
# What operators compute of arrays; the first argument is the call.
ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "relax.add": lambda _, x, y: x + y,
    "relax.subtract": lambda _, x, y: x - y,
    "relax.multiply": lambda _, x, y: x * y,
    "relax.divide": lambda _, x, y: x / y,
    "relax.maximum": lambda _, x, y: np.maximum(x, y),
    "relax.minimum": lambda _, x, y: np.minimum(x, y),
    "relax.clip": lambda call, x: np.maximum(np.minimum(x, bounds_of(call)[1]), bounds_of(call)[0]),
    "relax.astype": lambda call, x: _cast(x, dtype_of(call)),
    "relax.sqrt": lambda _, x: np.sqrt(x),
    "relax.rsqrt": lambda _, x: 1 / np.sqrt(x),
    "relax.exp": lambda _, x: np.exp(x),
    "relax.negative": lambda _, x: -x,
    "relax.tanh": lambda _, x: np.tanh(x),
    "relax.sigmoid": lambda _, x: sigmoid(x),
    "relax.nn.relu": lambda _, x: np.maximum(x, 0),
}
_MOVING: dict[str, Callable[..., np.ndarray]] = {
    "relax.reshape": lambda call, x: x.reshape(shape_of(call)),
    "relax.expand_dims": lambda call, x: x.reshape(shape_of(call)),
    "relax.permute_dims": lambda call, x: x.transpose(axes_of(call)),
}


class Length:
    """A length that is known only at run time: another one is equal if TVM can prove it."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __mul__(self, times: int) -> Length:
        return Length(self.expr * times)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Length) and bool(sym.Analyzer().can_prove_equal(self.expr, other.expr))

    def __repr__(self) -> str:
        return str(self.expr)


class Graph:
    """The bindings of a function in order, and who uses what they bind."""

    def __init__(self, function: relax.Function) -> None:
        self.parameters: list[relax.Var] = list(function.params)
        self.bindings: list[tuple[relax.Var, Expr]] = [
            (binding.var, binding.value)
            for block in function.body.blocks
            for binding in block.bindings
            if isinstance(binding, relax.VarBinding)
        ]
        self.bound: Mapping[relax.Var, Expr] = relax.analysis.get_var2val(function)
        self._variables: dict[Expr, list[relax.Var]] = {}  # two may be bound to the same object
        for variable, value in self.bindings:
            self._variables.setdefault(value, []).append(variable)
        self._users: dict[relax.Var, list[Expr]] = {}
        for block in function.body.blocks:
            for binding in block.bindings:
                for variable in relax.analysis.free_vars(binding.value):
                    self._users.setdefault(variable, []).append(binding.value)
        for variable in relax.analysis.free_vars(function.body.body):
            self._users.setdefault(variable, []).append(function.body)

    def value(self, expr: Expr) -> Expr:
        """What a variable is bound to, itself where that is not known; other expressions are values."""
        while isinstance(expr, relax.Var) and expr in self.bound:
            expr = self.bound[expr]
        return expr

    def users(self, expr: Expr) -> list[Expr]:
        """The values that use a variable, or what is bound to one; the function's body, if it returns it."""
        variables = self._variables.get(expr, [expr])
        return [user for variable in variables for user in self._users.get(variable, [])]

    def location(self, value: Expr) -> str:
        """The name of the variable that is bound to a value."""
        return str(self._variables[value][0].name)

    def matched(self, pattern: DFPattern, value: Expr) -> dict[DFPattern, Expr] | None:
        """What each part of a pattern stands for, if it matches a value: variables for its wildcards.

        TVM tells the values of those, too; in another expression they would be computed a second time.
        """
        found = pattern.extract_matched_expr(value, self.bound)
        if found is None:
            return None
        return {
            part: self._variables.get(expr, [expr])[0] if isinstance(part, WildcardPattern) else expr
            for part, expr in found.items()
        }

    def constant(self, expr: Expr) -> np.ndarray | None:
        """The array that an expression is, computed from constants of a float type; None for others."""
        return self.evaluated(expr, {})

    def evaluated(self, expr: Expr, given: Mapping[Expr, np.ndarray]) -> np.ndarray | None:
        """The same where the values in `given` have these arrays, of float64, which casts do not round."""
        expr = self.value(expr)
        if expr in given:
            return given[expr]
        if isinstance(expr, GenericConst):
            return expr.value.numpy() if dtype_of(expr) in FLOATS else None
        compute = ELEMENTWISE.get(op_name(expr)) or _MOVING.get(op_name(expr))
        if compute is None or dtype_of(expr) not in FLOATS:
            return None
        arrays = [self.evaluated(argument, given) for argument in tensors_of(expr)]
        if any(array is None for array in arrays):
            return None
        with np.errstate(all="ignore"):
            return compute(expr, *arrays)


def _cast(array: np.ndarray, dtype: str) -> np.ndarray:
    return array if array.dtype == "float64" else array.astype(dtype)


def op_name(expr: Expr) -> str:
    """The name of the operator that an expression calls, or ""."""
    return str(getattr(getattr(expr, "op", None), "name", ""))


def extents_of(expr: Expr) -> tuple[int | None, ...] | None:
    """The shape of a tensor, with None for extents that are no numbers; None where the rank is unknown."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return tuple(int(extent) if hasattr(extent, "value") else None for extent in shape.values)


def lengths_of(expr: Expr) -> tuple[Any, ...] | None:
    """The shape of a tensor, with a `Length` where an extent is no number; None where the rank is unknown."""
    extents = extents_of(expr)
    if extents is None:
        return None
    return tuple(
        Length(given) if extent is None else extent for extent, given in zip(extents, expr.ty.shape.values)
    )


def shape_of(expr: Expr) -> tuple[int, ...] | None:
    """The shape of a tensor; None where an extent is not a number, or the expression no tensor."""
    extents = extents_of(expr)
    numbers = tuple(extent for extent in extents or () if extent is not None)
    return numbers if extents is not None and len(numbers) == len(extents) else None


def known_shape(expr: Expr) -> tuple[int, ...]:
    """The shape of a tensor that is known to be static."""
    shape = shape_of(expr)
    assert shape is not None
    return shape


def dtype_of(expr: Expr) -> str:
    """The type of a tensor's elements, or ""."""
    return str(getattr(getattr(expr.ty, "dtype", None), "dtype", ""))


def tensors_of(call: Expr) -> list[Expr]:
    """The arguments of a call that are tensors; others are shapes and numbers."""
    return [argument for argument in call.args if isinstance(argument.ty, relax.TensorType)]


def bounds_of(call: Expr) -> tuple[float, float]:
    """Those of a relax.clip, which are its arguments behind the data."""
    low, high = (float(argument.value) for argument in call.args[1:])
    return low, high


def axes_of(call: Expr) -> tuple[int, ...]:
    """Where each axis of a relax.permute_dims comes from."""
    rank, axes = int(call.ty.ndim), call.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(axis) % rank for axis in axes)
