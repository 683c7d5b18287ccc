"""QuantizeLinear and DequantizeLinear, and what is computed between them in integers.

Relax has neither convolutions nor products of int8 for CPUs and GPUs, so sums are in float32: those of more
than 2**24 are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper

from tvm import relax

from ..._onnx.interface import tvm_dtype
from .node import Convert, Node

op = relax.op
# Of earlier opsets, which are a part of this one, ONNX's reference has none.
IN_REFERENCE_SINCE = dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), 19)


def converters() -> dict[str, Convert]:
    return {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}


def _quantize(n: Node) -> relax.Expr:
    """In float32, as ONNX Runtime; halves of a step go to the even one."""
    n.only_floats()
    n.attribute("saturate")  # of float8 only
    given = n.attribute("output_dtype")
    dtype = n.dtype(2) if n.has(2) else tvm_dtype(given) if given else "uint8"
    if dtype not in ("int8", "uint8", "int16", "uint16"):
        n.refuse(f"quantizing to {dtype} is not supported: quantize to int8 or uint8")
    scaled = op.divide(op.astype(n.data(0), "float32"), _of_each(n, 1))
    steps = n.emit(op.round(n.emit(scaled)))
    if n.has(2):
        steps = op.add(steps, _of_each(n, 2))
    limits = np.iinfo(dtype)
    return op.astype(n.emit(op.clip(n.emit(steps), limits.min, limits.max)), dtype)


def _dequantize(n: Node) -> relax.Expr:
    n.only_integers()
    given = n.attribute("output_dtype")
    dtype = tvm_dtype(given) if given else n.dtype(1)
    exact = "int32" if n.dtype() == "int32" else "float32"
    steps = n.emit(op.astype(n.data(0), exact))
    if n.has(2):
        steps = n.emit(op.subtract(steps, _of_each(n, 2, exact)))
    return op.astype(n.emit(op.multiply(op.astype(steps, "float32"), _of_each(n, 1))), dtype)


def _of_each(n: Node, place: int, dtype: str = "float32") -> relax.Expr:
    """A scale or zero point, which is one for all, for each element of an axis, or for each block of them."""
    shape, numbers = n.shape(0), n.emit(op.astype(n.data(place), dtype))
    axis = n.attribute("axis", 1)  # which nothing is asked of where there is one for all
    block = n.attribute("block_size", 0)
    if not block and np.prod(n.shape(place)) == 1:
        return n.emit(op.reshape(numbers, ()))
    axis = n.axis(default=1) if n.rank() > 1 else 0
    if not block:
        if n.shape(place) != (shape[axis],):
            n.refuse(f"its input {place} has the shape {n.shape(place)}, and axis {axis} of the data {shape}")
        return n.emit(op.reshape(numbers, [shape[axis] if at == axis else 1 for at in range(len(shape))]))
    blocks = n.emit(op.repeat(numbers, block, axis))
    if n.rank(place) != len(shape) or not 0 <= blocks.ty.shape[axis] - shape[axis] < block:
        n.refuse(f"its input {place} has the shape {n.shape(place)}, not a number for each block of {block}")
    return n.emit(op.strided_slice(blocks, [axis], [0], [shape[axis]]))


# --- by other nodes


def _integer_conv(node: NodeProto, place: str) -> list[NodeProto]:
    x, w, x_zero, w_zero = _inputs(node, 4)
    return [
        _one(place),
        _dequantized(x, f"{place}/one", x_zero, f"{place}/x"),
        _dequantized(w, f"{place}/one", w_zero, f"{place}/w", axis=0),
        _made("Conv", [f"{place}/x", f"{place}/w"], f"{place}/sums", node.attribute),
        *_as_integers(place, node.output[0]),
    ]


def _integer_matmul(node: NodeProto, place: str) -> list[NodeProto]:
    a, b, a_zero, b_zero = _inputs(node, 4)
    return [
        _one(place),
        _dequantized(a, f"{place}/one", a_zero, f"{place}/a", axis=-2),
        _dequantized(b, f"{place}/one", b_zero, f"{place}/b", axis=-1),
        _made("MatMul", [f"{place}/a", f"{place}/b"], f"{place}/sums"),
        *_as_integers(place, node.output[0]),
    ]


def _quantized_conv(node: NodeProto, place: str) -> list[NodeProto]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = _inputs(node, 9)
    added = [
        _made("Mul", [x_scale, w_scale], f"{place}/scale"),
        _dequantized(bias, f"{place}/scale", "", f"{place}/bias", axis=0),
    ]
    read = [f"{place}/x", f"{place}/w", *([f"{place}/bias"] if bias else [])]
    return [
        _dequantized(x, x_scale, x_zero, f"{place}/x"),
        _dequantized(w, w_scale, w_zero, f"{place}/w", axis=0),
        *(added if bias else []),
        _made("Conv", read, f"{place}/sums", node.attribute),
        _made("QuantizeLinear", [f"{place}/sums", y_scale, y_zero], node.output[0]),
    ]


def _quantized_matmul(node: NodeProto, place: str) -> list[NodeProto]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = _inputs(node, 8)
    return [
        _dequantized(a, a_scale, a_zero, f"{place}/a", axis=-2),
        _dequantized(b, b_scale, b_zero, f"{place}/b", axis=-1),
        _made("MatMul", [f"{place}/a", f"{place}/b"], f"{place}/sums"),
        _made("QuantizeLinear", [f"{place}/sums", y_scale, y_zero], node.output[0], axis=-2),
    ]


def _dynamic(node: NodeProto, place: str) -> list[NodeProto]:
    """With a step of 1 where all is zero, as ONNX Runtime; by ONNX's own definition it would be 0."""
    (x,), (y, scale, zero_point) = node.input, [*node.output, "", ""][:3]
    scale, zero_point = scale or f"{place}/scale", zero_point or f"{place}/zero_point"
    numbers = {"zero": 0.0, "one": 1.0, "most": 255.0}
    steps = {
        "least": ("ReduceMin", x),
        "greatest": ("ReduceMax", x),
        "lowest": ("Min", "least", "zero"),
        "highest": ("Max", "greatest", "zero"),
        "span": ("Sub", "highest", "lowest"),
        "is_zero": ("Equal", "span", "zero"),
        "step": ("Div", "span", "most"),
        "scale": ("Where", "is_zero", "one", "step"),
        "below": ("Div", "lowest", "scale"),
        "above": ("Sub", "zero", "below"),
        "inside": ("Clip", "above", "zero", "most"),
        "whole": ("Round", "inside"),
    }
    names = {name: f"{place}/{name}" for name in (*numbers, *steps)} | {x: x, "scale": scale}
    return [
        *(
            helper.make_node("Constant", [], [names[name]], value_float=each)
            for name, each in numbers.items()
        ),
        *(
            _made(op_type, [names[each] for each in read], names[name], _of_all(op_type))
            for name, (op_type, *read) in steps.items()
        ),
        _made("Cast", [names["whole"]], zero_point, to=TensorProto.UINT8),
        _made("QuantizeLinear", [x, scale, zero_point], y),
    ]


def _of_all(op_type: str) -> list[AttributeProto]:
    return [helper.make_attribute("keepdims", 0)] if op_type.startswith("Reduce") else []


def _inputs(node: NodeProto, count: int) -> list[str]:
    return [*node.input, *[""] * (count - len(node.input))]


def _one(place: str) -> NodeProto:
    return helper.make_node("Constant", [], [f"{place}/one"], f"{place}/one", value_float=1.0)


def _dequantized(steps: str, scale: str, zero: str, name: str, axis: int = 1) -> NodeProto:
    return _made("DequantizeLinear", [steps, scale, *([zero] if zero else [])], name, axis=axis)


def _as_integers(place: str, name: str) -> list[NodeProto]:
    return [
        _made("Round", [f"{place}/sums"], f"{place}/whole"),
        _made("Cast", [f"{place}/whole"], name, to=TensorProto.INT32),
    ]


def _made(
    op_type: str, inputs: list[str], name: str, attributes: Iterable[AttributeProto] = (), **options: int
) -> NodeProto:
    node = helper.make_node(op_type, inputs, [name], name)
    node.attribute.extend([*attributes, *(helper.make_attribute(*each) for each in options.items())])
    return node


# Nodes that read the inputs of one and write its outputs; the names between begin with a place.
BY_OTHERS: dict[str, Callable[[NodeProto, str], list[NodeProto]]] = {
    "ConvInteger": _integer_conv,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _integer_matmul,
    "QLinearConv": _quantized_conv,
    "QLinearMatMul": _quantized_matmul,
}
