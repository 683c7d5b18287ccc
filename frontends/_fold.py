"""Folds constants while a graph is imported, with NumPy and without compiling.

Exported graphs compute shapes node by node. TVM's importer folds each such node by building LLVM code for
it, and makes the shapes static at the end in a pass that starts from scratch for every dynamic operator.
Here an expression is folded when it is made, from operands that are already folded, so a dynamic operator
whose arguments are constant becomes static at once and no pass is needed at the end.

Partly known shapes are followed too: the channel count of a tensor with an unknown number of boxes is a
constant, and an operator that gets its shape at run time keeps the known sizes in its type. Convolutions need
them: TVM compiles none with unknown channels. A reshape to lengths that its data have anyway is static: what
computed them would take longer to compile than the rest of a transformer.

onnxscript's `fold_constants` does not follow shapes: of an exported Mask R-CNN's 2,308 nodes it folds 20. Its
`optimize` leaves 895, but takes as long as the whole import here, which it shortens by a quarter, and some of
the nodes it leaves read names that no longer exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_passes.analysis.evaluate import NotFolded, evaluate
from tvm_passes.analysis.lengths import Origins
from tvm_passes.analysis.operators import known_of
from tvm_passes.analysis.shape_values import Dim, Values, length, values_of
from tvm_passes.engine.expressions import shape_of_type, type_of

import tvm
from tvm import relay

from ._types import sizes

MAX_RESULT = 1 << 24  # elements that a result may have if its operands have far fewer
SHAPE_ARGUMENT = {"dyn.full": 1, "dyn.ones": 0, "dyn.zeros": 0, "dyn.broadcast_to": 1, "dyn.reshape": 1}


class ConstantFolder:
    """Replaces the importer's `fold_constant`; keep one for a whole import, since it caches."""

    def __init__(self) -> None:
        self._folded: dict[relay.Expr, relay.Expr] = {}
        self._known: Values = {}
        self._origins = Origins()

    def __call__(self, expr: relay.Expr, mod: tvm.IRModule | None = None) -> relay.Expr:
        """Fold the new parts of an expression. Iterative: graphs are deeper than Python's stack."""
        folded, stack = self._folded, [expr]
        while stack:
            node = stack[-1]
            operands = _operands(node)
            missing = [operand for operand in operands if operand not in folded]
            stack.extend(missing)
            if missing:
                continue
            stack.pop()
            if node not in folded:
                folded[node] = result = self._fold(node, [folded[operand] for operand in operands])
                folded[result] = result
        return folded[expr]

    def follow(self, old: relay.Expr, new: relay.Expr) -> None:
        """Record that `new` is `old`, which is already folded, with another span."""
        if isinstance(old, relay.TupleWrapper):
            old, new = old.tuple_value, new.tuple_value
        if isinstance(old, relay.Tuple):
            for old_field, new_field in zip(old.fields, new.fields):
                self.follow(old_field, new_field)
        if old in self._folded:
            self._folded[new] = new
        if old in self._known:
            self._known[new] = self._known[old]

    def _fold(self, node: relay.Expr, operands: list[relay.Expr]) -> relay.Expr:
        if isinstance(node, relay.TupleGetItem) and isinstance(operands[0], relay.Tuple):
            return operands[0].fields[node.index]
        node = _with_operands(node, operands)
        if not operands or not isinstance(node, relay.Call):
            return node
        if node.op.name.startswith("dyn."):
            node = self._less_dynamic(node)
        if all(map(_is_constant, node.args)) or (known_of(node).lends_type and _is_constant(node.args[0])):
            return _fold_call(node)
        return self._fold_in_part(node)

    def _fold_in_part(self, call: relay.Call) -> relay.Expr:
        values = values_of(call, self._known)
        if values is None or not all(isinstance(value, (int, float)) for value in values.flat):
            return call
        return constant(values.astype(type_of(call).dtype))

    def _less_dynamic(self, call: relay.Call) -> relay.Expr:
        name = call.op.name
        if any(map(_is_constant, call.args[name not in ("dyn.zeros", "dyn.ones") :])):
            call = _make_static(call)
        name, data = call.op.name, call.args[0]
        if name not in SHAPE_ARGUMENT and name != "dyn.tile":
            return call
        values = values_of(call.args[SHAPE_ARGUMENT.get(name, 1)], self._known)
        if values is None:
            return call
        shape = _tiled(data, values) if name == "dyn.tile" else list(values)
        if name == "dyn.reshape" and shape.count(-1) == 1:
            shape[shape.index(-1)] = _inferred(data, shape)
        known = [size if isinstance(size, int) else None for size in shape]
        if (
            name == "dyn.reshape"
            and known.count(None) == 1
            and all(size != 0 and size != -1 for size in known)
        ):
            return relay.reshape(data, [-1 if size is None else size for size in known])
        codes = self._codes(data, shape) if name == "dyn.reshape" else None
        return keep_known(call, known) if codes is None else relay.reshape(data, codes)

    def _codes(self, data: relay.Expr, shape: list[Any]) -> list[int] | None:
        """The shape as an attribute: what is the length of the data there, too, is 0, and one other is -1."""
        own = sizes(type_of(data))
        codes = [
            size if isinstance(size, int) else 0 if self._is_length(size, data, own, axis) else -1
            for axis, size in enumerate(shape)
        ]
        if codes.count(-1) > 1 or any(size in (0, -1) for size in shape if isinstance(size, int)):
            return None
        return codes

    def _is_length(self, size: Any, data: relay.Expr, own: Sequence[int | None], axis: int) -> bool:
        if not isinstance(size, Dim) or axis >= len(own) or own[axis] is not None:
            return False
        return self._origins.of(size) == self._origins.of(Dim(data, axis))


def _tiled(data: relay.Expr, repeats: np.ndarray) -> list[int | None]:
    """What is known of the sizes of data that is repeated along its axes."""
    have = sizes(type_of(data))
    if len(have) != len(repeats):
        return []
    pairs = zip(have, repeats)
    return [size * times if size and isinstance(times, int) else None for size, times in pairs]


def _inferred(data: relay.Expr, shape: list[Any]) -> int | None:
    """The size that -1 stands for, where the sizes that are not known are those of the data themselves."""
    others = [size for size in shape if size != -1]
    have = []
    for axis in range(len(type_of(data).shape)):
        size = length(data, axis)
        if isinstance(size, int):
            have.append(size)
        elif size in others:
            others.remove(size)
        else:
            return None
    if not all(isinstance(size, int) and size > 0 for size in others):
        return None
    return math.prod(have) // math.prod(others)


def keep_known(expr: relay.Expr, known: Sequence[int | None]) -> relay.Expr:
    """The expression with the known sizes (those above zero) in its type."""
    newshape = [size if size and size > 0 else 0 for size in known]  # 0 keeps the current size
    return relay.reshape(expr, newshape) if any(newshape) else expr


def constant(array: np.ndarray) -> relay.Constant:
    """A Relay constant of exactly the array's dtype and shape."""
    return relay.Constant(tvm.nd.array(array))


def _operands(node: relay.Expr) -> list[relay.Expr]:
    if isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
        return list(node.args)
    if isinstance(node, relay.Tuple):
        return list(node.fields)
    if isinstance(node, relay.TupleGetItem):
        return [node.tuple_value]
    return []


def _with_operands(node: relay.Expr, operands: list[relay.Expr]) -> relay.Expr:
    if all(new.same_as(old) for new, old in zip(operands, _operands(node))):
        return node
    if isinstance(node, relay.Tuple):
        return relay.Tuple(operands, node.span)
    if isinstance(node, relay.TupleGetItem):
        return relay.TupleGetItem(operands[0], node.index, node.span)
    return relay.Call(node.op, operands, node.attrs, node.type_args, node.span)


def _is_constant(expr: relay.Expr) -> bool:
    if isinstance(expr, relay.Tuple):
        return all(map(_is_constant, expr.fields))
    return isinstance(expr, relay.Constant)


def _fold_call(call: relay.Call) -> relay.Expr:
    if _is_large(call):
        return call
    try:
        value = evaluate(call, type_of(call))
    except NotFolded:
        return relay.transform.FoldConstantExpr(call, tvm.IRModule())
    return relay.Tuple([constant(v) for v in value]) if isinstance(value, list) else constant(value)


def _is_large(call: relay.Call) -> bool:
    """Whether a result takes much memory that its constant operands do not take."""
    made = type_of(call)
    if not isinstance(made, relay.TensorType):
        return False
    size = math.prod(shape_of_type(made) or ())
    constants = (arg.data.shape for arg in call.args if isinstance(arg, relay.Constant))
    return size > MAX_RESULT and size > 4 * sum(map(math.prod, constants))


def _make_static(call: relay.Call) -> relay.Expr:
    """Make one call static by TVM's own pass, isolated from its graph."""
    first_is_data = call.op.name not in ("dyn.zeros", "dyn.ones")
    operands = [
        relay.var(f"operand{i}", type_of(arg)) if i < first_is_data or not _is_constant(arg) else arg
        for i, arg in enumerate(call.args)
    ]
    given = {new: old for new, old in zip(operands, call.args) if isinstance(new, relay.Var)}
    alone = relay.Function(list(given), relay.Call(call.op, operands, call.attrs, call.type_args, call.span))
    static = relay.transform.DynamicToStatic()(tvm.IRModule.from_expr(alone))["main"]
    if isinstance(static.body, relay.Call) and static.body.op.name == call.op.name:
        return call
    return relay.bind(static.body, dict(zip(static.params, given.values())))
