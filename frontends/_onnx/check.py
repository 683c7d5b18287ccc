"""Refuses invalid ONNX before any of it is converted, naming what is wrong in the model.

The importer relies on a valid model: every name is computed once, weights have as many elements as their
shapes, functions are not recursive, nodes have the inputs and attributes of their operators. Anything else
would end in an error of Python or TVM, in a meaningless result, or in a crash: TVM's passes recurse, so a
graph that is too deep overflows the stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, defs, helper

from ..errors import ImportFailure
from .describe import describe
from .load import graphs_in, graphs_of, tensors_of
from .schema import schema_of

MAX_ELEMENTS = 2**31 - 1  # of a tensor: TVM computes indices into it in int32
MAX_OPERATORS_IN_A_ROW = (
    10_000  # TVM's passes recurse; on a stack of 8 MiB, 19,000 were seen to fit and 40,000 not
)
MAX_NODES = 1_000_000  # in all function calls, inlined
RELEASE_OF_OPSET = 5  # onnx 1.16 has opset 21, 1.17 has 22, and so on since 1.10
FOUR_BITS = {"INT4", "UINT4", "FLOAT4E2M1"}
DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def check_model(model: onnx.ModelProto) -> None:
    """Raise an ImportFailure for the first thing that makes a model invalid."""
    _check_texts(model)
    _check_opsets(model)
    _check_functions(model)
    opset = opset_of(model)
    local = {(function.domain, function.name) for function in model.functions}
    for graph in graphs_of(model.graph):
        _check_names(graph)
        for node in graph.node:
            if (node.domain, node.op_type) not in local:
                _check_node(node, opset)
    for tensor in tensors_of(model):
        _check_tensor(tensor)
    if not model.graph.output:
        raise ImportFailure("the model has no outputs")
    _check_order(model.graph)


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that a model uses."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return versions[0] if versions else 1


def check_size(what: str, shape: Iterable[int | None]) -> None:
    """Raise an ImportFailure for a shape of more elements than TVM can index; None is an unknown size."""
    fault = fault_of_size(shape)
    if fault:
        raise ImportFailure(f"{what} {fault}")


def fault_of_size(shape: Iterable[int | None]) -> str | None:
    """What is wrong with a shape, or None."""
    known = [size for size in shape if size is not None]
    if any(size < 0 for size in known):
        return f"has a negative size: its shape is {known}"
    if max(math.prod(known), *known, 0) > MAX_ELEMENTS:
        return f"is too large: TVM has no tensors of more than {MAX_ELEMENTS} elements"
    return None


# --- names


def _check_texts(model: onnx.ModelProto) -> None:
    """Check that all texts are str: protobuf gives those that are not UTF-8 as bytes."""
    for what, text in _texts(model):
        if not isinstance(text, str):
            raise ImportFailure(f"the name {text!r} of {what} is not UTF-8: the file is damaged")


def _texts(model: onnx.ModelProto) -> Iterator[tuple[str, Any]]:
    for entry in model.opset_import:
        yield "an operator set", entry.domain
    graphs = list(graphs_of(model.graph))
    for function in model.functions:
        for name in (function.name, function.domain, *function.input, *function.output):
            yield "a function", name
        graphs.extend(graph for node in function.node for graph in _all_graphs_in(node))
    for holder in (*graphs, *model.functions):
        for node in holder.node:
            for name in (node.name, node.op_type, node.domain, *node.input, *node.output):
                yield "a node", name
            for attribute in node.attribute:
                yield "an attribute", attribute.name
    for graph in graphs:
        for value in (*graph.input, *graph.output):
            yield "an input or output", value.name
            if value.type.HasField("tensor_type"):
                for dim in value.type.tensor_type.shape.dim:
                    yield "a size", dim.dim_param
    for tensor in tensors_of(model):
        yield "a tensor", tensor.name


def _check_names(graph: onnx.GraphProto) -> None:
    """Check that every name has one source, so that it means the same value everywhere."""
    sources: dict[str, str | onnx.NodeProto] = {}
    for kind, values in (("input", graph.input), ("initializer", graph.initializer)):
        for value in values:
            if not value.name.strip():
                raise ImportFailure(f"an {kind} of the graph '{graph.name}' has no name")
            if sources.get(value.name) == kind:
                raise ImportFailure(f"'{value.name}' is the name of more than one {kind}")
            sources[value.name] = kind
    for node in graph.node:
        if not any(node.output):
            raise ImportFailure(f"{describe(node)} has no output")
        for name in filter(None, node.output):
            if name in sources:
                source = sources[name]
                where = f"is an {source}" if isinstance(source, str) else f"{describe(source)} computes"
                raise ImportFailure(f"{describe(node)} computes '{name}', which {where} already")
            sources[name] = node


def _check_order(graph: onnx.GraphProto) -> None:
    """Check that sorted nodes come after those that they read, and that chains are not too long."""
    depths = {value.name: 0 for value in (*graph.input, *graph.initializer)}
    later = {name for node in graph.node for name in filter(None, node.output)}
    for node in graph.node:
        for name in node.input:
            if name in later and name not in depths:
                raise ImportFailure(
                    f"{describe(node)} reads '{name}', which only it or a later node computes: "
                    "the graph has a cycle"
                )
        depth = 1 + max((depths.get(name, 0) for name in node.input), default=0)
        if depth > MAX_OPERATORS_IN_A_ROW:
            raise ImportFailure(too_deep(describe(node)))
        depths.update(dict.fromkeys(filter(None, node.output), depth))


def too_deep(place: str) -> str:
    """The reason to refuse a graph that is too deep."""
    most = MAX_OPERATORS_IN_A_ROW
    return f"{place} ends a chain of more than {most} operators, which is deeper than TVM can compile"


# --- versions and functions


def _check_opsets(model: onnx.ModelProto) -> None:
    """Check that the installed onnx knows each opset: a later one may change what an operator means."""
    known = defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain not in ("", "ai.onnx") or 1 <= entry.version <= known:
            continue
        says = f"the model declares opset {entry.version}"
        if not 1 <= entry.version < 100:
            raise ImportFailure(f"{says}, which does not exist: the file is damaged")
        needs = f"1.{entry.version - RELEASE_OF_OPSET}"
        raise ImportFailure(
            f"{says}; the installed onnx {onnx.__version__} knows 1 to {known}: "
            f"pip install 'onnx>={needs}', or export the model for opset {known}"
        )


def _check_functions(model: onnx.ModelProto) -> None:
    """Check that no function calls itself, and that inlining all calls does not make too many nodes."""
    functions: dict[tuple[str, str], onnx.FunctionProto] = {}
    for function in model.functions:
        key = function.domain, function.name
        if key in functions and not getattr(function, "overload", ""):
            raise ImportFailure(f"the function {'.'.join(key)} is defined more than once")
        functions[key] = function
    sizes: dict[tuple[str, str], int] = {}  # in nodes, with calls inlined
    for start in functions:
        stack, entered = [start], {start}
        while stack:
            key = stack[-1]
            calls = [
                (node.domain, node.op_type)
                for node in nodes_of(functions[key].node)
                if (node.domain, node.op_type) in functions
            ]
            waiting = [call for call in calls if call not in sizes]
            if any(call in entered for call in waiting):
                raise ImportFailure(f"the function {'.'.join(key)} calls itself, which ONNX does not allow")
            if waiting:
                stack.append(waiting[0])
                entered.add(waiting[0])
                continue
            stack.pop()
            entered.discard(key)
            sizes[key] = sum(1 for _ in nodes_of(functions[key].node)) + sum(sizes[call] for call in calls)
    called = [node for graph in graphs_of(model.graph) for node in graph.node]
    for node in (*called, *(node for function in functions.values() for node in nodes_of(function.node))):
        function = functions.get((node.domain, node.op_type))
        if function is not None:
            _check_count(node, "input", len(node.input), 0, len(function.input))
            _check_count(node, "output", len(node.output), 0, len(function.output))
    if sum(sizes.get((node.domain, node.op_type), 0) for node in called) > MAX_NODES:
        raise ImportFailure(f"the model's functions, inlined, have more than {MAX_NODES} nodes")


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs inside them."""
    for node in nodes:
        yield node
        for graph in _all_graphs_in(node):
            yield from graph.node


def _all_graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for inner in graphs_in(node):
        yield from graphs_of(inner)


# --- nodes


def _check_node(node: onnx.NodeProto, opset: int) -> None:
    """Check that a node has the inputs, outputs and attributes of its operator, each of the right type."""
    for attribute in node.attribute:
        if not attribute.name:
            raise ImportFailure(f"{describe(node)} has an attribute without a name")
    names = [attribute.name for attribute in node.attribute]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ImportFailure(f"{describe(node)} has the attribute {min(repeated)} more than once")
    schema = schema_of(node.op_type, opset, node.domain) if node.domain in ("", "ai.onnx") else None
    if schema is None:
        return
    _check_count(node, "input", len(node.input), schema.min_input, schema.max_input)
    _check_count(node, "output", len(node.output), schema.min_output, schema.max_output)
    for place, (name, formal) in enumerate(zip(node.input, schema.inputs)):
        if not name and formal.option == defs.OpSchema.FormalParameterOption.Single:
            raise ImportFailure(f"{describe(node)} has no input {place} ({formal.name}), which it needs")
    for attribute in node.attribute:
        known = schema.attributes.get(attribute.name)
        _check_attribute(node, attribute, known)
    for name, known in schema.attributes.items():
        if known.required and name not in names:
            raise ImportFailure(
                f"{describe(node)} lacks the attribute {name}, which it needs in opset {opset}"
            )


def _check_count(node: onnx.NodeProto, what: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        takes = f"{least}" if least == most else f"{least} or more" if most > 1000 else f"{least} to {most}"
        raise ImportFailure(f"{describe(node)} has {count} {what}s; {node.op_type} has {takes}")


VALUE_FIELDS = {  # the field that holds an attribute's value, by its type
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
}


def _check_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto, known: Any) -> None:
    """Check that it has one value, in the field of its type, and that the type is the operator's."""
    what = f"the attribute {attribute.name} of {describe(node)}"
    held = [
        type_
        for type_, field in VALUE_FIELDS.items()
        if (
            len(getattr(attribute, field))
            if field.endswith("s") and field != "s"
            else attribute.HasField(field)
        )
    ]
    if len(held) > 1:
        raise ImportFailure(f"{what} has values of several types")
    # Old exporters omit the type, and an empty list sets no field.
    type_ = attribute.type or (held[0] if held else 0)
    if held and type_ != held[0]:
        raise ImportFailure(f"{what} is not of the type that it declares")
    wanted = int(known.type.value) if known is not None else type_
    if wanted != type_:
        name = AttributeProto.AttributeType.Name
        raise ImportFailure(f"{what} is of type {name(type_)}; {node.op_type} expects {name(wanted)}")
    if type_ in (AttributeProto.STRING, AttributeProto.STRINGS):
        for text in [attribute.s] if type_ == AttributeProto.STRING else attribute.strings:
            _check_text_of(what, text)


def _check_text_of(what: str, text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise ImportFailure(f"{what} is not UTF-8") from None


# --- weights


def _check_tensor(tensor: onnx.TensorProto) -> None:
    """Check that it has as many numbers as its shape has elements, in one field."""
    what = f"the tensor '{tensor.name}'"
    if tensor.data_type not in TensorProto.DataType.values() or not tensor.data_type:
        raise ImportFailure(f"{what} has the element type {tensor.data_type}, which does not exist in ONNX")
    check_size(what, tensor.dims)
    name, count = TensorProto.DataType.Name(tensor.data_type), math.prod(tensor.dims)
    if name in FOUR_BITS:
        count = (count + 1) // 2
    filled = [field for field in DATA_FIELDS if len(getattr(tensor, field))]
    if tensor.HasField("raw_data"):
        if filled:
            raise ImportFailure(f"{what} has its data twice: in raw_data and in {filled[0]}")
        if name == "STRING":
            raise ImportFailure(f"{what} of strings has raw_data, which ONNX does not allow")
        itemsize = 1 if name in FOUR_BITS else helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        itemsize = 2 if name == "BFLOAT16" else 1 if name.startswith("FLOAT8") else itemsize
        found, wanted, unit = len(tensor.raw_data), count * itemsize, "bytes"
    else:
        field = helper.tensor_dtype_to_field(tensor.data_type)
        others = [other for other in filled if other != field]
        if others:
            raise ImportFailure(f"{what} of type {name} has its data in {others[0]}, not in {field}")
        count = 2 * count if name.startswith("COMPLEX") else count
        found, wanted, unit = len(getattr(tensor, field)), count, "numbers"
    if found != wanted:
        type_ = f"{name}{list(tensor.dims)}"
        raise ImportFailure(f"{what} of type {type_} has {found} {unit} instead of {wanted}")
