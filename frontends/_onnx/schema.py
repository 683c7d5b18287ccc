"""Checks the conversion of a node against ONNX: its attributes, its inputs, and the types of its results.

A converter that ignores an attribute or an input silently computes something else. So both come in
containers that record what was read, and what was not read must have no effect. The types of the results are
compared with those that ONNX infers from the types of the inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

MAX_ELEMENTS = 64  # of a constant whose value may determine the shape of a result
WITHOUT_EFFECT = {  # attributes that say nothing about the result
    "consumed_inputs",  # which inputs may be overwritten, before opset 6
    "doc_string",
    "stash_type",  # in which precision to accumulate
    *("plugin_version", "plugin_namespace", "scoreBits"),  # of TensorRT's plugins: which code, how to sort
}


class Attributes(dict):
    """A node's attributes by name, which record those that were not read."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        super().__init__(attributes)
        self.unread = set(attributes)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:  # without it, `**` copies the values without __getitem__
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        self.unread.discard(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.unread.discard(name)
        return super().pop(name, *default)

    def items(self) -> Any:
        self.unread.clear()
        return super().items()

    def values(self) -> Any:
        self.unread.clear()
        return super().values()


class Inputs(list):
    """A node's inputs, None for an omitted one, which record those that were not read."""

    def __init__(self) -> None:
        super().__init__()
        self.unread: set[int] = set()

    @classmethod
    def of(cls, exprs: list[Any]) -> Inputs:
        """Make inputs of other expressions."""
        inputs = cls()
        for expr in exprs:
            inputs.append(expr)
        return inputs

    def append(self, expr: Any) -> None:
        if expr is not None:
            self.unread.add(len(self))
        super().append(expr)

    def __getitem__(self, place: Any) -> Any:
        """None past the last one, as TVM's converters expect."""
        if isinstance(place, slice):
            return [self[i] for i in range(len(self) if place.stop is None else place.stop)[place]]
        self.unread.discard(place % len(self) if place < 0 else place)
        return super().__getitem__(place) if place < len(self) else None

    def __iter__(self) -> Iterator[Any]:
        self.unread.clear()
        return super().__iter__()


def unread(node: onnx.NodeProto, opset: int, attributes: Attributes, inputs: Inputs) -> str | None:
    """The reason to refuse a node whose converter has not read something, or None."""
    defaults = defaults_of(node.op_type, opset, node.domain)
    for attribute in node.attribute:
        name = attribute.name
        if name not in attributes.unread or name in WITHOUT_EFFECT:
            continue
        value = helper.get_attribute_value(attribute)
        if name not in defaults or defaults[name] != value:
            shown = value.decode() if isinstance(value, bytes) else value
            return f"its attribute {name}={shown} is not supported"
    for place in sorted(inputs.unread):
        return f"its input {place}, '{node.input[place]}', is not supported"
    return None


@functools.cache
def defaults_of(op_type: str, opset: int, domain: str) -> dict[str, Any]:
    schema = schema_of(op_type, opset, domain)
    attributes = schema.attributes.values() if schema else ()
    given = {each.name: each.default_value for each in attributes if each.default_value.name}
    return {name: helper.get_attribute_value(value) for name, value in given.items()}


@functools.cache
def schema_of(op_type: str, opset: int, domain: str) -> Any:
    try:
        return defs.get_schema(op_type, opset, "" if domain == "ai.onnx" else domain)
    except defs.SchemaError:
        return None


class Known(NamedTuple):
    """What is known of a tensor of the model before it runs: None for a size that is not."""

    dtype: str
    shape: tuple[int | None, ...]
    value: np.ndarray | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{_in_brackets(self.shape)}"


def other_type(node: onnx.NodeProto, opset: int, known: Callable[[str], Known | None]) -> str | None:
    """How the type of a result differs from what ONNX infers for it, or None.

    `known` gives what a name of the model was imported as, None for what is no tensor.
    """
    schema = schema_of(node.op_type, opset, node.domain)
    if schema is None or any(attribute.HasField("g") for attribute in node.attribute):
        return None
    types, constants = {"": onnx.TypeProto()}, {}  # onnx needs a type for an omitted input, too
    for name in filter(None, node.input):
        given = known(name)
        if given is None:
            return None
        types[name] = helper.make_tensor_type_proto(element_type(given.dtype), given.shape)
        if given.value is not None:
            constants[name] = numpy_helper.from_array(given.value, name)
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, node, types, constants, opset_imports=[helper.make_opsetid(node.domain, opset)]
        )
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError):
        return None  # ONNX does not know either
    for name, type_proto in inferred.items():
        found = known(name)
        if found is not None and not _agree(found, type_proto.tensor_type):
            return f"the result '{name}' would be {found} instead of {_described(type_proto)}"
    return None


def may_be_a_shape(shape: Sequence[int]) -> bool:
    """Whether a constant of this shape is short enough that it may say what shape a result has."""
    return len(shape) < 2 and np.prod(shape, dtype="int64") <= MAX_ELEMENTS


@functools.cache
def element_type(dtype: str) -> int:
    """ONNX's number for an element type."""
    return (
        onnx.TensorProto.BFLOAT16 if dtype == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    )


def _agree(found: Known, tensor_type: onnx.TypeProto.Tensor) -> bool:
    if tensor_type.elem_type and tensor_type.elem_type != element_type(found.dtype):
        return False
    if not tensor_type.HasField("shape"):
        return True
    wanted = [_size(dim) for dim in tensor_type.shape.dim]
    return len(found.shape) == len(wanted) and all(
        mine == right or mine is None or right is None for mine, right in zip(found.shape, wanted)
    )


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") else None


def _described(type_proto: onnx.TypeProto) -> str:
    tensor_type = type_proto.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor_type.elem_type).lower()
    return name + (_in_brackets(map(_size, tensor_type.shape.dim)) if tensor_type.HasField("shape") else "")


def _in_brackets(shape: Any) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
