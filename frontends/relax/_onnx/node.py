"""A node of ONNX as its converter sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import helper

from tvm import relax
from tvm.ir import Op

from ..._onnx.describe import describe
from ..._onnx.schema import Attributes, Inputs, defaults_of, unread
from ...errors import ImportFailure
from .sizes import Extent, size_of, whole

Value = Any  # a NumPy array where it is known at import, or else an expression of Relax
Convert = Callable[["Node"], Any]


class Node:
    """Its attributes and inputs, which record what is read, and how to emit expressions."""

    def __init__(
        self,
        node: onnx.NodeProto,
        opset: int,
        inputs: Sequence[Value | None],
        builder: relax.BlockBuilder,
        expression: Callable[[Value], relax.Expr],
    ) -> None:
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        self.proto, self.opset, self.builder, self.expression = node, opset, builder, expression
        self.attributes = Attributes({**defaults_of(node.op_type, opset, node.domain), **given})
        self.inputs = Inputs.of(list(inputs))

    def attribute(self, name: str, default: Any = None) -> Any:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def has(self, place: int) -> bool:
        return self.inputs[place] is not None

    def value(self, place: int) -> np.ndarray:
        """An input that has to be known at import."""
        value = self.inputs[place]
        if not isinstance(value, np.ndarray):
            raise self.failure(
                f"its input {place}, '{self.proto.input[place]}', is computed from the model's inputs, and "
                "must be known at import: export the model with fixed shapes and constant arguments"
            )
        return value

    def integers(self, place: int) -> list[Extent]:
        return [whole(each) for each in np.atleast_1d(self.value(place))]

    def data(self, place: int) -> relax.Expr:
        return self.expression(self.inputs[place])

    def all_data(self) -> list[relax.Expr]:
        return [self.expression(value) for value in self.inputs]

    def cast(self, before: str, after: str) -> None:
        """Give the inputs of one type another one."""
        for place, value in enumerate(list.__iter__(self.inputs)):
            if value is not None and dtype_of(value) == before:
                if isinstance(value, np.ndarray):
                    self.inputs[place] = value.astype(after)
                else:
                    self.inputs[place] = self.emit(relax.op.astype(value, after))

    def shape(self, place: int) -> tuple[Extent, ...]:
        return shape_of(self.inputs[place])

    def dtype(self, place: int = 0) -> str:
        return dtype_of(self.inputs[place])

    def rank(self, place: int = 0) -> int:
        return len(self.shape(place))

    def axis(self, name: str = "axis", default: int | None = None, rank: int | None = None) -> int:
        """An axis, counted from the front."""
        rank = self.rank() if rank is None else rank
        axis = self.attribute(name, default)
        if not -rank <= axis < max(rank, 1):
            self.refuse(f"the axis {axis} is not one of {rank}")
        return int(axis) % rank if rank else 0

    def emit(self, expr: relax.Expr) -> relax.Expr:
        return self.builder.emit(expr)

    def emit_of_shape(self, expr: relax.Expr, shape: Sequence[Extent]) -> relax.Expr:
        """Of slices: Relax does not know how large open sizes are at least."""
        result = self.emit(expr)
        is_known = all(isinstance(size, int) for size in shape_of(result))
        return result if is_known else self.emit(relax.op.reshape(result, shape))

    def reshaped(self, data: relax.Expr) -> relax.Expr | None:
        """What the data are a reshape of, if they are."""
        made = self.builder.lookup_binding(data) if isinstance(data, relax.Var) else None
        if isinstance(made, relax.Call) and made.op == Op.get("relax.reshape"):
            return made.args[0]
        return None

    def number(self, number: float, place: int = 0) -> relax.Expr:
        """A number of the type of an input."""
        return relax.const(number, self.dtype(place))

    def is_float(self, place: int = 0) -> bool:
        return "float" in self.dtype(place)

    def only_floats(self, *places: int) -> None:
        for place in places or (0,):
            if not self.is_float(place):
                self.refuse(f"{self.dtype(place)} is not supported, only floats")

    def only_integers(self, place: int = 0) -> None:
        if "int" not in self.dtype(place):
            self.refuse(f"{self.dtype(place)} is not supported, only integers")

    def failure(self, reason: str) -> ImportFailure:
        return ImportFailure(f"{describe(self.proto)} cannot be converted: {reason}")

    def refuse(self, reason: str) -> NoReturn:
        raise self.failure(reason)

    def unread(self) -> str | None:
        return unread(self.proto, self.opset, self.attributes, self.inputs)


def constant(array: np.ndarray) -> relax.Expr:
    """With the type of the array, of which `relax.const` alone may make a smaller one."""
    if not array.size:  # TVM cannot load a constant without elements
        return relax.op.zeros(array.shape, str(array.dtype))
    return relax.const(np.asarray(array, order="C"), str(array.dtype))


def shape_of(value: Value) -> tuple[Extent, ...]:
    if isinstance(value, np.ndarray):
        return value.shape
    return tuple(size_of(extent) for extent in value.ty.shape)


def dtype_of(value: Value) -> str:
    if isinstance(value, np.ndarray) and value.dtype == object:  # sizes that the run knows
        return "int64"
    return str(value.dtype if isinstance(value, np.ndarray) else value.ty.dtype.dtype)
