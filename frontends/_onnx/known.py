"""Values of which only some elements are known: what an exported graph computes from a shape.

Two arrays of one shape stand for such a value: the elements, and which of them are known. An operator that
only moves elements moves both alike; one that computes element by element knows a result where it knows all
that went into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_passes.analysis.evaluate import NotFolded, apply, move
from tvm_passes.engine.expressions import shape_of_type

from tvm import relay

from .._types import sizes, type_of

MOVED_OPERANDS = {  # the positions of the operands whose elements are moved; the others say where to
    "broadcast_to": {0},
    "concatenate": {0},
    "copy": {0},
    "expand_dims": {0},
    "gather": {0},
    "reshape": {0},
    "scatter_elements": {0, 2},
    "slice_like": {0, 1},  # the second only lends its type
    "squeeze": {0},
    "stack": {0},
    "strided_slice": {0},
    "take": {0},
    "transpose": {0},
}
COMPUTES = {
    "add",
    "cast",
    "cast_like",
    "divide",
    "equal",
    "floor_divide",
    "floor_mod",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "not_equal",
    "subtract",
}
LENT_TYPES = {"cast_like", "slice_like"}
OF_SHAPES = {"ndarray_size", "shape_of", "vm.shape_of"}
MOST_ELEMENTS = 64  # shapes and what is made of them


@dataclass
class KnownInPart:
    """A value and which of its elements are known; the others are 1, which no operator objects to."""

    value: np.ndarray
    known: Any  # an array, or of no axes a bool


def knows(op_name: str) -> bool:
    """Whether the operator is one whose result may be known in part."""
    return op_name == "where" or op_name in COMPUTES or op_name in MOVED_OPERANDS


def of_operand(expr: relay.Expr) -> KnownInPart | None:
    """A small constant, known in all, or anything else that is small, known in nothing; else None."""
    shape = shape_of_type(type_of(expr)) if isinstance(type_of(expr), relay.TensorType) else None
    if shape is None or np.prod(shape, dtype="int64") > MOST_ELEMENTS:
        return None
    if isinstance(expr, relay.Constant):
        return KnownInPart(expr.data.numpy(), np.ones(shape, bool))
    return KnownInPart(np.ones(shape, type_of(expr).dtype), np.zeros(shape, bool))


def of_shape(call: relay.Call) -> KnownInPart:
    """What the type of a tensor says about its shape, or its size."""
    shape = sizes(type_of(call.args[0]))
    value = np.array([1 if size is None else size for size in shape], call.attrs.dtype)
    known = np.array([size is not None for size in shape], bool)
    if call.op.name == "ndarray_size":
        return KnownInPart(np.asarray(value.prod(dtype=value.dtype)), np.asarray(known.all()))
    return KnownInPart(value, known)


def of_call(call: relay.Call, operands: list[Any]) -> KnownInPart | None:
    """What is known of a call's value given what is known of its operands, or None."""
    if call.op.name in LENT_TYPES:
        operands = [operands[0], operands[0]]
    if any(operand is None for operand in operands):
        return None
    try:
        value = apply(call, type_of(call), [_each(operand, "value") for operand in operands])
        known = _known(call, operands)
    except NotFolded:
        return None
    return KnownInPart(value, known) if known.any() else None  # nothing to remember


def _known(call: relay.Call, operands: list[Any]) -> Any:
    name = call.op.name
    if name == "where":
        condition, x, y = operands
        chosen = np.where(condition.value, x.known, y.known)
        alike = x.known & y.known & (x.value == y.value)
        return (condition.known & chosen) | alike
    if name in COMPUTES:
        return np.logical_and.reduce(np.broadcast_arrays(*[operand.known for operand in operands]))
    moved = MOVED_OPERANDS[name]
    if not all(operand.known.all() for i, operand in enumerate(operands) if i not in moved):
        raise NotFolded("elements are moved to an unknown place")
    parts = [_each(operand, "known" if i in moved else "value") for i, operand in enumerate(operands)]
    return move(call, type_of(call), parts)


def _each(operand: Any, part: str) -> Any:
    return (
        [getattr(field, part) for field in operand] if isinstance(operand, list) else getattr(operand, part)
    )
