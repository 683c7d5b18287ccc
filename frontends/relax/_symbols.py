"""Sizes of an exported program that only the run knows, as torch writes them and as Relax does.

torch proves what a program needs of its sizes for the examples' and leaves conditions, as that a height is
even. What of them is not known of all sizes is compared as the network runs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._sympy import functions

from tvm import relax, tirx
from tvm.ir import Expr

from ..errors import ImportFailure
from ._onnx.assumptions import Assumed
from ._onnx.sizes import LARGEST, SizeUnknown, check, size_of, within

SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool
OF_ONE = 2  # torch takes a size for at least this, and 1 for it
MOST_PARTS = 1024  # a binary fraction of so few, times a size, is exact in torch, too
COMBINED: dict[Any, Any] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    sympy.Max: tirx.max,
    sympy.Min: tirx.min,
    functions.FloorDiv: tirx.floordiv,
    functions.Mod: tirx.floormod,
    functions.PythonMod: tirx.floormod,
    functions.CleanDiv: tirx.floordiv,
    functions.Max: tirx.max,  # type: ignore[attr-defined]  # the checker has an older torch
    functions.Min: tirx.min,  # type: ignore[attr-defined]
}
OF_FLOATS: dict[Any, Any] = {
    functions.IntTrueDiv: operator.truediv,
    functions.FloatTrueDiv: operator.truediv,
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
}
RELATIONS: dict[Any, Any] = {
    sympy.Eq: operator.eq,
    sympy.Ne: operator.ne,
    sympy.Lt: operator.lt,
    sympy.Le: operator.le,
    sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
}


class Symbols:
    """Those of the inputs by torch's symbols, and what is assumed of them."""

    def __init__(self, program: ExportedProgram) -> None:
        self._of: dict[sympy.Symbol, Expr] = {}
        self._most: dict[sympy.Symbol, int] = {}
        self.inputs: dict[str, list[Any]] = {}
        derived: list[tuple[tirx.Var, Any]] = []
        nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
        for name in program.graph_signature.user_inputs:
            value = nodes[name].meta["val"]
            self.inputs[name] = [
                self._variable(extent, f"{name}_{axis}", derived) for axis, extent in enumerate(value.shape)
            ]
        self.assumed = Assumed.nothing(self._of.values())
        for var, expr in derived:
            self._derive(var, expr)
        self._bound(program.range_constraints)
        for condition in _conditions(program):
            if condition.free_symbols <= {
                *self._of
            }:  # those that data decide are refused where they are made
                self._assume(condition)

        self._environment = _environment(program)

    def count_asked(self) -> int:
        """How often torch was asked of sizes by what needs those of the examples."""
        return len(self._environment.guards) if self._environment else 0

    def _variable(self, extent: Any, name: str, derived: list[tuple[tirx.Var, Any]]) -> Any:
        """One for each symbol of torch, and for each extent that is computed from one."""
        if not isinstance(extent, torch.SymInt):
            return extent
        expr = extent.node.expr
        if expr in self._of:
            return self._of[expr]
        var = tirx.Var(name, "int64")
        if expr.is_Integer:
            raise ImportFailure(f"the network is right only where {name}, a size, is {expr}: give it so")
        if isinstance(expr, sympy.Symbol):
            self._of[expr] = var
        else:
            derived.append((var, expr))
        return var

    def _derive(self, var: tirx.Var, expr: Any) -> None:
        """An extent such as 4 * n + 2, whose n is none of an input."""
        unknown = expr.free_symbols - {*self._of}
        sizes, values = dict(self.assumed.sizes), dict(self.assumed.values)
        if unknown:
            (symbol,) = unknown
            factor, rest = sympy.Poly(expr, symbol).all_coeffs()
            if not factor.is_Integer:
                raise ImportFailure(f"the size {var.name} is {expr}, which has more than one unknown")
            self._of[symbol] = tirx.Var(f"{var.name}_by_{factor}", "int64")
            values[self._of[symbol]] = tirx.floordiv(var - self._expression(rest), int(factor))
        sizes[var] = self._expression(expr)
        self.assumed = Assumed(sizes, values, self.assumed.ranges)

    def _bound(self, constraints: Any) -> None:
        ranges = dict(self.assumed.ranges)
        for symbol, bounds in constraints.items():
            if symbol not in self._of:
                continue
            if bounds.lower > OF_ONE:
                ranges[self._of[symbol]] = range(int(bounds.lower), LARGEST)
            if bounds.upper < LARGEST:
                self._most[symbol] = int(bounds.upper)
        self.assumed = Assumed(self.assumed.sizes, self.assumed.values, ranges)

    def _assume(self, condition: Any) -> None:
        """Know of sizes that a condition holds, or refuse it."""
        if isinstance(condition, sympy.And):
            for each in condition.args:
                self._assume(each)
            return
        if condition is sympy.true:
            return
        if isinstance(condition, sympy.Ne) and condition.rhs == 1 and isinstance(condition.lhs, sympy.Mul):
            first, *others = condition.lhs.args  # one of more than 1 is enough
            condition = sympy.And(sympy.Gt(first, 1), *(sympy.Ge(each, 1) for each in others))
            return self._assume(condition)
        relation = RELATIONS.get(type(condition))
        if relation is None:
            raise ImportFailure(f"torch asks of sizes that {condition}, which cannot be compared: fix them")
        while True:
            try:
                with within(self.assumed.ranges):
                    check(relation, *(size_of(self.expression(side)) for side in condition.args))
                return
            except SizeUnknown as unknown:
                more = self.assumed.refined(unknown)
                if more is None:
                    raise ImportFailure(
                        f"the network is right only for sizes of which {condition} holds, "
                        f"as in {', '.join(map(self._named, condition.free_symbols))}: fix them, or give "
                        "dynamic_shapes of which it always does"
                    ) from unknown
                self.assumed = more

    def _named(self, symbol: sympy.Symbol) -> str:
        return f"{symbol} ({self._of[symbol]})"

    def are_known(self, value: Any) -> bool:
        """Whether it is of sizes of the inputs, and not of data."""
        return value.node.expr.free_symbols <= {*self._of}

    def expression(self, value: Any) -> Any:
        """What a size of torch is in Relax."""
        if isinstance(value, int):
            return value
        expr = value.node.expr if isinstance(value, SYMBOLIC) else value
        if isinstance(value, torch.SymFloat):
            return float(expr) if expr.is_number else self._of_floats(expr)
        with within(self.assumed.ranges):
            return self.assumed.simplified(self._expression(expr))

    def _of_floats(self, expr: Any) -> Expr:
        """A number that is not whole, such as a ratio of sizes, in float64."""
        if expr.is_number:
            return tirx.FloatImm("float64", float(expr))
        if expr.is_integer:
            return self.expression(expr).astype("float64")
        if isinstance(expr, functions.ToFloat):
            return self._of_floats(expr.args[0])
        if expr.func not in OF_FLOATS:
            raise ImportFailure(f"the number {expr} cannot be computed from the sizes of inputs: fix them")
        return reduce(OF_FLOATS[expr.func], map(self._of_floats, expr.args))

    def _expression(self, expr: Any) -> Expr:
        if expr.is_Integer:
            return tirx.IntImm("int64", int(expr))
        if expr in self._of:
            return self._of[expr]
        combine, arguments = COMBINED.get(expr.func), expr.args
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
            combine, arguments = operator.mul, (expr.base,) * int(expr.exp)
        if isinstance(expr, functions.TruncToInt) and (rounded := self._scaled(expr.args[0])) is not None:
            return rounded
        if combine is None:
            raise ImportFailure(f"the size {expr} cannot be computed from those of the inputs: fix them")
        return reduce(combine, map(self._expression, arguments))

    def _scaled(self, expr: Any) -> Expr | None:
        """A size times a number that is exact, as 1.5 is, rounded down."""
        factor, sizes = expr.as_coeff_Mul()
        ratio = Fraction(float(factor))
        if not isinstance(sizes, functions.ToFloat) or ratio <= 0 or ratio.denominator > MOST_PARTS:
            return None
        times, parts = (tirx.IntImm("int64", each) for each in (ratio.numerator, ratio.denominator))
        return tirx.floordiv(self._expression(sizes.args[0]) * times, parts)

    def checked(self, builder: relax.BlockBuilder, parameters: list[relax.Var]) -> list[relax.Var]:
        """The inputs with the sizes that are assumed, which are compared as the network runs."""
        parameters = self.assumed.checked(builder, parameters)
        for symbol, most in self._most.items():
            size = self.expression(symbol)
            small = tirx.Min(size, tirx.IntImm("int64", most))
            builder.match_cast(relax.ShapeExpr([size]), relax.ShapeType([small]))
        return parameters


def _environment(program: ExportedProgram) -> Any:
    """Where torch notes what it asks of sizes; None if all are fixed."""
    values = [node.meta.get("val") for node in program.graph.nodes]
    extents = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    of_sizes: Any = next((each for each in extents if isinstance(each, torch.SymInt)), None)
    return None if of_sizes is None else of_sizes.node.shape_env


def _conditions(program: ExportedProgram) -> Iterator[Any]:
    """What torch has found to hold for the examples, and asserts."""
    environment = _environment(program)
    for guard in environment.guards if environment else ():
        condition = guard.expr.xreplace(environment.replacements)
        if condition is not sympy.true and not _is_of_strides(guard):
            yield condition
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        if isinstance(node.args[0], fx.Node) and isinstance(node.args[0].meta["val"], torch.SymBool):
            yield node.args[0].meta["val"].node.expr


# Functions of torch that ask of sizes how tensors lie in memory, which Relax does not know.
OF_STRIDES = {
    *("check_contiguous_sizes_strides", "is_channels_last_contiguous_2d", "is_channels_last_contiguous_3d"),
    *("is_contiguous", "pick_memory_format", "_is_non_overlapping_and_dense_or_false"),
}
# Those that only ask which way to go, and what they return is the same for all sizes by each way.
OF_WAYS = {"div_rtn", "_reshape_view_helper", "_reshape_view_helper_core_alg"}


def _is_of_strides(guard: Any) -> bool:
    place = getattr(guard.sloc.framework_loc, "name", None)
    return place in OF_STRIDES or (
        place in OF_WAYS and (place == "div_rtn" or not isinstance(guard.expr, sympy.Eq))
    )
