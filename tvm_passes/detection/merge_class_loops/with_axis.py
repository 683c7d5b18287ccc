"""The same computation for several values of its variables at once, along a new first axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relay

from ...analysis.operators import OPERATORS, Elements, reduced_axes
from ...engine.expressions import known_shape, op_name
from ...engine.graph import Graph, children, with_children

Axis = tuple[relay.Expr, bool]  # an expression, and whether it has the new axis
Apply = Callable[["WithAxis", relay.Call], relay.Expr]


class NoRule(Exception):
    """Which operator cannot be given another axis."""


class WithAxis:
    """Expressions over variables, `varying` of which get a first axis of `length`.

    Every expression must have a static type.
    """

    def __init__(self, length: int, values: Mapping[relay.Var, relay.Expr], varying: set[relay.Var]) -> None:
        self.length = length
        self._known: dict[relay.Expr, Axis] = {
            variable: (value, variable in varying) for variable, value in values.items()
        }

    def of(self, expr: relay.Expr) -> relay.Expr:
        """The expression for all values of the variables, with the new axis."""
        for node in Graph(expr).nodes:
            if node not in self._known:
                self._known[node] = self._applied(node)
        value, has_axis = self._known[expr]
        return value if has_axis else self._repeated(value, known_shape(expr))

    def has_axis(self, expr: relay.Expr) -> bool:
        return self._known[expr][1]

    def plain(self, expr: relay.Expr) -> relay.Expr:
        """What the expression has become, with or without the new axis."""
        return self._known[expr][0]

    def aligned(self, expr: relay.Expr, rank: int) -> relay.Expr:
        """An operand of an elementwise call whose result had this rank before."""
        value, has_axis = self._known[expr]
        missing = rank - len(known_shape(expr))
        return relay.expand_dims(value, 1, missing) if has_axis and missing else value

    def _repeated(self, value: relay.Expr, shape: tuple[int, ...]) -> relay.Expr:
        return relay.broadcast_to(value, [self.length, *shape])

    def _applied(self, node: relay.Expr) -> Axis:
        below = children(node)
        if not any(self._known[child][1] for child in below):
            new = [self._known[child][0] for child in below]
            return with_children(node, new, None) if below else node, False
        if isinstance(node, relay.Tuple):
            return relay.Tuple([self.of(field) for field in node.fields]), True
        if isinstance(node, relay.TupleGetItem):
            return relay.TupleGetItem(self.plain(node.tuple_value), node.index), True
        name = op_name(node)
        if name not in RULES:
            raise NoRule(f"{name or 'a function'} has no form for all classes at once")
        return RULES[name](self, node), True


# --- rules: the call with the new axis in front of those that it has


def _elementwise(axis: WithAxis, call: relay.Call) -> relay.Expr:
    rank = len(known_shape(call))
    return relay.Call(call.op, [axis.aligned(arg, rank) for arg in call.args], call.attrs)


def _filled(axis: WithAxis, call: relay.Call) -> relay.Expr:
    """A tensor of the value of the last operand, in the type of the result."""
    shape, dtype = known_shape(call), call.checked_type.dtype
    value = relay.cast(axis.aligned(call.args[-1], len(shape)), dtype)
    return relay.broadcast_to(value, [axis.length, *shape])


def _take(axis: WithAxis, call: relay.Call) -> relay.Expr:
    data, indices = call.args
    rank = len(known_shape(data))
    if int(call.attrs.batch_dims) != 0 or (call.attrs.axis is None and rank > 1):
        raise NoRule("elements are taken from several axes at once")
    along, mode = int(call.attrs.axis or 0) % rank, str(call.attrs.mode)
    if not axis.has_axis(data):
        taken = relay.take(axis.plain(data), axis.plain(indices), axis=along, mode=mode)
        return _to_the_front(taken, along, len(known_shape(call)) + 1)
    if not axis.has_axis(indices):
        return relay.take(axis.plain(data), axis.plain(indices), axis=along + 1, mode=mode)
    if along != 0:
        raise NoRule("each class takes other elements along an inner axis")
    return relay.take(axis.plain(data), axis.plain(indices), axis=1, batch_dims=1, mode=mode)


def _to_the_front(expr: relay.Expr, along: int, rank: int) -> relay.Expr:
    if along == 0:
        return expr
    return relay.transpose(expr, [along, *(other for other in range(rank) if other != along)])


def _reduce(axis: WithAxis, call: relay.Call) -> relay.Expr:
    axes = [each + 1 for each in sorted(reduced_axes(call))]
    if not axes:
        return axis.of(call.args[0])
    return _again(call, [axis.plain(call.args[0])], axis=axes, exclude=False)


def _along(axis: WithAxis, call: relay.Call) -> relay.Expr:
    if call.attrs.axis is None or any(axis.has_axis(other) for other in call.args[1:]):
        raise NoRule(f"{op_name(call)} has another axis for each class")
    along = int(call.attrs.axis) % len(known_shape(call.args[0])) + 1
    return _again(call, [axis.plain(arg) for arg in call.args], axis=along)


def _strided_slice(axis: WithAxis, call: relay.Call) -> relay.Expr:
    attrs, rank = call.attrs, len(known_shape(call.args[0]))
    axes = range(len(attrs.begin)) if attrs.axes is None else [int(each) % rank for each in attrs.axes]
    return relay.strided_slice(
        axis.plain(call.args[0]),
        attrs.begin,
        attrs.end,
        attrs.strides or [1] * len(attrs.begin),
        axes=[each + 1 for each in axes],
        slice_mode=str(attrs.slice_mode),
    )


def _reshaped(axis: WithAxis, call: relay.Call) -> relay.Expr:
    """Whatever keeps the elements of its operand, in order."""
    return relay.reshape(axis.plain(call.args[0]), [axis.length, *known_shape(call)])


def _transpose(axis: WithAxis, call: relay.Call) -> relay.Expr:
    rank = len(known_shape(call))
    axes = range(rank)[::-1] if call.attrs.axes is None else [int(each) % rank for each in call.attrs.axes]
    return relay.transpose(axis.plain(call.args[0]), [0, *(each + 1 for each in axes)])


def _joined(axis: WithAxis, call: relay.Call) -> relay.Expr:
    fields = [axis.of(field) for field in call.args[0].fields]
    joined = int(call.attrs.axis) % len(known_shape(call)) + 1
    return (relay.stack if op_name(call) == "stack" else relay.concatenate)(fields, axis=joined)


def _broadcast(axis: WithAxis, call: relay.Call) -> relay.Expr:
    shape = known_shape(call)
    return relay.broadcast_to(axis.aligned(call.args[0], len(shape)), [axis.length, *shape])


def _nms(axis: WithAxis, call: relay.Call) -> relay.Expr:
    """The classes become the images of a batch."""
    if len(known_shape(call.args[0])) != 2 or any(axis.has_axis(threshold) for threshold in call.args[4:]):
        raise NoRule("an NMS has a batch, or other thresholds for each class")
    *tensors, valid_count = call.args[:4]
    count = axis.of(valid_count) if call.attrs["has_valid_count"] else valid_count
    args = [*map(axis.of, tensors), count, *map(axis.plain, call.args[4:])]
    return relay.Call(call.op, args, call.attrs)


def _again(call: relay.Call, args: list[relay.Expr], **changes: Any) -> relay.Expr:
    """The call of other operands, with some attributes changed."""
    attrs = call.attrs
    fields = {str(name): getattr(attrs, name) for name in attrs.keys()}  # noqa: SIM118
    return relay.Call(
        call.op, args, tvm.ir.make_node(f"relay.attrs.{type(attrs).__name__}", **{**fields, **changes})
    )


RULES: dict[str, Apply] = {
    **{name: _elementwise for name, each in OPERATORS.items() if each.elements is Elements.EACH},
    **dict.fromkeys(("full", "full_like"), _filled),
    "take": _take,
    **dict.fromkeys(("all", "any", "argmax", "argmin", "max", "min", "sum"), _reduce),
    **dict.fromkeys(("argsort", "nn.softmax", "sort", "topk"), _along),
    "strided_slice": _strided_slice,
    **dict.fromkeys(("expand_dims", "reshape", "squeeze"), _reshaped),
    "transpose": _transpose,
    **dict.fromkeys(("concatenate", "stack"), _joined),
    "broadcast_to": _broadcast,
    "topi_ext.batched_nms": _nms,
}
for name in (name for name, each in OPERATORS.items() if each.of_a_channel):
    del RULES[name]  # whose axis is an attribute
