"""The computation that is repeated for each class, written once: what all repetitions have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tvm
from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.ty import is_dynamic

from ...engine.expressions import constant, known_shape, op_name, static_shape
from .with_axis import RULES

OF_LENGTHS = ("shape_of", "ndarray_size")  # static results whose operand may be dynamic
Repetitions = tuple[relay.Expr, ...]  # corresponding nodes, one for each class


class NotAlike(Exception):
    """Why expressions are not repetitions of one computation."""


class Template:
    """Corresponding expressions as one, over variables.

    A variable stands for a node that all repetitions share, or for nodes of static shape that differ, such as
    a column of scores; `values` has, for the former, the node, and for the latter all nodes stacked along a
    new first axis (`varying`). `nodes` are all nodes that the template stands for.
    """

    def __init__(self) -> None:
        self.values: dict[relay.Var, relay.Expr] = {}
        self.varying: set[relay.Var] = set()
        self.nodes: set[relay.Expr] = set()
        self._known: dict[Repetitions, relay.Expr] = {}

    def of(self, nodes: Sequence[relay.Expr]) -> relay.Expr:
        """The expression that stands for these nodes. Raises NotAlike if they have nothing in common."""
        key = tuple(nodes)
        if key not in self._known:
            self._known[key] = self._of(key)
        return self._known[key]

    def function(self, outputs: Sequence[relay.Expr]) -> relay.Function:
        """The typed function of all variables that returns these expressions."""
        function = relay.Function(list(self.values), relay.Tuple(list(outputs)))
        return relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]

    def _of(self, nodes: Repetitions) -> relay.Expr:
        first = nodes[0]
        if all(node.same_as(first) for node in nodes):
            return first if isinstance(first, relay.Constant) else self._variable(first, first)
        if len({type(node) for node in nodes}) > 1:
            raise NotAlike("they are of different kinds")
        self.nodes.update(nodes)
        if isinstance(first, relay.Constant):
            if all(structural_equal(node, first) for node in nodes):
                return first
        elif isinstance(first, relay.Tuple) and len({len(node.fields) for node in nodes}) == 1:
            return relay.Tuple(list(map(self.of, zip(*(node.fields for node in nodes)))))
        elif isinstance(first, relay.TupleGetItem) and len({node.index for node in nodes}) == 1:
            return relay.TupleGetItem(self.of([node.tuple_value for node in nodes]), first.index)
        elif isinstance(first, relay.Call) and _is_same_call(nodes) and _continues(first):
            return relay.Call(first.op, list(map(self.of, zip(*(node.args for node in nodes)))), first.attrs)
        shape = static_shape(first)
        if shape is None or any(
            not structural_equal(node.checked_type, first.checked_type) for node in nodes
        ):
            raise NotAlike(f"{op_name(first) or 'a node'} differs in more than values")
        stacked = _stacked(nodes)
        return self._variable(first, stacked, varies=True)

    def _variable(self, like: relay.Expr, value: relay.Expr, varies: bool = False) -> relay.Var:
        variable = relay.Var(f"v{len(self.values)}", like.checked_type)
        self.values[variable] = value
        if varies:
            self.varying.add(variable)
        return variable


def _is_same_call(calls: Repetitions) -> bool:
    first = calls[0]
    return all(
        call.op.same_as(first.op)
        and len(call.args) == len(first.args)
        and structural_equal(call.attrs, first.attrs)
        for call in calls
    )


def _continues(call: relay.Call) -> bool:
    """Whether the template has the call itself, rather than a variable for its result."""
    name = op_name(call)
    return name is not None and (name in RULES or name in OF_LENGTHS or is_dynamic(call.checked_type))


def _stacked(nodes: Repetitions) -> relay.Expr:
    """The nodes along a new first axis; slices of one tensor are gathered from it at once."""
    values = [value for value in map(constant, nodes) if value is not None]
    if len(values) == len(nodes):
        return relay.const(np.stack(values), nodes[0].checked_type.dtype)
    slices = _slices(nodes)
    if slices is None:
        return relay.stack(list(nodes), axis=0)
    data, axis, begins = slices
    length = known_shape(nodes[0])[axis]
    indices = np.add.outer(begins, np.arange(length)).astype("int64")
    taken = relay.take(data, relay.const(indices), axis=axis)
    others = [other for other in range(len(known_shape(nodes[0])) + 1) if other != axis]
    return relay.transpose(taken, [axis, *others])


def _slices(nodes: Repetitions) -> tuple[relay.Expr, int, list[int]] | None:
    """The tensor that all nodes are slices of, the axis along which they differ, and where each begins."""
    found = [each for each in map(_slice, nodes) if each is not None]
    if len(found) < len(nodes) or any(not data.same_as(found[0][0]) for data, _ in found):
        return None
    data, shape = found[0][0], known_shape(nodes[0])
    of_data = known_shape(data)
    axes = [axis for axis in range(len(shape)) if len({begins[axis] for _, begins in found}) > 1]
    shorter = [axis for axis, length in enumerate(shape) if length != of_data[axis]]
    if len(axes) != 1 or not set(shorter) <= set(axes):
        return None
    return data, axes[0], [begins[axes[0]] for _, begins in found]


def _slice(node: relay.Expr) -> tuple[relay.Expr, list[int]] | None:
    """The tensor that a node is a contiguous slice of, and where it begins along each axis; or None."""
    if isinstance(node, relay.TupleGetItem) and op_name(node.tuple_value) == "split":
        split = node.tuple_value
        data, sections = split.args[0], split.attrs.indices_or_sections
        shape = static_shape(data)
        if shape is None or isinstance(sections, tvm.ir.Array):
            return None
        begins = [0] * len(shape)
        axis = int(split.attrs.axis) % len(shape)
        begins[axis] = node.index * (shape[axis] // int(sections))
        return data, begins
    if op_name(node) != "strided_slice" or str(node.attrs.slice_mode) != "end":
        return None
    data, attrs = node.args[0], node.attrs
    shape = static_shape(data)
    strides = attrs.strides or [1]
    if shape is None or any(int(stride) != 1 for stride in strides):
        return None
    begins = [0] * len(shape)
    axes = range(len(attrs.begin)) if attrs.axes is None else attrs.axes
    for axis, begin in zip(axes, attrs.begin):
        length = shape[int(axis)]
        begins[int(axis)] = min(max(int(begin) + (length if int(begin) < 0 else 0), 0), length)
    return data, begins
