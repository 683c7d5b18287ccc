"""The value of an ONNX node's output, from the values of its inputs and its attributes.

For each operator there is a rule, which turns the node into a call of `Terms`. A rule does two things: it
takes an argument from where the opset has it, an input or an attribute, and it raises `NotRead` for what an
attribute or an optional input asks for that the operator of `Terms` does not do.

A rule does not check types and ranks: where a call fails because of them, `value_of_node` raises `NotRead`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from .term_rewrites import MAX_ELEMENTS, Terms
from .terms import NotRead, Value, known_numbers

CAST_TO = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64"}


def value_of_node(terms: Terms, node: onnx.NodeProto, value_of: Callable[[str], Value]) -> Value:
    """The value of the one output of a node; `value_of` gives that of an input."""
    rule = _RULES.get(node.op_type)
    if rule is None or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        raise NotRead
    attrs = {attr.name: onnx.helper.get_attribute_value(attr) for attr in node.attribute}
    inputs = [value_of(name) if name else None for name in node.input]
    try:
        return rule(terms, inputs, attrs)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise NotRead from error


def has_rule(node: onnx.NodeProto) -> bool:
    """Whether `value_of_node` may ask for the values of the inputs."""
    return node.op_type in _RULES


def value_of_tensor(terms: Terms, tensor: onnx.TensorProto) -> Value:
    """A small tensor of the model as a constant."""
    return terms.const(*_array_and_dtype(tensor))


# --- constants and lengths


def _array_and_dtype(tensor: onnx.TensorProto) -> tuple[np.ndarray, str]:
    if np.prod(tensor.dims, dtype="int64") > MAX_ELEMENTS:
        raise NotRead
    array = numpy_helper.to_array(tensor)
    return array, str(array.dtype)


def _constant(terms: Terms, _inputs: list[Any], attrs: dict[str, Any]) -> Value:
    ((name, value),) = attrs.items()
    if name == "value":
        return value_of_tensor(terms, value)
    if name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise NotRead
    return terms.const(value, "float32" if "float" in name else "int64")


def _constant_of_shape(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    fill, dtype = _array_and_dtype(attrs["value"]) if "value" in attrs else (np.zeros(1), "float32")
    return terms.full(inputs[0], fill.item(), dtype)


def _shape(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.shape(inputs[0])[attrs.get("start", 0) : attrs.get("end")]


# --- moving elements


def _axes(inputs: list[Any], attrs: dict[str, Any]) -> Sequence[int]:
    """The second input; an attribute before opset 13, of the reductions before 18. They have to be given."""
    if len(inputs) > 1:
        return known_numbers(inputs[1]).tolist()
    if "axes" not in attrs:
        raise NotRead
    return attrs["axes"]


def _unsqueeze(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.unsqueeze(inputs[0], _axes(inputs, attrs))


def _squeeze(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.squeeze(inputs[0], _axes(inputs, attrs))


def _slice(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    """Its bounds are inputs; attributes before opset 10."""
    data, *bounds = inputs
    if not bounds:
        bounds = [terms.const(attrs[name]) for name in ("starts", "ends", "axes") if name in attrs]
    return terms.slice(data, *bounds)


def _pad(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    """By a constant, on all axes."""
    data, pads, fill, axes = (inputs + [None] * 3)[:4]
    fill = 0 if fill is None else known_numbers(fill).item()
    if axes is not None or attrs.get("mode", b"constant") != b"constant":
        raise NotRead
    return terms.pad(terms.whole(data), known_numbers(pads), fill)


# --- computing


def _elementwise(op: str) -> Callable[..., Value]:
    def rule(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
        if attrs:  # up to opset 6 they say how to broadcast
            raise NotRead
        return terms.elementwise(op, *inputs)

    return rule


def _mod(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    """With the sign of the divisor."""
    if attrs.get("fmod"):
        raise NotRead
    return terms.elementwise("Mod", *inputs)


def _clip(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    """By a lower bound alone, which is an input; an attribute before opset 11."""
    data, least, most = (inputs + [None] * 2)[:3]
    if "min" in attrs:
        least = terms.const(attrs["min"], terms.whole(data).dtype)
    if least is None or most is not None or "max" in attrs:
        raise NotRead
    return terms.elementwise("AtLeast", data, least)


def _cast(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.cast(inputs[0], CAST_TO[attrs["to"]])


def _reduce(op: str) -> Callable[..., Value]:
    def rule(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
        """Along the only axis, to a scalar."""
        axes = _axes(inputs, attrs) if len(inputs) > 1 or "axes" in attrs else [0]
        if attrs.get("keepdims", 1) or attrs.get("noop_with_empty_axes") or list(axes) not in ([0], [-1]):
            raise NotRead
        return terms.reduce(op, inputs[0])

    return rule


def _argmax(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    if attrs.get("keepdims", 1) or attrs.get("select_last_index"):
        raise NotRead
    return terms.argmax(terms.whole(inputs[0]), attrs.get("axis", 0))


def _resize(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    """To given lengths, as PyTorch does it; the attributes not looked at have no effect on that."""
    half_pixel = attrs.get("coordinate_transformation_mode", b"half_pixel") == b"half_pixel"
    others = ("antialias", "axes", "exclude_outside", "keep_aspect_ratio_policy")
    mode = attrs.get("mode", b"nearest").decode()
    is_torchs = mode == "linear" or (mode == "cubic" and attrs.get("cubic_coeff_a", -0.75) == -0.75)
    if not half_pixel or not is_torchs or len(inputs) < 4 or any(attrs.get(name) for name in others):
        raise NotRead
    return terms.resize(terms.whole(inputs[0]), inputs[3], mode)


_RULES: dict[str, Callable[..., Value]] = {  # of `Terms`, the inputs and the attributes
    "ArgMax": _argmax,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda terms, inputs, attrs: terms.concat(inputs, attrs["axis"]),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Expand": lambda terms, inputs, _: terms.expand(*inputs),
    "Gather": lambda terms, inputs, attrs: terms.gather(*inputs, attrs.get("axis", 0)),
    "Identity": lambda _terms, inputs, _attrs: inputs[0],
    "Mod": _mod,
    "Pad": _pad,
    "Range": lambda terms, inputs, _: terms.range(*inputs),
    "ReduceMax": _reduce("Max"),
    "ReduceMin": _reduce("Min"),
    "Reshape": lambda terms, inputs, attrs: terms.reshape(*inputs, attrs.get("allowzero", 0)),
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    **{op: _elementwise(op) for op in ("Add", "Ceil", "Div", "Equal", "Mul", "Sub", "Where")},
}
