"""Rewrite all expressions that depend on the boxes an NMS or a filter keeps, to static shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import tvm
from tvm import relay

from ...analysis.operators import keeps_column, known_of
from ...analysis.shape_values import Clamped, Dim, Element, Minimum, Total, all_equal, dims_in, shape_values
from ...engine.expressions import location, op_name, static_shape
from ...engine.graph import Graph, children
from ...engine.match import match as match_pattern
from ..selection import Selection
from .lengths import Length, lengths_of
from .padded import ONE, SIZE, Became, NotStatic, Padded, Rows

MAKE_ROWS = ("dyn.full", "dyn.broadcast_to", "arange")  # as many as their size operands say
Handle = Callable[["Walk", relay.Call, "list[Became]"], Became]


class Walk:
    """Maps the nodes of a typed graph to their replacements; nodes that do not depend on kept rows stay."""

    def __init__(self, graph: Graph, handle: Handle) -> None:
        """`handle` gives the replacement of a call that takes padded rows or sizes, or searches for rows."""
        self.graph, self._handle = graph, handle
        self._became: dict[relay.Expr, Became] = {}
        self._counting: dict[int, relay.Expr] = {}
        self._numbers: dict[relay.Expr, relay.Expr] = {}
        for node in graph.nodes:
            try:
                self._visit(node)
            except NotStatic as reason:
                raise NotStatic(
                    f"{location(node) or op_name(node) or type(node).__name__}: {reason}"
                ) from None

    # --- replacements of nodes

    def of(self, node: relay.Expr) -> Became:
        """What replaces the node: a `Padded`, a tuple of such and of expressions, SIZE, or an expression."""
        return self._became.get(node, node)

    def _visit(self, node: relay.Expr) -> None:
        if isinstance(node, relay.Call) and op_name(node):
            became = self._call(node)
        elif not self._is_changed(*children(node)) or node.same_as(self.graph.root):
            return
        elif isinstance(node, relay.Tuple):
            fields = [self.of(field) for field in node.fields]
            became = SIZE if SIZE in fields else tuple(fields)
        elif isinstance(node, relay.TupleGetItem):
            whole = self.of(node.tuple_value)
            if whole is SIZE:
                became = SIZE
            elif isinstance(whole, tuple):
                became = whole[node.index]
            else:
                became = self.typed(relay.TupleGetItem(whole, node.index))
        elif isinstance(node, relay.If):
            became = self._branches(node)
        else:
            raise NotStatic("a function or a loop depends on what is detected")
        if became is not None:
            self._became[node] = became

    def _branches(self, node: relay.If) -> relay.Expr:
        """A choice by the number of rows, of which one branch is taken only where all of them are valid."""
        if op_name(node.cond) != "less":
            raise NotStatic("a branch depends on what is detected")
        number, limit = (self.computed_lengths(arg).item() for arg in node.cond.args)
        fewer, whole = self.of(node.true_branch), self.of(node.false_branch)
        if (
            not isinstance(whole, Padded)
            or isinstance(fewer, (Padded, tuple))
            or isinstance(limit, Length)
            or not isinstance(number, Length)
            or number.counted != whole.rows.counted
            or not whole.rows.capacity == number.limits[1] <= limit
        ):
            raise NotStatic("a branch depends on what is detected")
        has_fewer = relay.less(whole.rows.number, relay.const(limit, "int32"))
        return self.typed(relay.where(has_fewer, self.expr(fewer), whole.expr))

    def _is_changed(self, *nodes: relay.Expr) -> bool:
        return any(node in self._became for node in nodes)

    def _call(self, call: relay.Call) -> Became:
        args = [self.of(arg) for arg in call.args]
        parts = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
        if self._is_selection(call):
            return self._selection(call, args)
        if op_name(call) == "argwhere" or any(isinstance(part, Padded) for part in parts):
            if SIZE in parts and not known_of(call).sizes:
                args = [self.result(node) if arg is SIZE else arg for node, arg in zip(call.args, args)]
            return self._handle(self, call, args)
        if SIZE in parts:
            return self._handle(self, call, args) if op_name(call) in MAKE_ROWS else SIZE
        if not self._is_changed(*call.args):
            return self._leading_rows(call)
        return self.typed(relay.Call(call.op, [self.expr(arg) for arg in args], call.attrs))

    def _is_selection(self, call: relay.Call) -> bool:
        bound = match_pattern(Selection.selection, call)
        if bound is None or str(call.attrs.slice_mode) != "size":
            return False
        begin, strides = bound[Selection.begin], bound[Selection.strides]
        return all_equal(self.graph, begin, 0) and all_equal(self.graph, strides, 1)

    def keeps_selections_alone(self, nms: relay.Call) -> bool:
        """Whether the indices that an NMS returns are only used to select the kept ones."""
        items = self.graph.users(nms)
        return all(isinstance(item, relay.TupleGetItem) for item in items) and all(
            isinstance(user, relay.Call) and self._is_selection(user)
            for item in items
            if item.index == 0
            for user in self.graph.users(item)
        )

    def _selection(self, call: relay.Call, args: list[Became]) -> Padded:
        """The kept indices: the whole array of indices, the leading ones of which are valid."""
        indices, _, count, _ = args
        (capacity,) = self.shape(indices)
        inside = relay.maximum(indices, relay.const(0, self.dtype(indices)))
        nms = call.args[0].tuple_value
        boxes, rows = self.of(nms.args[0]), Rows(capacity, ("kept", nms), count=relay.squeeze(count))
        places = boxes.rows if isinstance(boxes, Padded) else None
        if places is not None and not places.are_first and self.of(nms).attrs["has_valid_count"]:
            inside = relay.cast(
                relay.take(places.order, inside), self.dtype(indices)
            )  # it got them compacted
        return Padded(self.typed(inside), rows, places=places)

    def _leading_rows(self, call: relay.Call) -> Padded | None:
        """As many leading rows of a static tensor as a number says, such as all that an NMS keeps."""
        if op_name(call) != "dyn.strided_slice" or str(call.attrs.slice_mode) != "end":
            return None
        data, begin, end, strides = call.args
        shape = static_shape(data)
        starts_at_first = all_equal(self.graph, begin, 0) and all_equal(self.graph, strides, 1)
        if shape is None or static_shape(end) != (1,) or not starts_at_first:
            return None
        capacity = relay.const(shape[0], "int64")
        number = relay.squeeze(relay.cast(end, "int64"))
        from_end = relay.where(number < relay.const(0, "int64"), number + capacity, number)
        inside = relay.maximum(relay.minimum(from_end, capacity), relay.const(0, "int64"))
        count = self.typed(relay.cast(inside, "int32"))
        return Padded(data, Rows(shape[0], ("leading", call), count=count))

    def all_rows(self, capacity: int) -> relay.Expr:
        """0, 1, 2, ..., shaped as argwhere returns them."""
        if capacity not in self._counting:
            numbers = np.arange(capacity, dtype="int32").reshape(capacity, 1)
            self._counting[capacity] = self.typed(relay.const(numbers))
        return self._counting[capacity]

    def lists_all(self, expr: relay.Expr) -> bool:
        """Whether an expression is `all_rows`, possibly in another type or shape."""
        while keeps_column(expr):
            expr = expr.args[0]
        return any(expr.same_as(numbers) for numbers in self._counting.values())

    # --- expressions

    def result(self, node: relay.Expr) -> Became:
        """`of`, but what is computed from numbers of valid rows as an expression, where SIZE has none."""
        became = self.of(node)
        if became is not SIZE:
            return became
        if isinstance(node, relay.Tuple):
            return tuple(self.result(field) for field in node.fields)
        if node not in self._numbers:
            self._numbers[node] = self._number(node)
        return self._numbers[node]

    def _number(self, node: relay.Expr) -> relay.Expr:
        if op_name(node) == "shape_of":
            number = self._shape_of(self.of(node.args[0]), self.dtype(node))
        elif isinstance(node, relay.Call):
            args = [self.expr(self.result(arg)) for arg in node.args]
            number = self.typed(relay.Call(node.op, args, node.attrs))
        elif isinstance(node, relay.TupleGetItem):
            number = self.typed(relay.TupleGetItem(self.expr(self.result(node.tuple_value)), node.index))
        else:
            raise NotStatic("it is computed from the number of detections")
        if not isinstance(number.checked_type, relay.TupleType):
            self.shape(number)
        return number

    def _shape_of(self, data: Became, dtype: str) -> relay.Expr:
        lengths = [relay.const([length], dtype) for length in self.shape(self.expr(data))]
        if isinstance(data, Padded):
            lengths[data.axis] = relay.cast(relay.reshape(data.rows.number, (1,)), dtype)
        return self.typed(relay.concatenate(lengths, 0))

    def expr(self, became: Became) -> relay.Expr:
        """The replacement of a node that must be a plain expression."""
        if became is SIZE:
            raise NotStatic("it is computed from the number of detections")
        if isinstance(became, tuple):
            return self.typed(relay.Tuple([self.expr(part) for part in became]))
        return became.expr if isinstance(became, Padded) else became

    def padded(self, call: relay.Call, args: list[Became], rows: Rows, axis: int) -> Padded:
        """The call with padded arguments, whose result has these rows along this axis."""
        result = self.typed(relay.Call(call.op, [self.expr(arg) for arg in args], call.attrs))
        if self.shape(result)[axis] != rows.capacity:
            raise NotStatic("its result has rows other than those of its operands")
        return Padded(result, rows, axis)

    def typed(self, expr: relay.Expr) -> relay.Expr:
        """The expression, with types inferred for it and for all new nodes below it."""
        for child in children(expr):
            if not isinstance(child, tvm.ir.Op) and getattr(child, "_checked_type_", None) is None:
                self.typed(child)
        try:
            relay.transform.InferTypeLocal(expr)
        except tvm.TVMError as error:
            raise NotStatic(
                f"with static shapes it is ill-typed: {str(error).strip().splitlines()[-1]}"
            ) from None
        return expr

    def compacted(self, data: Padded) -> Padded:
        """The same with the valid rows in front."""
        if data.rows.are_first:
            return data
        taken = self.typed(relay.take(data.expr, data.rows.order, axis=data.axis))
        return Padded(taken, data.rows.compacted, data.axis, data.places)

    def shape(self, expr: relay.Expr) -> tuple[int, ...]:
        shape = static_shape(expr)
        if shape is None:
            raise NotStatic("a length stays unknown")
        return shape

    def dtype(self, expr: relay.Expr) -> str:
        return expr.checked_type.dtype

    def known_lengths(self, expr: relay.Expr) -> list[Element]:
        """The elements of a shape or of slice bounds, each of them a number or a symbolic length."""
        values = shape_values(self.graph, expr)
        if values is None or any(value is None for value in values.flat):
            values = self.computed_lengths(expr)
        return list(values.flat)

    def computed_lengths(self, expr: relay.Expr) -> np.ndarray:
        """The same in their shape, each a number, or a Length: computed from numbers of detections."""
        return lengths_of(expr, self._shape_with_lengths)

    def _shape_with_lengths(self, node: relay.Expr) -> list[Length | int]:
        became = self.of(node)
        lengths: list[Length | int] = list(self.shape(self.expr(became)))
        if isinstance(became, Padded):
            lengths[became.axis] = Length.of(became.rows)
        return lengths

    # --- lengths, which are elements as `shape_values` tracks them

    def rows(self, dim: Dim) -> Rows | None:
        """The rows along a dimension, or None if its length is static."""
        became = self.of(dim.tensor)
        return became.rows if isinstance(became, Padded) and became.axis == dim.axis else None

    def is_fixed(self, value: Element) -> bool:
        return not isinstance(value, Length) and all(self.rows(dim) is None for dim in dims_in(value))

    def length(self, value: Element) -> int:
        """The static length that replaces a dimension."""
        if isinstance(value, Dim):
            return self.shape(self.expr(self.of(value.tensor)))[value.axis]
        if isinstance(value, Clamped):
            return min(value.bound, self.length(value.dim))
        if isinstance(value, Minimum):
            return min(map(self.length, value))
        if isinstance(value, Length):
            return value.limits[1]
        return sum(map(self.length, value.dims)) if isinstance(value, Total) else value

    def counted(self, value: Element) -> Counter[Any] | None:
        """Like `Rows.counted`, for a length that is a number, a dimension or a total; else None."""
        if isinstance(value, Total):
            parts = [counted for counted in map(self.counted, value.dims) if counted is not None]
            return sum(parts, Counter()) if len(parts) == len(value.dims) else None
        if isinstance(value, Length):
            return value.counted
        rows = self.rows(value) if isinstance(value, Dim) else None
        if rows is not None:
            return rows.counted
        length = self.length(value) if isinstance(value, (int, Dim)) else None
        return length if length is None else Counter({ONE: length} if length else {})


def data_of(args: list[Became]) -> Padded:
    """The first argument, which holds the rows."""
    if not isinstance(args[0], Padded):
        raise NotStatic("an operand besides the rows depends on what is detected")
    return args[0]
