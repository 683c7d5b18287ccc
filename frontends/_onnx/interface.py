"""The inputs, outputs and functions of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import onnx

from ..errors import ImportFailure, gist
from .check import check_size, nodes_of

ELEMENT_TYPES = {"BOOL", "DOUBLE", "FLOAT", "FLOAT16"} | {
    f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)
}

KEEP_THE_SHAPE = {"Cast", "DequantizeLinear", "Identity", "QuantizeLinear"}


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline the functions that the model itself defines, as PyTorch's newer exporter writes them."""
    if not model.functions:
        return model
    try:
        from onnx.inliner import inline_local_functions
    except ImportError as error:
        needs = "the model defines functions, for which onnx 1.15 or newer is needed"
        raise ImportFailure(f"{needs}; installed is {onnx.__version__}") from error
    try:
        return inline_local_functions(_with_defaults(model))
    except Exception as error:
        raise ImportFailure(f"onnx cannot inline the model's functions: {gist(error)}") from error


def _with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all attributes of calls given: onnx's inliner forgets the defaults of a function."""
    defaults = {
        (function.domain, function.name, getattr(function, "overload", "")): function.attribute_proto
        for function in model.functions
    }
    if not any(defaults.values()):
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for node in (node for holder in (copied.graph, *copied.functions) for node in nodes_of(holder.node)):
        given = {attribute.name for attribute in node.attribute}
        for default in defaults.get((node.domain, node.op_type, getattr(node, "overload", "")), ()):
            if default.name not in given:
                node.attribute.add().CopyFrom(default)
    return copied


def check_outputs(graph: onnx.GraphProto) -> None:
    """Check that every output of the model is computed."""
    made = {name for node in graph.node for name in node.output}
    made.update(value.name for value in (*graph.input, *graph.initializer))
    for output in graph.output:
        if output.name not in made:
            raise ImportFailure(f"no node computes the output '{output.name}': the model is not complete")


def input_shapes(
    graph: onnx.GraphProto, given: Mapping[str, Sequence[int | None]]
) -> dict[str, list[int | None]]:
    """The shape of every input that is not a weight, by name, in order; None for a size that is not given."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in weights}
    for name in given:
        if name not in inputs:
            raise ImportFailure(f"shapes has '{name}', which is not an input; the inputs are {list(inputs)}")
    channels = _channels(graph, set(inputs))
    return {name: _shape(value, given.get(name), channels.get(name)) for name, value in inputs.items()}


def _channels(graph: onnx.GraphProto, inputs: set[str]) -> dict[str, int]:
    """The channels of inputs that are convolved as they are: exporters make them symbolic too."""
    dims = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    sources = {name: name for name in inputs}
    channels: dict[str, int] = {}
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            dims[node.output[0]] = list(attributes["value"].t.dims)
        elif node.op_type in KEEP_THE_SHAPE:
            tables: tuple[dict[str, Any], ...] = (sources, dims)
            for table in tables:
                if node.input[0] in table:
                    table[node.output[0]] = table[node.input[0]]
        elif node.op_type in ("Conv", "ConvTranspose") and node.input[0] in sources:
            weights = dims.get(node.input[1], [])
            if len(weights) > 2:
                group = attributes["group"].i if "group" in attributes else 1
                count = weights[0] if node.op_type == "ConvTranspose" else weights[1] * group
                channels.setdefault(sources[node.input[0]], count)
    return channels


def _shape(
    value: onnx.ValueInfoProto, given: Sequence[int | None] | None, channels: int | None
) -> list[int | None]:
    name, tensor_type = value.name, value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise ImportFailure(f"the input '{name}' is not a tensor, the only kind that can be imported")
    try:
        tvm_dtype(tensor_type.elem_type)
    except NotImplementedError as error:
        raise ImportFailure(f"the input '{name}' cannot be imported: {error}") from error
    declared = tensor_type.shape.dim if tensor_type.HasField("shape") else None
    if given is None:
        if declared is None:
            hint = f"shapes={{'{name}': (...)}}"
            raise ImportFailure(f"the model does not give the shape of the input '{name}'; pass {hint}")
        # Some exporters write 0 for an unknown size, but never for the length of a vector.
        known = [dim.dim_value > 0 or (len(declared) == 1 and dim.HasField("dim_value")) for dim in declared]
        given = [dim.dim_value if is_known else None for dim, is_known in zip(declared, known)]
        if channels is not None and len(given) > 2 and given[1] is None:
            given[1] = channels
    elif declared is not None and len(declared) != len(given):
        raise ImportFailure(f"the input '{name}' has {len(declared)} dimensions; shapes has {tuple(given)}")
    for size in given:
        if size is not None and not isinstance(size, Integral):
            hint = "give each size as a number, or None if it is known only at run time"
            raise ImportFailure(f"shapes has {size!r} as a size of the input '{name}': {hint}")
    check_size(f"the input '{name}'", given)
    return [None if size is None else int(size) for size in given]


def tvm_dtype(elem_type: int | str) -> str:
    """TVM's name of an ONNX element type; TVM's importer uses `onnx.mapping`, which recent onnx lacks."""
    if isinstance(elem_type, str):
        return elem_type
    if elem_type not in onnx.TensorProto.DataType.values():
        raise NotImplementedError(f"ONNX has no element type {elem_type}")
    name = onnx.TensorProto.DataType.Name(elem_type)
    if name not in ELEMENT_TYPES:
        instead = "leave out what works on text" if name == "STRING" else "export the model in float32"
        raise NotImplementedError(f"TVM has no tensors of type {name}: {instead}")
    return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
